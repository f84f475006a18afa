// Files of weights of any kind that is read: safetensors, and state dicts of torch.save.
#pragma once

#include <string>
#include <vector>

#include "io/safetensors.h"

namespace weft::train {

struct WeightFile {
  io::Path path;  // of the file itself
  bool is_pth = false;
  NamedTensors tensors;   // under the file's own names
  io::Metadata metadata;  // of safetensors
  // See PthFile.
  std::string wrapper;
  std::vector<std::string> others;
};

/// Reads a file, told by its first bytes, or of a directory its model.safetensors or, without one,
/// its pytorch_model.bin. Throws Error as read_safetensors and read_pth do.
WeightFile read_weight_file(const io::Path& path);

/// "safetensors", "torch.save, under the key "state_dict" (not read: epoch, optimizer)"
std::string describe_format(const WeightFile& file);

}  // namespace weft::train
