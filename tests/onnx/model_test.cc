// The reader of ONNX files, on messages written by hand.
#include "tests/onnx/model.h"

#include <catch2/catch.hpp>

namespace weft::onnx {
namespace {

using namespace std::string_literals;

/// A field of bytes: its number, its length, the bytes.
std::string field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) +
         std::string(1, static_cast<char>(bytes.size())) + bytes;
}
std::string varint(int number, char value) {
  return std::string(1, static_cast<char>(number << 3)) + std::string(1, value);
}

// f32 [2] = {1, -2} as raw bytes.
const std::string kTensor =
    varint(1, 2) + varint(2, 1) + field(9, "\x00\x00\x80\x3f\x00\x00\x00\xc0"s);

TEST_CASE("tensors are read from raw bytes and from typed values") {
  const Tensor raw = parse_tensor(kTensor);
  CHECK(raw.dtype() == DType::f32);
  CHECK(raw.to_vector() == std::vector<double>{1, -2});
  // i32 {3, -1}, packed: -1 is ten bytes of varint.
  const Tensor packed = parse_tensor(varint(1, 2) + varint(2, 6) +
                                     field(5, "\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s));
  CHECK(packed.dtype() == DType::i32);
  CHECK(packed.to_vector() == std::vector<double>{3, -1});
  // f16 {1.5} by its bits, not packed; a scalar has no dims.
  CHECK(parse_tensor(varint(2, 10) + "\x28\x80\x7c"s).item() == 1.5);
}

TEST_CASE("a model's nodes, attributes and values are read") {
  const std::string attribute = field(1, "axis") + varint(3, 1) + field(8, "\x01\x02"s);
  const std::string node =
      field(1, "x") + field(1, "") + field(2, "y") + field(4, "Concat") + field(5, attribute);
  const std::string sequence = field(1, "s") + field(2, field(4, ""));
  const std::string graph = field(1, node) + field(5, kTensor + field(8, "w")) +
                            field(11, field(1, "x") + field(2, field(1, ""))) + field(12, sequence);
  const Model model = parse_model(varint(1, 8) + field(7, graph));
  REQUIRE(model.nodes.size() == 1);
  CHECK(model.nodes[0].op_type == "Concat");
  CHECK(model.nodes[0].inputs == std::vector<std::string>{"x", ""});
  CHECK(model.nodes[0].i("axis", 0) == 1);
  CHECK(model.nodes[0].ints("axis") == std::vector<int64_t>{1, 2});
  CHECK(model.nodes[0].f("alpha", 0.5) == 0.5);
  CHECK(model.initializers[0].first == "w");
  CHECK(model.initializers[0].second.numel() == 2);
  CHECK(model.inputs == std::vector<std::string>{"x"});
  CHECK(model.not_tensors == std::vector<std::string>{"s"});
}

TEST_CASE("a truncated message is refused at every length") {
  // Whole fields may be missing, so the shape and the values decide.
  for (size_t length = 0; length < kTensor.size(); ++length) {
    CHECK_THROWS_AS(parse_tensor(kTensor.substr(0, length)), Error);
  }
}

TEST_CASE("what the format forbids is named") {
  CHECK_THROWS_WITH(parse_tensor("\x4a\x7f"s), "tensor: field 9 needs 127 bytes, 0 are left");
  CHECK_THROWS_WITH(parse_tensor("\x12\x01\x01"s), "tensor: field 2 has wire type 2, expected 0");
  CHECK_THROWS_WITH(parse_tensor("\x0b"s), "tensor: field 1 has wire type 3, expected 2");
  CHECK_THROWS_WITH(parse_tensor("\x1b"s), "tensor: field 3 has the unknown wire type 3");
  CHECK_THROWS_WITH(parse_tensor("\x00"s), "tensor: field number 0 is out of range");
  CHECK_THROWS_WITH(parse_tensor("\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"s),
                    "tensor: field 2 holds a varint of more than 64 bits");
  CHECK_THROWS_WITH(parse_tensor(varint(2, 3)), "tensor: Weft has no dtype for int8");
  CHECK_THROWS_WITH(parse_tensor(varint(1, 3) + varint(2, 1) + field(9, "\x00\x00\x00\x00"s)),
                    "tensor: 4 bytes of data for 12 bytes of f32 [3] on cpu");
  CHECK_THROWS_WITH(parse_tensor(varint(1, 100) + varint(1, 100) + varint(2, 1)),
                    "tensor: 6 bytes cannot hold the elements of [100, 100]");
  CHECK_THROWS_WITH(parse_tensor(varint(2, 1)), "tensor: 0 values for 1 elements");
  CHECK_THROWS_WITH(read_file("/nowhere/model.onnx"), "/nowhere/model.onnx: cannot be opened");
}

}  // namespace
}  // namespace weft::onnx
