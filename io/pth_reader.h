// State dicts that torch.save wrote (.pth, .pt, .bin), read without Python and without executing
// anything.
//
//   NAME/data.pkl   a pickle: {"conv.weight": tensor, ...}; tensors refer to storages by key
//   NAME/data/KEY   a storage's elements, row-major, little endian, stored uncompressed
//   NAME/byteorder  "little"; absent in older files; "big" is refused
//   NAME/version, NAME/.format_version, ...   not read
//
// A tensor is a view: storage, offset, sizes and strides in elements; several may share a storage.
// Parameters are tensors; `_metadata` is dropped. dtypes: f64 f32 f16 bf16 i64 i32 u8 bool, and
// i16 and i8, which are widened to i32. Whatever else a pickle can hold is refused by name, as is
// the format of PyTorch 1.5 and older, which is no archive.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace weft::io {

struct PthFile {
  NamedTensors tensors;  // in the dict's order
  std::string wrapper;   // "state_dict" when the file holds the state dict under that key, ...
  std::vector<std::string> others;  // keys beside the wrapper, not read: "epoch", "optimizer", ...
};

/// Reads a file. The tensors are views of its private memory mapping, as read_safetensors says,
/// with the strides and the sharing they were saved with. A dict under one of the keys state_dict,
/// model and model_state_dict is taken for the state dict.
///
/// Throws Error naming the file and the offset, key or entry for whatever is not such a file. The
/// memory used is bounded: 256 MiB for the pickle, eight times the ZIP directory's bytes, and the
/// storages that must be copied, i8 and i16 as i32.
PthFile read_pth(const Path& path);

/// The same of a file that is mapped already.
PthFile read_pth(const std::shared_ptr<MappedFile>& file);

/// The same of a file's bytes in memory, which `owner` keeps alive. Errors name `file`.
PthFile read_pth(std::span<std::byte> bytes, std::shared_ptr<void> owner, const std::string& file);

/// True when the bytes begin as any file that torch.save ever wrote does.
bool looks_like_pth(std::span<const std::byte> bytes);

}  // namespace weft::io
