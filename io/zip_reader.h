// ZIP archives whose entries are stored, as torch.save writes them: a directory of byte ranges.
//
//   entries: local header, name, extra field, data [, data descriptor] | central directory
//   [| ZIP64 end record, its locator] | end record
//
// PKWARE's APPNOTE 6.3.10, with ZIP64. Archives that two programs could read in different ways are
// refused: encrypted entries, names twice, entries that overlap each other or the
// directory, headers that disagree with the directory, bytes after the end record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/files.h"

namespace weft::io {

struct ZipEntry {
  std::string name;
  std::span<std::byte> data;  // in the archive; compressed unless the method is 0
  uint64_t header = 0;        // offset of the local header
  uint32_t crc32 = 0;         // of the contents; 0 where the writer left it out
  uint16_t method = 0;        // of compression
};

/// The entries in the directory's order. Throws Error naming `file` and the entry or the offset for
/// whatever is refused. Takes memory for the directory alone, in proportion to its bytes.
std::vector<ZipEntry> read_zip(std::span<std::byte> archive, const std::string& file);

/// Throws Error naming the entry when it is compressed: nothing here decompresses.
void check_stored(const ZipEntry& entry, const std::string& file);

/// Throws Error naming a stored entry when its data does not have its CRC-32. torch.save can be
/// told not to compute them; entries without one pass.
void check_crc(const ZipEntry& entry, const std::string& file, const Crc32Of& crc32);

}  // namespace weft::io
