#include "tests/onnx/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/onnx/wire.h"

namespace weft::onnx {
namespace {

/// Stores the low bytes of each value as an element: integers shrink to their type, 16-bit floats
/// come as bit patterns, and floats and doubles are what they are.
template <class Value>
void fill(const Tensor& tensor, const std::vector<Value>& values) {
  static_assert(std::endian::native == std::endian::little);
  WEFT_CHECK(static_cast<int64_t>(values.size()) == tensor.numel(),
             "tensor: {} values for {} elements", values.size(), tensor.numel());
  char* out = static_cast<char*>(tensor.raw());
  for (const Value& value : values) {
    std::memcpy(out, &value, tensor.itemsize());
    out += tensor.itemsize();
  }
}

Attribute parse_attribute(std::string_view bytes, std::string& name) {
  Attribute a;
  for (WireReader r(bytes, "attribute"); r.next();) {
    switch (r.field()) {
      case 1:
        name = r.bytes();
        break;
      case 2:
        a.f = r.f32();
        break;
      case 3:
        a.i = r.varint();
        break;
      case 4:
        a.s = r.bytes();
        break;
      case 5:
        a.t = parse_tensor(r.bytes());
        break;
      case 6:
        a.is_graph = true;
        r.skip();
        break;
      case 7:
        r.append(a.floats);
        break;
      case 8:
        r.append(a.ints);
        break;
      default:
        r.skip();
    }
  }
  return a;
}

Node parse_node(std::string_view bytes) {
  Node node;
  for (WireReader r(bytes, "node"); r.next();) {
    switch (r.field()) {
      case 1:
        node.inputs.emplace_back(r.bytes());
        break;
      case 2:
        node.outputs.emplace_back(r.bytes());
        break;
      case 4:
        node.op_type = r.bytes();
        break;
      case 5: {
        std::string name;
        Attribute attribute = parse_attribute(r.bytes(), name);
        node.attributes.emplace(std::move(name), std::move(attribute));
        break;
      }
      default:
        r.skip();
    }
  }
  return node;
}

/// The name of a ValueInfoProto; notes it in the model unless it is a tensor's.
std::string parse_value(std::string_view bytes, Model& model) {
  std::string name;
  bool is_tensor = true;
  for (WireReader r(bytes, "value"); r.next();) {
    if (r.field() == 1) {
      name = r.bytes();
    } else if (r.field() == 2) {
      for (WireReader type(r.bytes(), "type"); type.next(); type.skip()) {
        // The others: 4 sequence, 5 map, 8 sparse tensor, 9 optional; 6 is a denotation.
        is_tensor = is_tensor && (type.field() == 1 || type.field() == 6);
      }
    } else {
      r.skip();
    }
  }
  if (!is_tensor) model.not_tensors.push_back(name);
  return name;
}

void parse_graph(std::string_view bytes, Model& model) {
  for (WireReader r(bytes, "graph"); r.next();) {
    switch (r.field()) {
      case 1:
        model.nodes.push_back(parse_node(r.bytes()));
        break;
      case 5: {
        const std::string_view tensor = r.bytes();
        std::string name;
        for (WireReader t(tensor, "tensor"); t.next();) {
          if (t.field() == 8) {
            name = t.bytes();
          } else {
            t.skip();
          }
        }
        model.initializers.emplace_back(name, parse_tensor(tensor));
        break;
      }
      case 11:
        model.inputs.push_back(parse_value(r.bytes(), model));
        break;
      case 12:
        model.outputs.push_back(parse_value(r.bytes(), model));
        break;
      default:
        r.skip();
    }
  }
}

}  // namespace

DType element_type(int64_t type) {
  switch (type) {
    case 1:
      return DType::f32;
    case 2:
      return DType::u8;
    case 6:
      return DType::i32;
    case 7:
      return DType::i64;
    case 9:
      return DType::boolean;
    case 10:
      return DType::f16;
    case 11:
      return DType::f64;
    case 16:
      return DType::bf16;
  }
  constexpr std::string_view kOthers[] = {
      "undefined", "float", "uint8",   "int8",   "uint16", "int16",  "int32",     "int64",
      "string",    "bool",  "float16", "double", "uint32", "uint64", "complex64", "complex128"};
  WEFT_FAIL("tensor: Weft has no dtype for {}",
            type >= 0 && type < 16 ? kOthers[type] : std::string_view("an unknown element type"));
}

Tensor parse_tensor(std::string_view bytes) {
  std::vector<int64_t> dims, int32s, int64s;
  std::vector<float> floats;
  std::vector<double> doubles;
  std::string_view raw;
  bool has_raw = false;
  int64_t type = 0;
  for (WireReader r(bytes, "tensor"); r.next();) {
    switch (r.field()) {
      case 1:
        r.append(dims);
        break;
      case 2:
        type = r.varint();
        break;
      case 4:
        r.append(floats);
        break;
      case 5:
        r.append(int32s);
        break;
      case 7:
        r.append(int64s);
        break;
      case 9:
        raw = r.bytes();
        has_raw = true;
        break;
      case 10:
        r.append(doubles);
        break;
      case 14:
        WEFT_CHECK(r.varint() == 0, "tensor: its data lies in another file");
        break;
      default:
        r.skip();
    }
  }
  const DType dtype = element_type(type);
  // No element takes less than a byte of the message: this bounds what is allocated. A tensor
  // without elements may have any sizes whose product does not overflow.
  const bool is_empty = std::find(dims.begin(), dims.end(), 0) != dims.end();
  const int64_t limit = is_empty ? int64_t{1} << 30 : static_cast<int64_t>(bytes.size());
  int64_t count = 1;
  for (int64_t dim : dims) {
    WEFT_CHECK(dim >= 0 && dim <= limit && (count *= std::max<int64_t>(dim, 1)) <= limit,
               "tensor: {} bytes cannot hold the elements of [{}]", bytes.size(),
               fmt::join(dims, ", "));
  }
  const Tensor tensor = Tensor::empty(Shape(dims), dtype);
  if (has_raw) {
    WEFT_CHECK(raw.size() == tensor.nbytes(), "tensor: {} bytes of data for {} bytes of {}",
               raw.size(), tensor.nbytes(), tensor);
    if (!raw.empty()) std::memcpy(tensor.raw(), raw.data(), raw.size());
  } else if (dtype == DType::f32) {
    fill(tensor, floats);
  } else if (dtype == DType::f64) {
    fill(tensor, doubles);
  } else {
    fill(tensor, dtype == DType::i64 ? int64s : int32s);
  }
  return tensor;
}

Model parse_model(std::string_view bytes) {
  Model model;
  for (WireReader r(bytes, "model"); r.next();) {
    if (r.field() == 7) {
      parse_graph(r.bytes(), model);
    } else {
      r.skip();
    }
  }
  return model;
}

const Attribute* Node::find(std::string_view name) const {
  const auto it = attributes.find(name);
  return it == attributes.end() ? nullptr : &it->second;
}
double Node::f(std::string_view name, double fallback) const {
  const Attribute* a = find(name);
  return a ? a->f : fallback;
}
int64_t Node::i(std::string_view name, int64_t fallback) const {
  const Attribute* a = find(name);
  return a ? a->i : fallback;
}
std::string Node::s(std::string_view name, std::string_view fallback) const {
  const Attribute* a = find(name);
  return a ? a->s : std::string(fallback);
}
std::vector<int64_t> Node::ints(std::string_view name) const {
  const Attribute* a = find(name);
  return a ? a->ints : std::vector<int64_t>();
}

std::string read_file(const Path& path) {
  std::ifstream file(path, std::ios::binary);
  WEFT_CHECK(file.good(), "{}: cannot be opened", path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace weft::onnx
