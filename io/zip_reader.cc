#include "io/zip_reader.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "core/error.h"
#include "io/files.h"
#include "io/quote.h"

namespace weft::io {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50, kCentralSignature = 0x02014b50,
                   kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50,
                   kLocator64Signature = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                   kLocator64Bytes = 20;
// A field of all ones stands for "see the ZIP64 record".
constexpr uint64_t kSee64 = 0xffffffff, kSee64Short = 0xffff;
constexpr uint16_t kZip64Extra = 1;
// The sizes stand behind the data; the name is UTF-8; two bits that only compression uses.
constexpr uint16_t kHasDescriptor = 1 << 3, kKnownFlags = kHasDescriptor | 1 << 11 | 0b110;

class Archive {
 public:
  Archive(std::span<std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::vector<ZipEntry> entries();

 private:
  /// Where the central directory lies.
  struct Directory {
    uint64_t begin, end, count;
  };

  /// A little-endian number; the caller has checked that it lies in the file.
  template <class T>
  T number(uint64_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  std::string text(uint64_t offset, uint64_t length) const {
    return {reinterpret_cast<const char*>(bytes_.data() + offset), length};
  }

  Directory find_directory() const;
  ZipEntry central_entry(uint64_t& offset, const Directory& directory) const;
  void check_no_overlap(const std::vector<ZipEntry>& entries, uint64_t end) const;

  const std::span<std::byte> bytes_;
  const std::string& file_;
};

Archive::Directory Archive::find_directory() const {
  const uint64_t size = bytes_.size();
  // The record may be followed by a comment; PyTorch writes none, and without one there is a single
  // place where it can stand.
  WEFT_CHECK(size >= kEndBytes && number<uint32_t>(size - kEndBytes) == kEndSignature &&
                 number<uint16_t>(size - 2) == 0,
             "{}: no ZIP end record in the last {} bytes: the file is cut short, or other bytes "
             "follow the archive",
             file_, kEndBytes);
  const uint64_t end = size - kEndBytes;
  const uint64_t short_count = number<uint16_t>(end + 10), short_bytes = number<uint32_t>(end + 12),
                 short_offset = number<uint32_t>(end + 16);
  WEFT_CHECK(number<uint16_t>(end + 4) == 0 && number<uint16_t>(end + 6) == 0 &&
                 number<uint16_t>(end + 8) == short_count,
             "{}: the ZIP archive is one of several volumes", file_);

  Directory directory = {short_offset, end, short_count};
  uint64_t directory_bytes = short_bytes;
  if (end >= kLocator64Bytes && number<uint32_t>(end - kLocator64Bytes) == kLocator64Signature) {
    const uint64_t locator = end - kLocator64Bytes;
    WEFT_CHECK(locator >= kEnd64Bytes, "{}: no room for the ZIP64 end record at offset {}", file_,
               locator);
    const uint64_t record = locator - kEnd64Bytes;
    WEFT_CHECK(number<uint32_t>(locator + 4) == 0 && number<uint64_t>(locator + 8) == record &&
                   number<uint32_t>(locator + 16) <= 1,
               "{}: the ZIP64 locator at offset {} does not point at the record before it", file_,
               locator);
    WEFT_CHECK(number<uint32_t>(record) == kEnd64Signature &&
                   number<uint64_t>(record + 4) == kEnd64Bytes - 12,
               "{}: no ZIP64 end record at offset {}", file_, record);
    WEFT_CHECK(number<uint32_t>(record + 16) == 0 && number<uint32_t>(record + 20) == 0 &&
                   number<uint64_t>(record + 24) == number<uint64_t>(record + 32),
               "{}: the ZIP archive is one of several volumes", file_);
    directory = {number<uint64_t>(record + 48), record, number<uint64_t>(record + 32)};
    directory_bytes = number<uint64_t>(record + 40);
    const auto agrees = [](uint64_t narrow, uint64_t wide, uint64_t see_64) {
      return narrow == wide || narrow == see_64;
    };
    WEFT_CHECK(agrees(short_count, directory.count, kSee64Short) &&
                   agrees(short_bytes, directory_bytes, kSee64) &&
                   agrees(short_offset, directory.begin, kSee64),
               "{}: the ZIP end record at offset {} disagrees with the ZIP64 one", file_, end);
  }
  WEFT_CHECK(directory.begin <= directory.end && directory_bytes == directory.end - directory.begin,
             "{}: the ZIP directory of {} bytes at offset {} does not end at {}, where its end "
             "record stands",
             file_, directory_bytes, directory.begin, directory.end);
  WEFT_CHECK(directory.count <= directory_bytes / kCentralBytes,
             "{}: the ZIP directory of {} bytes cannot hold {} entries", file_, directory_bytes,
             directory.count);
  return directory;
}

ZipEntry Archive::central_entry(uint64_t& offset, const Directory& directory) const {
  const uint64_t at = offset;
  WEFT_CHECK(directory.end - at >= kCentralBytes && number<uint32_t>(at) == kCentralSignature,
             "{}: no ZIP directory entry at offset {}, where entry {} of {} should stand", file_,
             at, (at - directory.begin) / kCentralBytes, directory.count);
  const auto flags = number<uint16_t>(at + 8), method = number<uint16_t>(at + 10),
             name_bytes = number<uint16_t>(at + 28), extra_bytes = number<uint16_t>(at + 30),
             comment_bytes = number<uint16_t>(at + 32);
  const uint64_t length = kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  WEFT_CHECK(length <= directory.end - at,
             "{}: the ZIP directory entry at offset {} is longer than the directory", file_, at);
  offset += length;

  ZipEntry entry;
  entry.name = text(at + kCentralBytes, name_bytes);
  const std::string name = quote(entry.name);
  WEFT_CHECK(!(flags & 1), "{}: entry {} is encrypted", file_, name);
  WEFT_CHECK(!(flags & ~kKnownFlags), "{}: entry {} has the unknown flags {:#x}", file_, name,
             flags);
  entry.method = method;
  entry.crc32 = number<uint32_t>(at + 16);
  uint64_t stored = number<uint32_t>(at + 20), size = number<uint32_t>(at + 24);
  entry.header = number<uint32_t>(at + 42);
  // The ZIP64 field holds, in this order, those that are all ones.
  const uint64_t extra_end = at + kCentralBytes + name_bytes + extra_bytes;
  for (uint64_t field = at + kCentralBytes + name_bytes; extra_end - field >= 4;) {
    const auto id = number<uint16_t>(field), bytes = number<uint16_t>(field + 2);
    WEFT_CHECK(bytes <= extra_end - field - 4, "{}: entry {}: extra field {:#x} is cut short",
               file_, name, id);
    if (id == kZip64Extra) {
      uint64_t next = field + 4;
      const uint64_t end = next + bytes;
      for (uint64_t* value : {&size, &stored, &entry.header}) {
        if (*value != kSee64) continue;
        WEFT_CHECK(end - next >= 8, "{}: entry {}: the ZIP64 field is cut short", file_, name);
        *value = number<uint64_t>(next);
        next += 8;
      }
    }
    field += 4 + bytes;
  }
  WEFT_CHECK(method != 0 || stored == size, "{}: entry {} is stored in {} bytes but holds {}",
             file_, name, stored, size);

  WEFT_CHECK(entry.header <= directory.begin && directory.begin - entry.header >= kLocalBytes &&
                 number<uint32_t>(entry.header) == kLocalSignature,
             "{}: entry {}: no local header at offset {}", file_, name, entry.header);
  const uint64_t local = entry.header;
  const uint64_t local_name_bytes = number<uint16_t>(local + 26),
                 skipped = kLocalBytes + local_name_bytes + number<uint16_t>(local + 28);
  const auto agrees = [&](uint64_t in_header, uint64_t value) {
    return in_header == value || in_header == kSee64 || ((flags & kHasDescriptor) && !in_header);
  };
  WEFT_CHECK(directory.begin - local >= skipped && number<uint16_t>(local + 6) == flags &&
                 number<uint16_t>(local + 8) == method &&
                 agrees(number<uint32_t>(local + 14), entry.crc32) &&
                 agrees(number<uint32_t>(local + 18), stored) &&
                 agrees(number<uint32_t>(local + 22), size) &&
                 text(local + kLocalBytes, local_name_bytes) == entry.name,
             "{}: entry {}: its local header at offset {} disagrees with the directory", file_,
             name, local);
  WEFT_CHECK(stored <= directory.begin - local - skipped,
             "{}: entry {} of {} bytes at offset {} reaches into the directory at {}", file_, name,
             stored, local + skipped, directory.begin);
  entry.data = bytes_.subspan(local + skipped, stored);
  return entry;
}

void Archive::check_no_overlap(const std::vector<ZipEntry>& entries, uint64_t end) const {
  std::vector<const ZipEntry*> order;
  order.reserve(entries.size());
  for (const ZipEntry& entry : entries) order.push_back(&entry);
  std::ranges::sort(order, {}, &ZipEntry::header);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto last =
        static_cast<uint64_t>(order[i]->data.data() - bytes_.data()) + order[i]->data.size();
    const uint64_t next = i + 1 < order.size() ? order[i + 1]->header : end;
    WEFT_CHECK(last <= next, "{}: entry {} ends at offset {} and overlaps {}, which begins at {}",
               file_, quote(order[i]->name), last, quote(order[i + 1]->name), next);
  }
}

std::vector<ZipEntry> Archive::entries() {
  const Directory directory = find_directory();
  std::vector<ZipEntry> entries;
  entries.reserve(directory.count);
  uint64_t offset = directory.begin;
  for (uint64_t i = 0; i < directory.count; ++i)
    entries.push_back(central_entry(offset, directory));
  WEFT_CHECK(offset == directory.end, "{}: {} bytes follow the last entry of the ZIP directory",
             file_, directory.end - offset);
  std::unordered_set<std::string_view> names;
  for (const ZipEntry& entry : entries) {
    WEFT_CHECK(names.insert(entry.name).second, "{}: entry {} stands in the archive twice", file_,
               quote(entry.name));
  }
  check_no_overlap(entries, directory.begin);
  return entries;
}

}  // namespace

std::vector<ZipEntry> read_zip(std::span<std::byte> archive, const std::string& file) {
  return Archive(archive, file).entries();
}

void check_stored(const ZipEntry& entry, const std::string& file) {
  WEFT_CHECK(entry.method == 0,
             "{}: entry {} is compressed (method {}); only stored entries are read, as torch.save "
             "writes them",
             file, quote(entry.name), entry.method);
}

void check_crc(const ZipEntry& entry, const std::string& file, const Crc32Of& crc32) {
  if (entry.crc32 == 0) return;
  const uint32_t crc = crc32(entry.data, 0);
  WEFT_CHECK(crc == entry.crc32, "{}: entry {} is damaged: its CRC-32 is {:08x}, expected {:08x}",
             file, quote(entry.name), crc, entry.crc32);
}

}  // namespace weft::io
