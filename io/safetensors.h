// The safetensors format: a header of JSON, then the tensors' bytes.
//
//   u64 N, little endian | N bytes {"name": {"dtype": "F32", "shape": [2, 3],
//   "data_offsets": [begin, end]}, ..., "__metadata__": {"key": "value"}} | data
//
// Offsets count from the end of the header; rows lie in row-major order, numbers little endian, and
// the tensors fill the data without gap or overlap. https://github.com/huggingface/safetensors
//
// dtypes: F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 U8 BOOL. A tf32 tensor is stored as F32.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "io/files.h"

namespace weft::io {

using Metadata = std::map<std::string, std::string>;

struct SafeTensors {
  NamedTensors tensors;  // in the order of their data
  Metadata metadata;
};

/// Reads a file. The tensors are views of the file's memory mapping, read from disk when touched
/// and private to this process when changed; only those that lie at an address unfit for their
/// dtype are copied. The mapping lives as long as any of them. Verifying a checksum reads the whole
/// file once and keeps none of it in memory.
///
/// Throws Error naming the file and the tensor or field for whatever the format forbids, for a
/// checksum of ours that is not the file's, and for dtypes and ranks that Weft lacks. Memory used
/// before that is at most 24 times the header, which may have 100 MB.
SafeTensors read_safetensors(const Path& path);

/// The same of a file that is mapped already.
SafeTensors read_safetensors(const std::shared_ptr<MappedFile>& file);

/// The same of a file's bytes in memory, which `owner` keeps alive. Errors name `file`.
SafeTensors read_safetensors(std::span<std::byte> bytes, std::shared_ptr<void> owner,
                             const std::string& file);

/// Writes CPU tensors, strided ones too, sorted by descending element size and then by name, so
/// that each is aligned. The file replaces an older one only when it is complete.
/// The metadata "weft.checksum" holds the CRC-32 of the file; reading verifies it and leaves it
/// out. Throws Error for equal names, names that are not UTF-8, and whatever the disk refuses.
FileSummary write_safetensors(const Path& path, const NamedTensors& tensors,
                              const Metadata& metadata = {});

/// As write_safetensors, into a file that is open already, and without a checksum.
void write_safetensors(FileWriter& writer, const NamedTensors& tensors,
                       const Metadata& metadata = {});

}  // namespace weft::io
