#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "io/quote.h"

namespace weft::io {
namespace {

using json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors are little endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLargestHeader = 100'000'000;
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kChecksumKey = "weft.checksum";
constexpr std::string_view kChecksumPrefix = "crc32:";

// tf32 comes after f32, so that "F32" reads as f32.
using NamedDType = std::pair<std::string_view, DType>;
constexpr NamedDType kNames[] = {
    {"F64", DType::f64},        {"F32", DType::f32},      {"F32", DType::tf32},
    {"F16", DType::f16},        {"BF16", DType::bf16},    {"F8_E4M3", DType::f8e4m3},
    {"F8_E5M2", DType::f8e5m2}, {"I64", DType::i64},      {"I32", DType::i32},
    {"U8", DType::u8},          {"BOOL", DType::boolean},
};
static_assert(std::size(kNames) == std::size(kAllDTypes));

struct Entry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<uint64_t> offsets;
};

/// What the header says of a tensor, in the order of HeaderReader::Field.
constexpr struct {
  std::string_view name, expected;
} kFields[] = {{"dtype", "dtype's name"},
               {"shape", "shape, an array of sizes"},
               {"data_offsets", "data_offsets, an array of two numbers"}};

/// Builds entries from the header as it is parsed, so that nothing but entries takes memory.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderReader(std::string file, std::vector<Entry>& entries, Metadata& metadata)
      : file_(std::move(file)), entries_(entries), metadata_(metadata) {}

  bool start_object(size_t) override {
    if (depth_ == 0 || (depth_ == 1 && !in_array_)) {
      ++depth_;
      return true;
    }
    return unexpected("an object");
  }

  bool end_object() override {
    if (depth_ == 2 && !in_metadata_) {
      for (size_t i = 0; i < std::size(kFields); ++i) {
        check(seen_[i], fmt::format("has no {}", kFields[i].name));
      }
    }
    --depth_;
    return true;
  }

  bool key(std::string& text) override {
    if (depth_ == 1) {
      in_metadata_ = text == kMetadataKey;
      if (in_metadata_) {
        WEFT_CHECK(!std::exchange(has_metadata_, true), "{}: \"{}\" stands in the header twice",
                   file_, kMetadataKey);
      } else {
        entries_.emplace_back().name = std::move(text);
        seen_ = {};
      }
    } else if (in_metadata_) {
      const auto [place, is_new] = metadata_.try_emplace(text);
      WEFT_CHECK(is_new, "{}: metadata {} stands in the header twice", file_, quote(text));
      metadata_value_ = &place->second;
    } else {
      const auto known =
          std::ranges::find_if(kFields, [&](const auto& field) { return field.name == text; });
      check(known != std::end(kFields), "has an unknown field " + quote(text));
      field_ = static_cast<Field>(known - kFields);
      check(!std::exchange(seen_[field_], true), "has the field " + quote(text) + " twice");
    }
    return true;
  }

  bool string(std::string& text) override {
    if (depth_ != 2 || in_array_) return unexpected("a string");
    if (in_metadata_) {
      *metadata_value_ = std::move(text);
      return true;
    }
    if (field_ != kDType) return unexpected("a string");
    const auto row = std::ranges::find(kNames, text, &NamedDType::first);
    check(row != std::end(kNames), "has the dtype " + quote(text) + ", which Weft does not know");
    entries_.back().dtype = row->second;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == kDType) return unexpected("an array");
    in_array_ = true;
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    check(field_ != kOffsets || entries_.back().offsets.size() == 2, "needs two data_offsets");
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (!in_array_) return unexpected("a number");
    Entry& entry = entries_.back();
    if (field_ == kOffsets) {
      check(entry.offsets.size() < 2, "needs two data_offsets");
      entry.offsets.push_back(value);
      return true;
    }
    check(entry.shape.size() < kMaxDims,
          fmt::format("has more than {} dimensions, Weft's most", kMaxDims));
    check(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
          fmt::format("has a size of {}", value));
    entry.shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool number_integer(int64_t value) override { return unexpected(fmt::format("{}", value)); }
  bool number_float(double, const std::string& text) override { return unexpected(text); }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool binary(json::binary_t&) override { return unexpected("binary data"); }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text begins with "[json.exception...] "; the bytes it quotes may be anything.
    std::string reason = error.what();
    reason.erase(0, reason.find("] ") == std::string::npos ? 0 : reason.find("] ") + 2);
    std::ranges::replace_if(
        reason, [](unsigned char c) { return c < 32 || c > 126; }, '?');
    WEFT_FAIL("{}: the header is not valid JSON: {}", file_, reason.substr(0, 300));
  }

 private:
  enum Field { kDType, kShape, kOffsets };

  void check(bool condition, const std::string& what) const {
    WEFT_CHECK(condition, "{}: tensor {} {}", file_, quote(entries_.back().name), what);
  }

  bool unexpected(const std::string& what) const {
    if (depth_ == 0) WEFT_FAIL("{}: the header is not a JSON object", file_);
    if (in_metadata_)
      WEFT_FAIL("{}: {} in \"{}\", which maps strings to strings", file_, what, kMetadataKey);
    WEFT_FAIL("{}: {} where tensor {} needs its {}", file_, what, quote(entries_.back().name),
              depth_ == 1 ? "dtype, shape and data_offsets" : kFields[field_].expected);
  }

  const std::string file_;
  std::vector<Entry>& entries_;
  Metadata& metadata_;
  std::string* metadata_value_ = nullptr;
  int depth_ = 0;
  bool in_array_ = false, in_metadata_ = false, has_metadata_ = false;
  Field field_ = kDType;           // of the tensor at hand
  std::array<bool, 3> seen_ = {};  // the fields that it had already
};

/// Bytes of the tensor by its shape; throws when they exceed 64 bits.
uint64_t expected_bytes(const std::string& file, const Entry& entry) {
  // Sizes of 0 count as 1, so that strides can be computed from any shape that passes.
  uint64_t bytes = itemsize(entry.dtype);
  for (int64_t size : entry.shape) {
    WEFT_CHECK(
        !__builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max<int64_t>(size, 1)), &bytes) &&
            bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
        "{}: tensor {} of shape {} is too large", file, quote(entry.name), entry.shape);
  }
  return std::ranges::count(entry.shape, 0) > 0 ? 0 : bytes;
}

/// Checks that entries, sorted by offset, tile [0, data_bytes).
void check_layout(const std::string& file, const std::vector<Entry>& entries, uint64_t data_bytes) {
  uint64_t end = 0;
  std::string_view before;
  for (const Entry& entry : entries) {
    const uint64_t first = entry.offsets[0], last = entry.offsets[1];
    const std::string name = quote(entry.name);
    WEFT_CHECK(first <= last, "{}: tensor {} ends at offset {}, before it begins at {}", file, name,
               last, first);
    WEFT_CHECK(first >= end, "{}: tensor {} at offset {} overlaps {}, which ends at {}", file, name,
               first, quote(before), end);
    WEFT_CHECK(first == end,
               "{}: nothing fills the bytes from offset {} to {}, where tensor {} begins", file,
               end, first, name);
    const uint64_t bytes = expected_bytes(file, entry);
    WEFT_CHECK(last - first == bytes,
               "{}: tensor {}, {} {}, needs {} bytes, its data_offsets give {}", file, name,
               entry.dtype, entry.shape, bytes, last - first);
    WEFT_CHECK(last <= data_bytes,
               "{}: tensor {} ends at offset {}, but there are only {} bytes of data: the file is "
               "cut short",
               file, name, last, data_bytes);
    end = last;
    before = entry.name;
  }
  WEFT_CHECK(end == data_bytes,
             "{}: {} bytes of data follow the last tensor, which ends at offset {}", file,
             data_bytes - end, end);
}

Tensor tensor_over(const std::shared_ptr<void>& owner, std::byte* data, const Entry& entry,
                   const std::string& file) {
  const size_t bytes = entry.offsets[1] - entry.offsets[0];
  if (entry.dtype == DType::boolean) {
    const std::byte* wrong =
        std::find_if(data, data + bytes, [](std::byte b) { return b > std::byte{1}; });
    WEFT_CHECK(wrong == data + bytes, "{}: tensor {} is BOOL but holds the byte {} at index {}",
               file, quote(entry.name), std::to_integer<int>(*wrong), wrong - data);
  }
  if (reinterpret_cast<uintptr_t>(data) % itemsize(entry.dtype) != 0) {
    Tensor copy = Tensor::empty(entry.shape, entry.dtype);
    if (bytes > 0) std::memcpy(copy.raw(), data, bytes);
    return copy;
  }
  auto storage = std::make_shared<Storage>(data, bytes, Device{}, [owner] {});
  return Tensor::view_of(std::move(storage), entry.shape, contiguous_strides(entry.shape), 0,
                         entry.dtype);
}

/// Throws Error where the metadata hold a checksum that is not the file's. One flipped bit leaves
/// either the key or the value as it was.
void verify_checksum(std::span<const std::byte> bytes, std::string_view header,
                     const Metadata& metadata, const std::string& file, const Crc32Of& crc32) {
  for (const auto& [key, value] : metadata) {
    if (key != kChecksumKey && !value.starts_with(kChecksumPrefix)) continue;
    const size_t at = header.find(value);
    const std::string found =
        at == header.npos || value.size() != kChecksumPrefix.size() + kNoChecksum.size()
            ? "unknown"
            : std::string(kChecksumPrefix) +
                  checksum_around(bytes, kLengthBytes + at + kChecksumPrefix.size(), crc32);
    WEFT_CHECK(key == kChecksumKey && found == value,
               "{} is damaged: its checksum is {}, {} {} was written", file, found, quote(key),
               quote(value));
  }
}

template <size_t Size>
void write_strided(FileWriter& writer, const Tensor& tensor) {
  constexpr size_t kElements = 65536;
  using Element = std::array<std::byte, Size>;
  std::vector<Element> block;
  block.reserve(std::min<size_t>(kElements, tensor.numel()));
  const auto flush = [&] {
    writer.write(block.data(), block.size() * Size);
    block.clear();
  };
  const Element* first = static_cast<const Element*>(tensor.raw());
  for_each_offset(tensor.shape(), tensor.strides(), [&](int64_t offset) {
    block.push_back(first[offset]);
    if (block.size() == kElements) flush();
  });
  flush();
}

void write_data(FileWriter& writer, const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  if (tensor.is_contiguous()) return writer.write(tensor.raw(), tensor.nbytes());
  const size_t size = tensor.itemsize();
  WEFT_ASSERT(std::has_single_bit(size) && size <= 8);
  const auto write = size == 1   ? write_strided<1>
                     : size == 2 ? write_strided<2>
                     : size == 4 ? write_strided<4>
                                 : write_strided<8>;
  write(writer, tensor);
}

SafeTensors read(std::span<std::byte> bytes, const std::shared_ptr<void>& owner,
                 const std::string& file, const Crc32Of& crc32) {
  WEFT_CHECK(bytes.size() >= kLengthBytes,
             "{}: not a safetensors file: {} bytes, too short for the header's length", file,
             bytes.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  WEFT_CHECK(
      header_bytes <= kLargestHeader,
      "{}: not a safetensors file: its header would be {} bytes long, at most {} are allowed", file,
      header_bytes, kLargestHeader);
  WEFT_CHECK(header_bytes <= bytes.size() - kLengthBytes,
             "{}: the header is {} bytes long, but only {} follow: the file is cut short", file,
             header_bytes, bytes.size() - kLengthBytes);
  const char* header = reinterpret_cast<const char*>(bytes.data() + kLengthBytes);
  WEFT_CHECK(header_bytes > 0 && header[0] == '{', "{}: the header does not begin with '{{'", file);

  SafeTensors result;
  std::vector<Entry> entries;
  HeaderReader reader(file, entries, result.metadata);
  json::sax_parse(header, header + header_bytes, &reader);
  {
    std::unordered_set<std::string_view> seen(entries.size());
    for (const Entry& entry : entries) {
      WEFT_CHECK(seen.insert(entry.name).second, "{}: tensor {} stands in the header twice", file,
                 quote(entry.name));
    }
  }
  std::ranges::stable_sort(entries, {}, &Entry::offsets);
  const std::span<std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
  check_layout(file, entries, data.size());
  verify_checksum(bytes, {header, header_bytes}, result.metadata, file, crc32);
  result.metadata.erase(kChecksumKey);

  result.tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    Tensor tensor = tensor_over(owner, data.data() + entry.offsets[0], entry, file);
    result.tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  return result;
}

}  // namespace

SafeTensors read_safetensors(const Path& path) {
  return read_safetensors(std::make_shared<MappedFile>(path));
}

SafeTensors read_safetensors(const std::shared_ptr<MappedFile>& file) {
  return read(file->bytes(), file, file->path().string(),
              std::bind_front(&MappedFile::crc32_of, file.get()));
}

SafeTensors read_safetensors(std::span<std::byte> bytes, std::shared_ptr<void> owner,
                             const std::string& file) {
  return read(bytes, owner, file, crc32_of);
}

namespace {

/// Returns the header.
std::string write(FileWriter& writer, const NamedTensors& tensors, const Metadata& metadata) {
  std::vector<const NamedTensors::value_type*> order;
  for (const auto& named : tensors) order.push_back(&named);
  std::ranges::sort(order, [](const auto* a, const auto* b) {
    const size_t size_a = a->second.itemsize(), size_b = b->second.itemsize();
    return size_a != size_b ? size_a > size_b : a->first < b->first;
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::unordered_set<std::string_view> seen;
  uint64_t offset = 0;
  std::string text;
  try {
    for (const auto* named : order) {
      const auto& [name, tensor] = *named;
      WEFT_CHECK(seen.insert(name).second && name != kMetadataKey,
                 "safetensors: the name {} is taken", quote(name));
      WEFT_CHECK(tensor.device().type == DeviceType::cpu,
                 "safetensors: tensor {} is on {}, expected cpu", quote(name), tensor.device());
      const uint64_t end = offset + tensor.nbytes();
      const auto dtype = std::ranges::find(kNames, tensor.dtype(), &NamedDType::second);
      // Behind the others: [name] would look through all of them.
      header.get_ref<nlohmann::ordered_json::object_t&>().push_back(
          {name,
           {{"dtype", dtype->first},
            {"shape", std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())},
            {"data_offsets", {offset, end}}}});
      offset = end;
    }
    text = header.dump();
  } catch (const json::type_error&) {
    WEFT_FAIL("safetensors: a tensor's name or the metadata is not UTF-8");
  }
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const uint64_t header_bytes = text.size();
  WEFT_CHECK(header_bytes <= kLargestHeader, "safetensors: a header of {} bytes, at most {} fit",
             header_bytes, kLargestHeader);
  writer.write(&header_bytes, kLengthBytes);
  writer.write(text);
  for (const auto* named : order) write_data(writer, named->second);
  return text;
}

}  // namespace

void write_safetensors(FileWriter& writer, const NamedTensors& tensors, const Metadata& metadata) {
  write(writer, tensors, metadata);
}

FileSummary write_safetensors(const Path& path, const NamedTensors& tensors,
                              const Metadata& metadata) {
  Metadata with_checksum = metadata;
  with_checksum[kChecksumKey] = fmt::format("{}{}", kChecksumPrefix, kNoChecksum);
  return write_file_atomically(path, [&](FileWriter& writer) {
    const std::string header = write(writer, tensors, with_checksum);
    const std::string entry = fmt::format("\"{}\":\"{}", kChecksumKey, kChecksumPrefix);
    const size_t at = header.find(entry);
    WEFT_ASSERT(at != header.npos);
    writer.overwrite(kLengthBytes + at + entry.size(), checksum_text(writer.summary().crc32));
  });
}

}  // namespace weft::io
