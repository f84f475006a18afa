// Hugging Face's weights in several files: model.safetensors.index.json beside
// model-00001-of-00003.safetensors and the others.
//
//   {"metadata": {"total_size": 123}, "weight_map": {"fc.weight":
//   "model-00001-of-00003.safetensors",
//    ...}}
//
// Each tensor lies whole in one file.
// https://huggingface.co/docs/safetensors, huggingface_hub/serialization
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace weft::io {

/// What lies in which file.
struct WeightIndex {
  Path path;                                              // of the index
  std::map<std::string, std::vector<std::string>> files;  // names of tensors, by file
};

/// Throws Error naming the index and what it says wrongly: files that are not beside it, say.
WeightIndex read_weight_index(const Path& path);

/// Puts together the tensors that an index names, each of the file that it names; `read` reads one
/// file. Throws Error naming the file that is missing or lacks a tensor.
NamedTensors read_indexed(const WeightIndex& index,
                          const std::function<NamedTensors(const Path&)>& read);

/// Bytes in "100MB", "2GB", "64KiB", "5000000": decimal units as Hugging Face's, or binary ones.
/// Throws Error for anything else.
int64_t parse_bytes(const std::string& text);

/// A tensor to be written, made when its turn comes.
struct PendingTensor {
  std::string name;
  DType dtype;
  Shape shape;
};

/// Writes tensors into files of at most so many bytes of data each, or of one tensor that is
/// larger, in their order, and the index, last; all into one file, model.safetensors without an
/// index, when they fit. The tensors of one file are in memory at a time. Returns the names of the
/// files. Throws Error for a directory that holds weights already.
std::vector<std::string> write_indexed(const Path& directory,
                                       const std::vector<PendingTensor>& tensors,
                                       int64_t most_bytes,
                                       const std::function<Tensor(const std::string& name)>& make,
                                       const Metadata& metadata = {});

}  // namespace weft::io
