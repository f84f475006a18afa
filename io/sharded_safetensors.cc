#include "io/sharded_safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "core/philox.h"
#include "core/view.h"
#include "io/json_field.h"
#include "io/quote.h"

namespace weft::io {
namespace {

using json = nlohmann::json;

constexpr const char* kFormat = "weft-sharded";
constexpr int kVersion = 1;
constexpr size_t kLengthBytes = 8;  // of a safetensors header's length

std::vector<int64_t> list_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

/// A slice's name in its file.
std::string key_of(const std::string& name, const Shape& offset) {
  return fmt::format("{}@{}", name, fmt::join(offset, ","));
}

/// tf32 is stored as f32.
DType stored(DType dtype) { return dtype == DType::tf32 ? DType::f32 : dtype; }

std::span<const std::byte> bytes_of(const Tensor& x) {
  return {static_cast<const std::byte*>(x.raw()), x.nbytes()};
}

/// A safetensors file's length and header.
std::span<const std::byte> header_of(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < kLengthBytes) return bytes;
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  return bytes.first(kLengthBytes + std::min<uint64_t>(length, bytes.size() - kLengthBytes));
}

void copy_box(const std::byte* from, const Strides& from_strides, std::byte* to,
              const Strides& to_strides, const Shape& size, int64_t item, int dim = 0) {
  const bool is_row = dim + 1 == size.size() && from_strides[dim] == 1 && to_strides[dim] == 1;
  if (is_row || dim == size.size()) {
    std::memcpy(to, from, static_cast<size_t>(item * (is_row ? size[dim] : 1)));
    return;
  }
  for (int64_t i = 0; i < size[dim]; ++i) {
    copy_box(from + i * from_strides[dim] * item, from_strides, to + i * to_strides[dim] * item,
             to_strides, size, item, dim + 1);
  }
}

/// The numbers modulo the prime 2^61 - 1.
constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
uint64_t times(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b % kPrime);
}

/// A random number for each coordinate along each dimension.
uint64_t number_of(int dim, int64_t coordinate) {
  return Philox(0x736c6963, static_cast<uint64_t>(dim), static_cast<uint64_t>(coordinate))
      .below(kPrime);
}

/// The size of a box by the measure that gives a box [a, b) x [c, d) x ...
/// (h(b) - h(a)) (h'(d) - h'(c)) ..., with random h.
uint64_t measure(const Shape& offset, const Shape& size) {
  uint64_t product = 1;
  for (int d = 0; d < size.size(); ++d) {
    const uint64_t end = number_of(d, offset[d] + size[d]), begin = number_of(d, offset[d]);
    product = times(product, (end + kPrime - begin) % kPrime);
  }
  return product;
}

/// Whether the boxes fill the tensor, each element once. Then their measures add up to the
/// tensor's; else that is so by a chance of about 2^-58 (Schwartz and Zippel).
bool tile(const ShardIndex::Entry& entry) {
  uint64_t sum = 0;
  for (const ShardIndex::Place& place : entry.slices) {
    sum = (sum + measure(place.offset, place.size)) % kPrime;
  }
  return sum == measure(Shape::filled(entry.shape.size(), 0), entry.shape);
}

Shape shape_field(const json& object, const char* key) {
  const auto sizes = field<std::vector<int64_t>>(object, key);
  WEFT_CHECK(sizes.size() <= kMaxDims, "a shape of {} dimensions, at most {} are possible",
             sizes.size(), kMaxDims);
  return Shape(sizes);
}

/// Throws Error for what cannot be so, without the index's name.
void check_entry(const std::string& name, const ShardIndex::Entry& entry, size_t files) {
  const bool is_possible = std::ranges::all_of(entry.shape, [](int64_t n) { return n >= 0; });
  WEFT_CHECK(is_possible && try_numel(entry.shape), "tensor {} has the shape {}", quote(name),
             entry.shape);
  double elements = 0;
  for (const ShardIndex::Place& place : entry.slices) {
    bool is_inside = place.offset.size() == entry.shape.size() &&
                     place.size.size() == entry.shape.size() && place.file < files;
    for (int d = 0; is_inside && d < entry.shape.size(); ++d) {
      is_inside = place.offset[d] >= 0 && place.offset[d] <= entry.shape[d] && place.size[d] >= 0 &&
                  place.size[d] <= entry.shape[d] - place.offset[d];
    }
    WEFT_CHECK(is_inside,
               "a slice of tensor {} of shape {} has offset {}, size {} and file {} of {}",
               quote(name), entry.shape, place.offset, place.size, place.file, files);
    elements += static_cast<double>(numel(place.size));
  }
  WEFT_CHECK(tile(entry),
             "the slices of tensor {} overlap or leave holes: they have {} elements, {} has {}",
             quote(name), elements, entry.shape, numel(entry.shape));
}

/// Throws Error, without the index's name, for whatever is not an index.
ShardIndex parse_index(const json& all) {
  WEFT_CHECK(all.is_object() && all.value("format", json()) == kFormat,
             "expected the format \"{}\"", kFormat);
  const json& version = field(all, "version");
  WEFT_CHECK(version == kVersion, "it has version {}; this program reads version {}",
             version.dump(), kVersion);
  ShardIndex index;
  read_field(all, "world_size", index.world_size);
  read_field(all, "strategy", index.strategy);
  read_field(all, "metadata", index.metadata);
  for (const json& file : list_field(all, "files")) {
    const auto name = field<std::string>(file, "name");
    WEFT_CHECK(Path(name).filename() == name && name != "." && name != "..",
               "{} is not the name of a file beside it", quote(name));
    index.files.push_back(
        {name, field<uint64_t>(file, "bytes"), field<std::string>(file, "header_crc32")});
  }
  WEFT_CHECK(index.world_size == static_cast<int64_t>(index.files.size()),
             "{} files of a world of {}", index.files.size(), index.world_size);
  for (const auto& [name, entry] : field(all, "tensors").items()) {
    ShardIndex::Entry& ours = index.tensors[name];
    ours.dtype = parse_dtype(field<std::string>(entry, "dtype"));
    ours.shape = shape_field(entry, "shape");
    for (const json& slice : list_field(entry, "slices")) {
      ours.slices.push_back({field<size_t>(slice, "file"), shape_field(slice, "offset"),
                             shape_field(slice, "size"), field<std::string>(slice, "crc32")});
    }
    check_entry(name, ours, index.files.size());
  }
  return index;
}

ShardIndex read_index(const Path& directory) {
  const Path file = directory / kShardIndex;
  const json all = parse_checked_json(read_text(file), file);
  try {
    return parse_index(all);
  } catch (const json::exception& error) {
    WEFT_FAIL("{} is damaged: {}", file.string(), error.what());
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", file.string(), error.what());
  }
}

/// The generation of a file of that name; -1 for other files.
int generation_of(const std::string& name) {
  int rank = 0, world_size = 0, generation = 0;
  const int found = std::sscanf(name.c_str(), "shard-%9d-of-%9d-v%9d.safetensors", &rank,
                                &world_size, &generation);
  return found == 3 && name == shard_name(rank, world_size, generation) ? generation : -1;
}

}  // namespace

std::string shard_name(int rank, int world_size, int generation) {
  return fmt::format("shard-{}-of-{}-v{}.safetensors", rank, world_size, generation);
}

int next_generation(const Path& directory) {
  int next = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    next = std::max(next, generation_of(entry.path().filename().string()) + 1);
  }
  return next;
}

json write_shard(const Path& file, const std::vector<Slice>& slices) {
  NamedTensors tensors;
  json described = json::object();
  for (const auto& [name, shape, offset, values] : slices) {
    tensors.emplace_back(key_of(name, offset), values);
    const Tensor& x = values;
    WEFT_CHECK(x.is_contiguous(), "write_shard: {} is not contiguous", quote(name));
    json& entry = described[name];
    entry["dtype"] = weft::name(stored(x.dtype()));
    entry["shape"] = list_of(shape);
    entry["slices"].push_back({{"offset", list_of(offset)},
                               {"size", list_of(x.shape())},
                               {"crc32", checksum_of(bytes_of(x))}});
  }
  FileWriter writer(file);
  write_safetensors(writer, tensors, {{"format", "pt"}});
  const FileSummary summary = writer.finish();
  return {{"name", file.filename().string()},
          {"bytes", summary.bytes},
          {"header_crc32", checksum_of(header_of(MappedFile(file)))},
          {"tensors", described}};
}

void write_shard_index(const Path& directory, const ShardedState& state) {
  json all = {{"format", kFormat},
              {"version", kVersion},
              {"world_size", state.shards.size()},
              {"strategy", state.strategy},
              {"metadata", state.metadata},
              {"files", json::array()},
              {"tensors", json::object()}};
  std::set<std::string> kept;
  for (const json& shard : state.shards) {
    const size_t number = all["files"].size();
    all["files"].push_back({{"name", shard.at("name")},
                            {"bytes", shard.at("bytes")},
                            {"header_crc32", shard.at("header_crc32")}});
    kept.insert(shard.at("name").get<std::string>());
    for (const auto& [name, part] : shard.at("tensors").items()) {
      json& entry = all["tensors"][name];
      for (const char* key : {"dtype", "shape"}) {
        WEFT_CHECK(!entry.contains(key) || entry[key] == part.at(key),
                   "{}: tensor {} has {} {} for some ranks, {} for others", directory.string(),
                   quote(name), key, entry[key].dump(), part.at(key).dump());
        entry[key] = part.at(key);
      }
      for (json slice : part.at("slices")) {
        slice["file"] = number;
        entry["slices"].push_back(std::move(slice));
      }
    }
  }
  const Path file = directory / kShardIndex;
  read_at(file.string(), [&] { parse_index(all); });
  for (const json& shard : all["files"]) {
    const Path path = directory / shard.at("name").get<std::string>();
    std::error_code error;
    WEFT_CHECK(std::filesystem::file_size(path, error) == shard.at("bytes") && !error,
               "cannot find {} as it was written: ranks save into a directory that they share",
               path.string());
  }
  write_file_atomically(
      file, [&](FileWriter& writer) { writer.write(checked_json_text(std::move(all))); });
  std::vector<Path> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (generation_of(name) >= 0 && !kept.contains(name)) left.push_back(entry.path());
  }
  for (const Path& path : left) remove_tree(path);
}

bool is_sharded_state(const Path& directory) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(directory / kShardIndex, ignored);
}

/// A file that was opened.
class ShardedReader::File {
 public:
  File(const Path& directory, const ShardIndex::File& expected) : path_(directory / expected.name) {
    const auto mapping = std::make_shared<MappedFile>(path_);
    const std::span<std::byte> bytes = mapping->bytes();
    WEFT_CHECK(bytes.size() == expected.bytes, "{} is damaged: it has {} bytes, {} were written",
               path_.string(), bytes.size(), expected.bytes);
    const std::string found = checksum_of(header_of(*mapping));
    WEFT_CHECK(found == expected.header_checksum,
               "{} is damaged, or of another save: its header's CRC-32 is {}, {} was written",
               path_.string(), found, expected.header_checksum);
    for (auto& [key, tensor] : read_safetensors(mapping).tensors) {
      slices_.emplace(key, Slice{tensor});
    }
  }

  /// Throws Error unless it is what was written.
  const Tensor& slice(const std::string& key, DType dtype, const ShardIndex::Place& place) {
    const auto found = slices_.find(key);
    WEFT_CHECK(found != slices_.end(), "{} holds no {}", path_.string(), quote(key));
    auto& [values, is_verified] = found->second;
    WEFT_CHECK(values.dtype() == dtype && values.shape() == place.size,
               "{}: {} is {}, expected {} {}", path_.string(), quote(key), values, dtype,
               place.size);
    if (!is_verified) {
      const std::string sum = checksum_of(bytes_of(values));
      WEFT_CHECK(sum == place.checksum, "{} is damaged: the CRC-32 of {} is {}, {} was written",
                 path_.string(), quote(key), sum, place.checksum);
      is_verified = true;
    }
    return values;
  }

 private:
  struct Slice {
    Tensor values;
    bool is_verified = false;
  };
  const Path path_;
  std::unordered_map<std::string, Slice> slices_;
};

ShardedReader::ShardedReader(const Path& directory)
    : directory_(directory), index_(read_index(directory)), files_(index_.files.size()) {}

ShardedReader::~ShardedReader() = default;

const ShardIndex::Entry& ShardedReader::entry(const std::string& name) const {
  const auto found = index_.tensors.find(name);
  WEFT_CHECK(found != index_.tensors.end(), "{} holds no tensor {}", directory_.string(),
             quote(name));
  return found->second;
}

ShardedReader::File& ShardedReader::open(size_t number) {
  if (!files_[number]) files_[number] = std::make_unique<File>(directory_, index_.files[number]);
  return *files_[number];
}

void ShardedReader::read(const std::string& name, const Shape& offset, const Tensor& target) {
  const auto& [dtype, shape, slices] = entry(name);
  WEFT_CHECK(target.dtype() == dtype && target.dim() == shape.size() &&
                 offset.size() == shape.size() && target.device().type == DeviceType::cpu,
             "{}: {} is {} {}, and is read at {} into {}", directory_.string(), quote(name), dtype,
             shape, offset, target);
  for (int d = 0; d < shape.size(); ++d) {
    WEFT_CHECK(offset[d] >= 0 && offset[d] <= shape[d] - target.size(d),
               "{}: {} has the shape {}, and is read at {} into {}", directory_.string(),
               quote(name), shape, offset, target);
  }
  for (const ShardIndex::Place& place : slices) {
    // What the two boxes have in common.
    Shape begin = offset, size = target.shape();
    for (int d = 0; d < shape.size(); ++d) {
      begin[d] = std::max(offset[d], place.offset[d]);
      size[d] = std::min(offset[d] + target.size(d), place.offset[d] + place.size[d]) - begin[d];
    }
    if (std::ranges::any_of(size, [](int64_t n) { return n <= 0; })) continue;
    const Tensor& values = open(place.file).slice(key_of(name, place.offset), dtype, place);
    Tensor from = values, to = target;
    for (int d = 0; d < shape.size(); ++d) {
      from = view::narrow(from, d, begin[d] - place.offset[d], size[d]);
      to = view::narrow(to, d, begin[d] - offset[d], size[d]);
    }
    copy_box(static_cast<const std::byte*>(from.raw()), from.strides(),
             static_cast<std::byte*>(to.raw()), to.strides(), size,
             static_cast<int64_t>(itemsize(dtype)));
    bytes_read_ += static_cast<int64_t>(values.nbytes());
  }
  target.bump_version();
}

Tensor ShardedReader::read(const std::string& name) {
  const ShardIndex::Entry& all = entry(name);
  // Looked at before memory is taken for what they claim to hold.
  for (const ShardIndex::Place& place : all.slices) {
    open(place.file).slice(key_of(name, place.offset), all.dtype, place);
  }
  const Tensor whole = Tensor::empty(all.shape, all.dtype);
  read(name, Shape::filled(all.shape.size(), 0), whole);
  return whole;
}

}  // namespace weft::io
