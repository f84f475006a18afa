#include "io/safetensors_index.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

using namespace weft;
using namespace weft::io;
using Catch::Matchers::Contains;

namespace {

Path fresh(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  const Path path = Path(directory ? directory : "/tmp") / name;
  std::filesystem::remove_all(path);
  return path;
}

const std::vector<PendingTensor> kTensors = {{"a", DType::f32, {10}},
                                             {"b", DType::f32, {5}},
                                             {"c", DType::f32, {100}},
                                             {"d", DType::f32, {3}}};

Tensor make(const std::string& name) {
  for (const auto& [known, dtype, shape] : kTensors) {
    if (known == name) return Tensor::full(shape, name[0], dtype);
  }
  WEFT_FAIL("no {}", name);
}

void write_text(const Path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

NamedTensors read(const Path& index) {
  return read_indexed(read_weight_index(index),
                      [](const Path& part) { return read_safetensors(part).tensors; });
}

}  // namespace

TEST_CASE("weights are spread over files as Hugging Face spreads them, and read back") {
  const Path directory = fresh("spread");
  const auto files = write_indexed(directory, kTensors, 60, make, {{"format", "pt"}});
  // 40 and 20 bytes fit in 60; 400 have a file of their own.
  CHECK(files == std::vector<std::string>{
                     "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                     "model-00003-of-00003.safetensors", "model.safetensors.index.json"});
  CHECK(read_text(directory / files[3]) ==
        "{\n  \"metadata\": {\n    \"total_size\": 472\n  },\n  \"weight_map\": {\n"
        "    \"a\": \"model-00001-of-00003.safetensors\",\n"
        "    \"b\": \"model-00001-of-00003.safetensors\",\n"
        "    \"c\": \"model-00002-of-00003.safetensors\",\n"
        "    \"d\": \"model-00003-of-00003.safetensors\"\n  }\n}\n");
  const NamedTensors all = read(directory / files[3]);
  REQUIRE(all.size() == 4);
  for (const auto& [name, tensor] : all) {
    CHECK(tensor.to_vector() == make(name).to_vector());
  }
  CHECK_THROWS_WITH(write_indexed(directory, kTensors, 60, make),
                    Contains("spread already holds model"));
  const Path one = fresh("one");
  CHECK(write_indexed(one, kTensors, 1000, make) == std::vector<std::string>{"model.safetensors"});
  CHECK(read_safetensors(one / "model.safetensors").tensors.size() == 4);
}

TEST_CASE("an index of weights that cannot be is refused by name") {
  const Path directory = fresh("hostile");
  write_indexed(directory, kTensors, 60, make);
  const Path file = directory / "model.safetensors.index.json";
  const std::string whole = read_text(file);
  for (size_t size = 0; size + 2 < whole.size(); ++size) {
    INFO("cut to " << size);
    write_text(file, whole.substr(0, size));
    CHECK_THROWS_WITH(read(file), Contains("model.safetensors.index.json"));
  }
  const auto refused = [&](const std::string& text, const std::string& message) {
    INFO(text);
    write_text(file, text);
    CHECK_THROWS_WITH(read(file), Contains(message));
  };
  refused("[]", "expected an object with a \"weight_map\"");
  refused(R"({"weight_map": []})", "expected an object with a \"weight_map\"");
  refused(R"({"weight_map": {}})", "the \"weight_map\" is empty");
  refused(R"({"weight_map": {"a": 1}})", "tensor \"a\" lies in \"1\", expected a file's name");
  for (const char* name : {"../a", "/etc/passwd", "", "..", "x/y"}) {
    refused(fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", name),
            "expected a file beside the index");
  }
  refused(R"({"weight_map": {"a": "none.safetensors"}})", "none.safetensors: No such file");
  refused(R"({"weight_map": {"z": "model-00001-of-00003.safetensors"}})",
          "model-00001-of-00003.safetensors lacks the tensor \"z\"");
  refused(std::string(10000, '['), "nested more than 32 deep");
}

TEST_CASE("sizes are read in decimal and binary units") {
  CHECK(parse_bytes("100MB") == 100'000'000);
  CHECK(parse_bytes("2GiB") == int64_t{2} << 30);
  CHECK(parse_bytes("1.5kb") == 1500);
  CHECK(parse_bytes("4096") == 4096);
  for (const char* text : {"", "MB", "-1MB", "0", "12XB", "1e40TB", "nan", "5 MB"}) {
    INFO(text);
    CHECK_THROWS_WITH(parse_bytes(text), Contains("expected a size such as 100MB"));
  }
}
