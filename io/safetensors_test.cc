#include "io/safetensors.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/view.h"

using namespace weft;
using namespace weft::io;
using Catch::Matchers::Contains;

namespace {

Path scratch(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  return Path(directory ? directory : "/tmp") / name;
}

/// Writes the bytes and reads them as safetensors.
SafeTensors read_bytes(const std::string& bytes) {
  const Path path = scratch("case.safetensors");
  write_file_atomically(path, [&](FileWriter& writer) { writer.write(bytes); });
  return read_safetensors(path);
}

std::string with_length(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

SafeTensors read_header(const std::string& header, const std::string& data = "") {
  return read_bytes(with_length(header, data));
}

template <class T>
Tensor every_code(DType dtype) {
  Tensor tensor = Tensor::empty({16, 16}, dtype);
  for (int i = 0; i < 256; ++i) static_cast<T*>(tensor.raw())[i] = static_cast<T>(i * 257 + i);
  return tensor;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0);
}

}  // namespace

TEST_CASE("What is written is read back, bit for bit, for every dtype") {
  const NamedTensors written = {
      {"f64", every_code<uint64_t>(DType::f64)},
      {"f32", every_code<uint32_t>(DType::f32)},
      {"tf32", Tensor::full({3}, 0.5, DType::tf32)},
      {"f16", every_code<uint16_t>(DType::f16)},
      {"bf16", every_code<uint16_t>(DType::bf16)},
      {"e4m3", every_code<uint8_t>(DType::f8e4m3)},
      {"e5m2", every_code<uint8_t>(DType::f8e5m2)},
      {"i64", every_code<uint64_t>(DType::i64)},
      {"i32", every_code<uint32_t>(DType::i32)},
      {"u8", every_code<uint8_t>(DType::u8)},
      {"bool", Tensor::from<bool>(std::array{true, false, true}, {3})},
      {"scalar", Tensor::scalar(-2.5)},
      {"empty", Tensor::empty({0, 7}, DType::i32)},
      {"name with \"quotes\" and \xc3\xa9", Tensor::scalar(1)},
  };
  const Path path = scratch("all.safetensors");
  const Metadata metadata = {{"format", "pt"}, {"note", "line\nline"}};
  write_safetensors(path, written, metadata);
  const SafeTensors read = read_safetensors(path);
  CHECK(read.metadata == metadata);
  REQUIRE(read.tensors.size() == written.size());
  for (const auto& [name, tensor] : written) {
    INFO(name);
    const auto place =
        std::find_if(read.tensors.begin(), read.tensors.end(),
                     [&name = name](const auto& other) { return other.first == name; });
    REQUIRE(place != read.tensors.end());
    CHECK(place->second.dtype() == (name == "tf32" ? DType::f32 : tensor.dtype()));
    CHECK(same_bytes(place->second, tensor));
  }
}

TEST_CASE("Tensors lie sorted by element size and name, the data at a multiple of 8") {
  const Path path = scratch("sorted.safetensors");
  write_safetensors(path, {{"b", Tensor::zeros({3}, DType::u8)},
                           {"z", Tensor::zeros({1}, DType::f32)},
                           {"a", Tensor::zeros({2}, DType::u8)},
                           {"half", Tensor::zeros({1}, DType::bf16)},
                           {"y", Tensor::zeros({1}, DType::i32)}});
  const std::string bytes = read_text(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  CHECK(bytes.size() == 8 + length + 15);
  std::string names;
  for (const auto& [name, tensor] : read_safetensors(path).tensors) names += name + " ";
  CHECK(names == "y z half a b ");
}

TEST_CASE("Strided views are written in row-major order") {
  const Tensor base = Tensor::from<int32_t>(std::array{1, 2, 3, 4, 5, 6}, {2, 3});
  const Path path = scratch("strided.safetensors");
  write_safetensors(path, {{"t", view::transpose(base, 0, 1)},
                           {"s", view::slice(base, 1, 0, 3, 2)},
                           {"e", view::expand(view::select(base, 0, 1), {2, 3})}});
  const SafeTensors read = read_safetensors(path);
  CHECK(read.tensors[0].second.to_vector() == std::vector<double>{4, 5, 6, 4, 5, 6});
  CHECK(read.tensors[1].second.to_vector() == std::vector<double>{1, 3, 4, 6});
  CHECK(read.tensors[2].second.to_vector() == std::vector<double>{1, 4, 2, 5, 3, 6});
}

TEST_CASE("Changing a tensor that was read does not change the file") {
  const Path path = scratch("private.safetensors");
  write_safetensors(path, {{"x", Tensor::full({4}, 1)}});
  const std::string before = read_text(path);
  Tensor x = read_safetensors(path).tensors[0].second;  // outlives the SafeTensors
  x.data<float>()[0] = 7;
  CHECK(x.to_vector() == std::vector<double>{7, 1, 1, 1});
  CHECK(read_text(path) == before);
}

TEST_CASE("Misaligned data of other writers is read") {
  const std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                             R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} )";
  const float value = 3.25f;
  std::string data = "\x05....";
  std::memcpy(data.data() + 1, &value, 4);
  const SafeTensors read = read_header(header, data);
  CHECK(read.tensors[0].first == "b");
  CHECK(read.tensors[0].second.item() == 5);
  CHECK(read.tensors[1].second.item() == 3.25);
}

TEST_CASE("Every truncation of a file is an error that names the file") {
  const Path path = scratch("whole.safetensors");
  write_safetensors(path, {{"w", Tensor::full({3}, 2)}, {"e", Tensor::empty({0})}}, {{"k", "v"}});
  const std::string whole = read_text(path);
  CHECK_NOTHROW(read_bytes(whole));
  for (size_t length = 0; length < whole.size(); ++length) {
    INFO(length << " of " << whole.size() << " bytes");
    CHECK_THROWS_WITH(read_bytes(whole.substr(0, length)), Contains("case.safetensors: "));
  }
  CHECK_THROWS_WITH(read_bytes(whole + "x"),
                    Contains("1 bytes of data follow the last tensor, which ends at offset 12"));
}

TEST_CASE("Any flipped bit of a file that we wrote is found") {
  const Path path = scratch("rot.safetensors");
  write_safetensors(path, {{"w", Tensor::full({3}, 2)}, {"e", Tensor::empty({0})}}, {{"k", "v"}});
  const std::string whole = read_text(path);
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    INFO("bit " << bit);
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    CHECK_THROWS_WITH(read_bytes(bytes), Contains("case.safetensors"));
  }
}

TEST_CASE("Any one byte of the header changed gives tensors or an Error") {
  const Path path = scratch("flip.safetensors");
  write_safetensors(path, {{"w", Tensor::full({3}, 2)}}, {{"k", "v"}});
  const std::string whole = read_text(path);
  int errors = 0;
  for (size_t i = 0; i < whole.size() - 12; ++i) {
    for (const char value : {'\0', '"', '{', ']', '9', '\x80', '\xff'}) {
      std::string bytes = whole;
      bytes[i] = value;
      try {
        for (const auto& [name, tensor] : read_bytes(bytes).tensors) tensor.to_vector();
      } catch (const Error& error) {
        CHECK(std::string(error.what()).find('\n') == std::string::npos);
        ++errors;
      }
    }
  }
  CHECK(errors > 500);
}

TEST_CASE("What the format forbids is refused by name") {
  struct Case {
    std::string header, data, message;
  };
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  const std::string deep = std::string(100000, '[');
  const Case cases[] = {
      {"", "", "does not begin with '{'"},
      {" {}", "", "does not begin with '{'"},
      {"[]", "", "does not begin with '{'"},
      {"{", "", "not valid JSON"},
      {"{}x", "", "not valid JSON"},
      {"{\"\xff\":1}", "", "not valid JSON"},
      {"{\"\xc0\x80\":1}", "", "not valid JSON"},
      {"{\"a\\ud800\":1}", "", "not valid JSON"},
      {R"({"x":1})", "", R"(a number where tensor "x" needs its dtype, shape and data_offsets)"},
      {R"({"x":)" + deep, "", R"(an array where tensor "x")"},
      {R"({"x":{"dtype":{"a":1}}})", "", R"(an object where tensor "x" needs its dtype's name)"},
      {R"({"x":{"shape":[]}})", "", R"(tensor "x" has no dtype)"},
      {R"({"x":{"dtype":"U8"}})", "", R"(tensor "x" has no shape)"},
      {R"({"x":{"dtype":"U8","shape":[]}})", "", R"(tensor "x" has no data_offsets)"},
      {R"({"x":{"dtype":"U8","dtype":"U8"}})", "", R"(has the field "dtype" twice)"},
      {R"({"x":{"shape":[],"shape":[]}})", "", R"(has the field "shape" twice)"},
      {R"({"x":{"color":"red"}})", "", R"(has an unknown field "color")"},
      {tensor("Q4", "[1]", "[0,1]"), "a", R"(has the dtype "Q4", which Weft does not know)"},
      {tensor("U8", "1", "[0,1]"), "a", "needs its shape"},
      {tensor("U8", "[-1]", "[0,1]"), "a", R"(-1 where tensor "x" needs its shape)"},
      {tensor("U8", "[1.5]", "[0,1]"), "a", R"(1.5 where tensor "x" needs its shape)"},
      {tensor("U8", "[null]", "[0,1]"), "a", R"(null where tensor "x" needs its shape)"},
      {tensor("U8", "[true]", "[0,1]"), "a", R"(a truth value where tensor "x" needs its shape)"},
      {tensor("U8", "[[1]]", "[0,1]"), "a", R"(an array where tensor "x")"},
      {tensor("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), "a", "more than 8 dimensions"},
      {tensor("U8", "[9223372036854775808]", "[0,1]"), "a", "a size of 9223372036854775808"},
      {tensor("F64", "[4294967296,4294967296]", "[0,0]"), "", "is too large"},
      {tensor("F64", "[1152921504606846976]", "[0,0]"), "", "is too large"},
      {tensor("U8", "[9223372036854775807,4,0]", "[0,0]"), "", "is too large"},
      {tensor("U8", "[0,9223372036854775807,4]", "[0,0]"), "", "is too large"},
      {tensor("U8", "[1]", "[0]"), "a", "needs two data_offsets"},
      {tensor("U8", "[1]", "[0,1,2]"), "a", "needs two data_offsets"},
      {tensor("U8", "[1]", "[0,-1]"), "a", "-1 where"},
      {tensor("U8", "[1]", "[0,18446744073709551616]"), "a", "18446744073709551616 where"},
      {tensor("U8", "[1]", "[1,2]"), "ab", "nothing fills the bytes from offset 0 to 1"},
      {tensor("U8", "[1]", "[1,0]"), "a", "ends at offset 0, before it begins at 1"},
      {tensor("F32", "[1]", "[0,3]"), "abc", R"(tensor "x", f32 [1], needs 4 bytes)"},
      {tensor("U8", "[2]", "[0,2]"), "a", "the file is cut short"},
      {tensor("BOOL", "[2]", "[0,2]"), "\x01\x02", "holds the byte 2 at index 1"},
      {R"({"__metadata__":{"a":1}})", "", R"(a number in "__metadata__")"},
      {R"({"__metadata__":{"a":{}}})", "", R"(in "__metadata__")"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "", R"(metadata "a" stands in the header twice)"},
      {R"({"__metadata__":{},"__metadata__":{}})", "",
       R"("__metadata__" stands in the header twice)"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "ab", R"(tensor "a" stands in the header twice)"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       "abc", R"(tensor "b" at offset 1 overlaps "a", which ends at 2)"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       "abc", R"(nothing fills the bytes from offset 1 to 2, where tensor "b" begins)"},
  };
  for (const Case& test : cases) {
    INFO(test.header.substr(0, 200));
    CHECK_THROWS_WITH(read_header(test.header, test.data),
                      Contains("case.safetensors: ") && Contains(test.message));
  }
}

TEST_CASE("What the format allows is read") {
  CHECK(read_header("{}").tensors.empty());
  CHECK(read_header("{}   \n").tensors.empty());
  CHECK(read_header(R"({"__metadata__":{"":""}})").metadata.at("") == "");
  const SafeTensors read = read_header(R"({"e":{"data_offsets":[1,1],"shape":[3,0],"dtype":"F64"},)"
                                       R"("s":{"shape":[],"dtype":"U8","data_offsets":[0,1]},)"
                                       R"("f":{"shape":[0],"dtype":"U8","data_offsets":[0,0]}})",
                                       "\x09");
  REQUIRE(read.tensors.size() == 3);
  CHECK(read.tensors[0].first == "f");
  CHECK(read.tensors[1].second.item() == 9);
  CHECK(read.tensors[2].second.shape() == Shape{3, 0});
}

TEST_CASE("A header that claims an absurd length costs nothing") {
  for (const uint64_t length : {uint64_t{100'000'001}, std::numeric_limits<uint64_t>::max(),
                                std::numeric_limits<uint64_t>::max() - 7}) {
    std::string bytes(16, '{');
    std::memcpy(bytes.data(), &length, 8);
    CHECK_THROWS_WITH(read_bytes(bytes), Contains("at most 100000000 are allowed"));
  }
  std::string bytes(16, '{');
  const uint64_t length = 9;
  std::memcpy(bytes.data(), &length, 8);
  CHECK_THROWS_WITH(read_bytes(bytes), Contains("9 bytes long, but only 8 follow"));
}

TEST_CASE("Things that are no files are named") {
  CHECK_THROWS_WITH(read_safetensors("/nonexistent/x"),
                    "cannot read /nonexistent/x: No such file or directory");
  CHECK_THROWS_WITH(read_safetensors("/"), "cannot read /: Is a directory");
  CHECK_THROWS_WITH(read_safetensors("/dev/null"), "cannot read /dev/null: not a regular file");
}

TEST_CASE("Names that the format cannot hold are refused before anything is written") {
  const Path path = scratch("never.safetensors");
  const Tensor x = Tensor::scalar(1);
  CHECK_THROWS_WITH(write_safetensors(path, {{"x", x}, {"x", x}}), Contains("\"x\" is taken"));
  CHECK_THROWS_WITH(write_safetensors(path, {{"__metadata__", x}}), Contains("is taken"));
  CHECK_THROWS_WITH(write_safetensors(path, {{"\xff", x}}), Contains("not UTF-8"));
  CHECK_THROWS_WITH(write_safetensors(path, {{"x", x}}, {{"k", "\xff"}}), Contains("not UTF-8"));
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("A full disk is an error and leaves the older file and nothing else") {
  const Path directory = scratch("full");
  make_directories(directory);
  const Path path = directory / "model.safetensors";
  write_safetensors(path, {{"x", Tensor::scalar(1)}});

  // The largest file this process may write: the write that crosses it comes back short, the next
  // one fails, as on a disk that is full.
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {10000, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    write_safetensors(path, {{"x", Tensor::zeros({100, 100})}});
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  CHECK_THAT(message, Contains("cannot write ") && Contains("File too large"));
  CHECK(read_safetensors(path).tensors[0].second.item() == 1);
  const auto files = std::filesystem::directory_iterator(directory);
  CHECK(std::distance(begin(files), end(files)) == 1);
}
