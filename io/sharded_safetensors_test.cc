#include "io/sharded_safetensors.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "core/view.h"

using namespace weft;
using namespace weft::io;
using Catch::Matchers::Contains;

namespace {

Path fresh(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  const Path path = Path(directory ? directory : "/tmp") / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

/// Element i is `first` + i.
Tensor numbered(const Shape& shape, int64_t first = 0) {
  const Tensor x = Tensor::empty(shape, DType::i64);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<int64_t>()[i] = first + i;
  return x;
}

/// The box of a tensor, on its own.
Slice slice_of(const std::string& name, const Tensor& whole, const Shape& offset,
               const Shape& size) {
  Tensor box = whole;
  for (int d = 0; d < whole.dim(); ++d) box = view::narrow(box, d, offset[d], size[d]);
  const Tensor values = Tensor::empty(size, whole.dtype());
  int64_t next = 0;
  for_each_offset(size, box.strides(),
                  [&](int64_t at) { values.data<int64_t>()[next++] = box.data<int64_t>()[at]; });
  return {name, whole.shape(), offset, values};
}

const Tensor kMatrix = numbered({5, 4}), kCube = numbered({2, 3, 4}, 100), kCount = numbered({}, 7);

/// A state of three ranks; `first` tells one from another.
void write_state(const Path& directory, int generation = 0, const Tensor& matrix = kMatrix) {
  const std::vector<std::vector<Slice>> ranks = {
      {slice_of("m", matrix, {0, 0}, {2, 4}), slice_of("m", matrix, {2, 0}, {1, 1})},
      {slice_of("m", matrix, {2, 1}, {1, 3}),
       slice_of("cube", kCube, {0, 0, 0}, {2, 3, 2}),
       {"count", {}, {}, kCount}},
      {slice_of("m", matrix, {3, 0}, {2, 4}), slice_of("cube", kCube, {0, 0, 2}, {2, 3, 2})}};
  ShardedState state{.shards = {}, .strategy = "fsdp", .metadata = {{"key", "value"}}};
  for (int r = 0; r < 3; ++r) {
    state.shards.push_back(write_shard(directory / shard_name(r, 3, generation), ranks[r]));
  }
  write_shard_index(directory, state);
}

std::vector<std::string> listing(const Path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void write_text(const Path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Everything in a state.
void read_all(const Path& directory) {
  ShardedReader reader(directory);
  for (const auto& [name, entry] : reader.index().tensors) reader.read(name);
}

}  // namespace

TEST_CASE("a state in slices is read back whole, and any box of it") {
  const Path directory = fresh("slices");
  write_state(directory);
  CHECK(listing(directory) == std::vector<std::string>{"index.json", shard_name(0, 3, 0),
                                                       shard_name(1, 3, 0), shard_name(2, 3, 0)});
  ShardedReader reader(directory);
  CHECK(reader.index().world_size == 3);
  CHECK(reader.index().strategy == "fsdp");
  CHECK(reader.index().metadata == Metadata{{"key", "value"}});
  CHECK(reader.read("m").to_vector() == kMatrix.to_vector());
  CHECK(reader.read("cube").to_vector() == kCube.to_vector());
  CHECK(reader.read("count").item() == 7);
  // Every box of the matrix, into a strided place.
  for (int64_t a = 0; a <= 5; ++a) {
    for (int64_t b = a; b <= 5; ++b) {
      for (int64_t c = 0; c <= 4; ++c) {
        for (int64_t d = c; d <= 4; ++d) {
          const Tensor wide = Tensor::full({b - a, 9}, -1, DType::i64);
          const Tensor place = view::narrow(wide, 1, 3, d - c);
          reader.read("m", {a, c}, place);
          std::vector<double> expected(wide.numel(), -1);
          for (int64_t i = a; i < b; ++i) {
            for (int64_t j = c; j < d; ++j) {
              expected[(i - a) * 9 + 3 + j - c] = static_cast<double>(i * 4 + j);
            }
          }
          REQUIRE(wide.to_vector() == expected);
        }
      }
    }
  }
  CHECK_THROWS_WITH(reader.read("other"), Contains("slices holds no tensor \"other\""));
  CHECK_THROWS_WITH(reader.read("m", {4, 0}, Tensor::empty({2, 4}, DType::i64)),
                    Contains("\"m\" has the shape [5, 4], and is read at [4, 0]"));
  CHECK_THROWS_WITH(reader.read("m", {0, 0}, Tensor::empty({2, 4})), Contains("\"m\" is i64"));
}

TEST_CASE("what is not asked for is not read") {
  const Path directory = fresh("part");
  write_state(directory);
  std::filesystem::remove(directory / shard_name(0, 3, 0));
  write_text(directory / shard_name(1, 3, 0), "no such thing");
  ShardedReader reader(directory);
  const Tensor rows = Tensor::empty({2, 4}, DType::i64);
  reader.read("m", {3, 0}, rows);
  CHECK(rows.to_vector() == std::vector<double>{12, 13, 14, 15, 16, 17, 18, 19});
  CHECK(reader.bytes_read() == 8 * 8);
}

TEST_CASE("a state takes the place of an older one when its index is there") {
  const Path directory = fresh("again");
  write_state(directory);
  CHECK(next_generation(directory) == 1);
  const Tensor other = numbered({5, 4}, 1000);
  // Shards alone change nothing.
  write_shard(directory / shard_name(0, 2, 1), {slice_of("m", other, {0, 0}, {2, 4})});
  CHECK(ShardedReader(directory).read("m").to_vector() == kMatrix.to_vector());
  CHECK(next_generation(directory) == 2);
  write_state(directory, 2, other);
  CHECK(ShardedReader(directory).read("m").to_vector() == other.to_vector());
  CHECK(listing(directory) == std::vector<std::string>{"index.json", shard_name(0, 3, 2),
                                                       shard_name(1, 3, 2), shard_name(2, 3, 2)});
  // A state that is none leaves it.
  const auto shard =
      write_shard(directory / shard_name(0, 1, 3), {slice_of("m", other, {0, 0}, {2, 4})});
  CHECK_THROWS_WITH(write_shard_index(directory, {{shard}, "single", {}}),
                    Contains("overlap or leave holes: they have 8 elements, [5, 4] has 20"));
  CHECK(ShardedReader(directory).read("m").to_vector() == other.to_vector());
}

TEST_CASE("a flipped bit of any byte and any cut of any file is found and its file named") {
  const Path directory = fresh("rot");
  write_state(directory);
  for (const std::string& name : listing(directory)) {
    const std::string whole = read_text(directory / name);
    for (size_t at = 0; at < whole.size(); ++at) {
      INFO(name << ", byte " << at);
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << at % 8);
      write_text(directory / name, bytes);
      CHECK_THROWS_WITH(read_all(directory), Contains(name));
    }
    for (size_t size = 0; size < whole.size(); ++size) {
      INFO(name << ", cut to " << size << " bytes");
      write_text(directory / name, whole.substr(0, size));
      CHECK_THROWS_WITH(read_all(directory), Contains(name));
    }
    write_text(directory / name, whole);
  }
  read_all(directory);
}

TEST_CASE("a part that is missing, or of another save, is named") {
  const Path directory = fresh("parts"), other = fresh("other");
  write_state(directory);
  write_state(other, 0, numbered({5, 4}, 1000));
  const std::string name = shard_name(2, 3, 0);
  std::filesystem::copy(other / name, directory / name,
                        std::filesystem::copy_options::overwrite_existing);
  CHECK_THROWS_WITH(read_all(directory), Contains(name + " is damaged: the CRC-32 of \"m@3,0\""));
  std::filesystem::copy(directory / shard_name(0, 3, 0), directory / name,
                        std::filesystem::copy_options::overwrite_existing);
  CHECK_THROWS_WITH(read_all(directory), Contains(name + " is damaged"));
  std::filesystem::remove(directory / name);
  CHECK_THROWS_WITH(read_all(directory),
                    Contains("cannot read ") && Contains(name + ": No such file"));
  CHECK_THROWS_WITH(ShardedReader(directory / "none"), Contains("none/index.json"));
}

TEST_CASE("an index that cannot be is refused, whatever its checksum says") {
  const Path directory = fresh("hostile");
  write_state(directory);
  nlohmann::json whole = nlohmann::json::parse(read_text(directory / kShardIndex));
  whole.erase("crc32");
  const auto refused = [&](const std::function<void(nlohmann::json&)>& change,
                           const std::string& message) {
    nlohmann::json index = whole;
    change(index);
    write_text(directory / kShardIndex, checked_json_text(index));
    INFO(message);
    CHECK_THROWS_WITH(read_all(directory), Contains("hostile") && Contains(message));
  };
  using J = nlohmann::json;
  const auto m = [](J& index) -> J& { return index["tensors"]["m"]; };
  refused([&](J& j) { m(j)["slices"].erase(1); }, "the slices of tensor \"m\" overlap or leave");
  refused([&](J& j) { m(j)["slices"].push_back(m(j)["slices"][0]); }, "they have 28 elements");
  refused([&](J& j) { m(j)["slices"][0]["offset"] = {1, 0}; }, "overlap or leave holes: they have");
  refused([&](J& j) { m(j)["slices"][0]["offset"] = {4, 0}; }, "has offset [4, 0], size [2, 4]");
  refused([&](J& j) { m(j)["slices"][0]["offset"] = {-1, 0}; }, "has offset [-1, 0]");
  refused([&](J& j) { m(j)["slices"][0]["offset"] = {0}; }, "has offset [0]");
  refused([&](J& j) { m(j)["slices"][0]["file"] = 3; }, "and file 3 of 3");
  refused([&](J& j) { m(j)["slices"][0]["file"] = 1; }, "holds no \"m@0,0\"");
  refused([&](J& j) { m(j)["shape"] = {1LL << 40, 1LL << 40}; }, "tensor \"m\" has the shape");
  refused([&](J& j) { m(j)["shape"] = {5, -4}; }, "has the shape [5, -4]");
  refused([&](J& j) { m(j)["shape"] = std::vector<int>(9, 1); }, "a shape of 9 dimensions");
  refused([&](J& j) { m(j)["dtype"] = "f32"; }, "expected f32");
  refused([&](J& j) { m(j)["dtype"] = "f33"; }, "f33");
  refused([&](J& j) { m(j)["slices"][0]["crc32"] = "00000000"; }, "00000000 was written");
  refused([&](J& j) { j["files"][1]["name"] = "../secret"; }, "is not the name of a file beside");
  refused([&](J& j) { j["files"][1]["bytes"] = 1; }, "1 were written");
  refused([&](J& j) { j["format"] = "else"; }, "expected the format \"weft-sharded\"");
  refused([&](J& j) { j["version"] = 9; }, "it has version 9");
  for (const char* key : {"files", "metadata", "strategy", "tensors", "version", "world_size"}) {
    refused([&](J& j) { j.erase(key); }, key);
    refused([&](J& j) { j[key] = true; }, "index.json");
  }
  // A claim that nothing backs costs nothing.
  refused(
      [&](J& j) {
        m(j)["shape"] = {1LL << 30, 1LL << 20};
        m(j)["slices"] = {{{"file", 0},
                           {"offset", {0, 0}},
                           {"size", {1LL << 30, 1LL << 20}},
                           {"crc32", "00000000"}}};
      },
      "expected i64");
  std::string deep = "{\"crc32\":\"00000000\",\"x\":" + std::string(100, '[');
  const std::string sum = checksum_text(crc32_of(std::as_bytes(std::span(deep))));
  deep.replace(deep.find("00000000"), 8, sum);
  write_text(directory / kShardIndex, deep);
  CHECK_THROWS_WITH(ShardedReader(directory), Contains("nested more than 32 deep"));
}

TEST_CASE("a save interrupted before any operation leaves the older state or the new one") {
  int interruptions = 0;
  for (bool completed = false; !completed; ++interruptions) {
    INFO("operation " << interruptions);
    const Path directory = fresh("crash");
    write_state(directory);
    const Tensor other = numbered({5, 4}, 1000);
    int operations = 0;
    set_file_operation_hook([&](std::string_view, const Path&) {
      if (operations++ == interruptions) throw std::runtime_error("stopped");
    });
    try {
      write_state(directory, 1, other);
      completed = true;
    } catch (const std::runtime_error&) {
    }
    set_file_operation_hook(nullptr);
    const auto found = ShardedReader(directory).read("m").to_vector();
    CHECK((found == kMatrix.to_vector() || found == other.to_vector()));
    read_all(directory);
    // The next one clears up.
    write_state(directory, next_generation(directory));
    CHECK(listing(directory).size() == 4);
  }
  CHECK(interruptions > 12);
}
