// Weights from elsewhere, ready to be loaded: names as Weft has them, and what the numbers were
// trained with.
//
//   const Pretrained pretrained = read_pretrained("vit_b_16-c867db91.pth");
//   for (const std::string& note : load_pretrained(model, pretrained)) ...
//
// Vision transformers of torchvision, timm and Hugging Face, and GPT-2 (train/pretrained/gpt2.h),
// are recognised by their keys; a state with other keys is taken as it is. What a file of weights
// of a vision transformer does not say follows its source:
//
//                  torchvision          timm                  Hugging Face
//   LayerNorm eps  1e-6                 1e-6                  1e-12
//   input          ImageNet's mean      0.5, 0.5              0.5, 0.5
//   resize         256 of 224, crop     bicubic, 1/0.9, crop  stretched to the size
//
// (torchvision's vit_l_16: 242 of 224; its vit_h_14, and its and timm's files of larger images:
// bicubic, not cropped; DeiT's and DINO's, under timm's names, known by the file's: ImageNet's,
// bicubic, 256 of 224)
// unless a config.json or preprocessor_config.json beside the file, or the metadata that `weft
// convert` writes, says otherwise.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/transforms.h"
#include "io/safetensors.h"
#include "models/vit.h"
#include "train/pretrained/position_embedding.h"
#include "train/pretrained/vit_names.h"

namespace weft::train {

/// A file of weights of any kind that is read: safetensors, and state dicts of torch.save.
struct WeightFile {
  io::Path path;     // of the file itself, or of an index of several
  size_t files = 1;  // that the tensors are spread over
  bool is_pth = false;
  NamedTensors tensors;   // under the file's own names
  io::Metadata metadata;  // of safetensors
  // See PthFile.
  std::string wrapper;
  std::vector<std::string> others;
};

/// Reads a file, told by its first bytes; the files of an index, model.safetensors.index.json or
/// pytorch_model.bin.index.json; of a directory its model.safetensors or the index of one, else its
/// pytorch_model.bin. Throws Error as read_safetensors, read_weight_index and read_pth do.
WeightFile read_weight_file(const io::Path& path);

/// "safetensors", "torch.save, under the key "state_dict" (not read: epoch, optimizer)"
std::string describe_format(const WeightFile& file);

struct Pretrained {
  WeightFile file;
  std::optional<VitNames> names;     // the file's; none: not a vision transformer's
  NamedTensors state;                // under the names of Weft's models
  std::vector<std::string> dropped;  // see RenamedState

  // Of transformers.
  double layer_norm_eps = 0;      // 0: not known, the model's own
  std::optional<int64_t> heads;   // where the file says so
  std::optional<double> dropout;  // of GPT-2

  // Of vision transformers.
  data::Preprocess preprocess;
  std::vector<std::string> classes;  // where the file says so; as many as the head has
  std::string guess;  // what nothing says of the images, and is taken to be; or empty
};

/// Throws Error naming the file and what is wrong with it.
Pretrained read_pretrained(const io::Path& path);

/// What `weft convert`, and a run of a GPT-2, write into a file's metadata, so that read_pretrained
/// knows it again.
io::Metadata source_metadata(const Pretrained& pretrained);

/// The architecture that the tensors' shapes tell. The number of heads, which they do not, is the
/// file's, or that of the published models: 16 of widths 1280, 1408 and 1664 (ViT-H, g and G), else
/// that of heads 64 wide. Throws Error naming the tensor that does not fit.
models::VitConfig vit_config_of(const Pretrained& pretrained);

/// Loads the state. A head of another number of classes, or none, leaves the model a fresh one;
/// position embeddings of another image size are interpolated. Returns what was done, one line
/// each. Every other difference is an Error that names all keys, and then nothing has changed. The
/// model must have been made with the LayerNorm eps of `pretrained`; another number of attention
/// heads than it names is an Error.
std::vector<std::string> load_pretrained(nn::Module& model, const Pretrained& pretrained,
                                         Interpolation rule = Interpolation::kTorchvision);

}  // namespace weft::train
