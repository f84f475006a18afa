// Archives and pickles made by hand, for tests of what the readers refuse. Each function returns
// bytes; a test changes some of them or puts them together wrongly.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft::io::crafted {

/// The values' bytes, one after the other.
template <class... T>
std::string number(T... values) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  return bytes;
}

struct Entry {
  std::string name, data;
  uint16_t method = 0, flags = 0;
  // Where the directory lies about them.
  int64_t extra_size = 0, extra_offset = 0;
};

/// A ZIP archive of stored entries.
inline std::string zip(const std::vector<Entry>& entries) {
  constexpr uint16_t kNone = 0;
  std::string file, directory;
  for (const Entry& e : entries) {
    const auto crc = static_cast<uint32_t>(
        ::crc32_z(0, reinterpret_cast<const unsigned char*>(e.data.data()), e.data.size()));
    const auto size = static_cast<uint32_t>(e.data.size() + e.extra_size);
    const std::string common = number(kNone, e.flags, e.method, uint32_t{0}, crc, size, size,
                                      static_cast<uint16_t>(e.name.size()), kNone);
    const auto offset = static_cast<uint32_t>(file.size() + e.extra_offset);
    directory += "PK\x01\x02" + number(kNone) + common +
                 number(kNone, kNone, kNone, uint32_t{0}, offset) + e.name;
    file += "PK\x03\x04" + common + e.name + e.data;
  }
  const auto count = static_cast<uint16_t>(entries.size());
  const auto begin = static_cast<uint32_t>(file.size());
  return file + directory + "PK\x05\x06" +
         number(kNone, kNone, count, count, static_cast<uint32_t>(directory.size()), begin, kNone);
}

/// What torch.save would write: a pickle and storages "0", "1", ...
inline std::string pth(const std::string& pickle, const std::vector<std::string>& storages = {}) {
  std::vector<Entry> entries = {{"x/data.pkl", pickle}};
  for (size_t i = 0; i < storages.size(); ++i) {
    entries.push_back({"x/data/" + std::to_string(i), storages[i]});
  }
  return zip(entries);
}

// Parts of a pickle of protocol 2.
inline std::string text(const std::string& value) {
  return "X" + number(static_cast<uint32_t>(value.size())) + value;
}
inline std::string integer(int64_t value) { return "\x8a\x08" + number(value); }
inline std::string tuple(const std::vector<int64_t>& values) {
  std::string bytes = "(";
  for (const int64_t value : values) bytes += integer(value);
  return bytes + "t";
}
inline std::string storage(const std::string& type, const std::string& key, int64_t numel) {
  return "(" + text("storage") + "ctorch\n" + type + "\n" + text(key) + text("cpu") +
         integer(numel) + "tQ";
}
inline std::string tensor(const std::string& storage, int64_t offset,
                          const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                          const std::string& more = "") {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + integer(offset) + tuple(sizes) +
         tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)R" + more + "tR";
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string bytes = "}(";
  for (const auto& [key, value] : items) bytes += text(key) + value;
  return bytes + "u";
}
inline std::string pickle(const std::string& value) { return "\x80\x02" + value + "."; }

/// {"w": four floats seen as `sizes` by `strides` from `offset`}
inline std::string four_floats(int64_t offset, const std::vector<int64_t>& sizes,
                               const std::vector<int64_t>& strides) {
  return pth(pickle(dict({{"w", tensor(storage("FloatStorage", "0", 4), offset, sizes, strides)}})),
             {std::string(16, 'f')});
}

}  // namespace weft::io::crafted
