#include "train/pretrained/pretrained.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "io/quote.h"
#include "nn/layers.h"

namespace weft::train {
namespace {

using json = nlohmann::json;

constexpr const char *kNamesKey = "source", *kEpsKey = "layer_norm_eps",
                     *kHeadsKey = "attention_heads", *kMeanKey = "image_mean",
                     *kStdKey = "image_std";
constexpr const char* kPositions = "encoder.pos_embedding";
constexpr const char* kLayer = "encoder.layers.encoder_layer_";

const Tensor* find(const NamedTensors& state, const std::string& name) {
  const auto place = std::ranges::find(state, name, &NamedTensors::value_type::first);
  return place == state.end() ? nullptr : &place->second;
}

/// The shape of a tensor of a vision transformer; its sizes are positive.
Shape shape_of(const Pretrained& p, const std::string& name, int dims) {
  const Tensor* tensor = find(p.state, name);
  const std::string file = p.file.path.string();
  WEFT_CHECK(tensor, "{}: no {}: not the weights of a whole vision transformer", file, name);
  WEFT_CHECK(tensor->dim() == dims && tensor->numel() > 0, "{}: {} is {}, expected {} dimensions",
             file, name, *tensor, dims);
  return tensor->shape();
}

/// Side of the images that the position embeddings were trained for.
int64_t image_size_of(const Pretrained& p) {
  const Shape positions = shape_of(p, kPositions, 3);
  const int64_t patch = shape_of(p, "conv_proj.weight", 4)[3];
  const int64_t side = std::lround(std::sqrt(static_cast<double>(positions[1] - 1)));
  WEFT_CHECK(positions[1] > 1 && side * side == positions[1] - 1 && patch <= 4096 && side <= 4096,
             "{}: {} is {}: expected a class token and a square of patches", p.file.path.string(),
             kPositions, positions);
  return side * patch;
}

/// A JSON file beside the weights; an empty object without one.
json read_json(const io::Path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return json::object();
  constexpr uintmax_t kLargest = 16 << 20;
  WEFT_CHECK(std::filesystem::file_size(path, error) <= kLargest, "{}: more than {} bytes",
             path.string(), kLargest);
  json parsed = json::parse(io::read_text(path), nullptr, /*allow_exceptions=*/false);
  WEFT_CHECK(parsed.is_object(), "{}: not a JSON object", path.string());
  return parsed;
}

/// Reads settings of a JSON object; absent ones and null leave the value.
class Settings {
 public:
  Settings(const json& object, std::string place) : object_(object), place_(std::move(place)) {}

  template <class T>
  void get(const char* key, T& value) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return;
    try {
      found->get_to(value);
    } catch (const json::exception&) {
      WEFT_FAIL("{}: \"{}\" has the unexpected value {}", place_, key,
                io::quote(found->dump(-1, ' ', true, json::error_handler_t::replace)));
    }
  }
  json at(const char* key) const { return object_.value(key, json::object()); }

 private:
  const json& object_;
  const std::string place_;
};

void check_source(const Pretrained& p, const std::string& place) {
  WEFT_CHECK(p.layer_norm_eps >= 0 && p.layer_norm_eps < 1,
             "{}: layer_norm_eps {}, expected a number in [0, 1)", place, p.layer_norm_eps);
  WEFT_CHECK(!p.heads || *p.heads > 0, "{}: {} attention heads", place, p.heads.value_or(0));
  for (int c = 0; c < 3; ++c) {
    const float mean = p.preprocess.normalization.mean[c], std = p.preprocess.normalization.std[c];
    WEFT_CHECK(std::isfinite(mean) && std::isfinite(std) && std > 0,
               "{}: images are normalised with mean {} and standard deviation {}", place, mean,
               std);
  }
}

void apply_defaults(Pretrained& p, VitNames names) {
  p.layer_norm_eps = names == VitNames::kHuggingFace ? 1e-12 : 1e-6;
  data::Preprocess& pre = p.preprocess;
  pre.size = static_cast<int>(image_size_of(p));
  pre.fit = names == VitNames::kHuggingFace ? data::Fit::kStretch : data::Fit::kShorterSide;
  pre.filter = names == VitNames::kTimm ? data::Filter::kBicubic : data::Filter::kBilinear;
  if (names == VitNames::kTorchvision) {
    pre.normalization = data::kImageNetNormalization;
    // Of the larger sizes the whole shorter side is used.
    pre.resize = pre.size == 224 ? 256 : pre.size;
  } else {
    pre.normalization = {{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}};
    pre.resize = names == VitNames::kTimm ? static_cast<int>(pre.size / 0.9) : pre.size;
  }
}

/// Hugging Face's config.json and preprocessor_config.json.
void apply_hugging_face_files(Pretrained& p, const io::Path& directory) {
  const io::Path config_path = directory / "config.json";
  const json config = read_json(config_path);
  const Settings settings(config, config_path.string());
  std::string activation = "gelu";
  int64_t heads = 0;
  settings.get("hidden_act", activation);
  WEFT_CHECK(activation == "gelu", "{}: hidden_act {}, Weft has \"gelu\"", config_path.string(),
             io::quote(activation));
  settings.get("layer_norm_eps", p.layer_norm_eps);
  settings.get("num_attention_heads", heads);
  if (heads != 0) p.heads = heads;
  std::map<std::string, std::string> labels;
  settings.get("id2label", labels);
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto label = labels.find(std::to_string(i));
    // "LABEL_3" is what transformers calls a class without a name.
    if (label == labels.end() || label->second == fmt::format("LABEL_{}", i)) {
      p.classes.clear();
      break;
    }
    p.classes.push_back(label->second);
  }
  check_source(p, config_path.string());

  const io::Path images_path = directory / "preprocessor_config.json";
  const json images_config = read_json(images_path);
  const Settings images(images_config, images_path.string());
  images.get("image_mean", p.preprocess.normalization.mean);
  images.get("image_std", p.preprocess.normalization.std);
  constexpr int kBicubic = 3;  // PIL's number
  int filter = 0;
  images.get("resample", filter);
  if (filter == kBicubic) p.preprocess.filter = data::Filter::kBicubic;
  check_source(p, images_path.string());
}

/// timm's config.json.
void apply_timm_files(Pretrained& p, const io::Path& directory) {
  const io::Path path = directory / "config.json";
  const json config = read_json(path);
  const json nested = config.value("pretrained_cfg", json::object());
  if (!nested.is_object()) return;
  const Settings settings(nested, path.string());
  std::string filter = "bicubic";
  double crop = 0.9;
  settings.get("mean", p.preprocess.normalization.mean);
  settings.get("std", p.preprocess.normalization.std);
  settings.get("interpolation", filter);
  settings.get("crop_pct", crop);
  WEFT_CHECK(crop > 0.1 && crop <= 1, "{}: crop_pct {}", path.string(), crop);
  if (filter == "bilinear") p.preprocess.filter = data::Filter::kBilinear;
  p.preprocess.resize = static_cast<int>(p.preprocess.size / crop);
  std::vector<std::string> labels;
  Settings(config, path.string()).get("label_names", labels);
  p.classes = labels;
  check_source(p, path.string());
}

/// The VitNames that `weft convert` found, which decide the defaults; else the file's own.
VitNames source_names(const Pretrained& p) {
  const auto found = p.file.metadata.find(kNamesKey);
  if (found == p.file.metadata.end()) return *p.names;
  for (const VitNames names : {VitNames::kTorchvision, VitNames::kTimm, VitNames::kHuggingFace}) {
    if (found->second == name(names)) return names;
  }
  return *p.names;
}

void apply_metadata(Pretrained& p) {
  const std::string place = p.file.path.string() + ": metadata";
  const auto get = [&](const char* key, auto& value) {
    const auto found = p.file.metadata.find(key);
    if (found == p.file.metadata.end()) return;
    json object;
    object[key] = json::parse(found->second, nullptr, /*allow_exceptions=*/false);
    Settings(object, place).get(key, value);
  };
  int64_t heads = 0;
  get(kEpsKey, p.layer_norm_eps);
  get(kHeadsKey, heads);
  if (heads != 0) p.heads = heads;
  get(kMeanKey, p.preprocess.normalization.mean);
  get(kStdKey, p.preprocess.normalization.std);
  check_source(p, place);
}

/// The name of a module of the model; empty for none.
std::string name_of(nn::Module& model, const nn::Module* wanted) {
  for (const auto& [name, module] : model.named_modules()) {
    if (module == wanted) return name;
  }
  return "";
}

/// What turns a file's state into one that fits the model.
class Fitting {
 public:
  Fitting(nn::Module& model, const Pretrained& pretrained)
      : own_(model.state_dict()),
        structure_(model.structure()),
        head_(name_of(model, structure_.head)),
        state_(pretrained.state) {}

  void replace_head();
  void interpolate(Interpolation rule);
  void check_dtypes() const;

  const NamedTensors& state() const { return state_; }
  std::vector<std::string> notes;
  nn::Linear* replaced_head() const { return replaces_head_ ? structure_.head : nullptr; }

 private:
  const NamedTensors own_;
  const nn::ModelStructure structure_;
  const std::string head_;  // empty: the model has none
  bool replaces_head_ = false;
  NamedTensors state_;
};

void Fitting::replace_head() {
  if (head_.empty()) return;
  const Tensor &own = structure_.head->weight, *theirs = find(state_, head_ + ".weight");
  const bool fits = theirs && theirs->shape() == own.shape();
  // Another width is not another number of classes: the model is a different one.
  if (fits || (theirs && (theirs->dim() != 2 || theirs->size(1) != own.size(1)))) return;
  notes.push_back(theirs
                      ? fmt::format("the head of {} classes is replaced by a fresh one of {}",
                                    theirs->size(0), own.size(0))
                      : fmt::format("no head in the file: a fresh one of {} classes", own.size(0)));
  replaces_head_ = true;
  std::erase_if(state_, [&](const auto& named) { return nn::is_below(named.first, head_); });
  for (const auto& named : own_) {
    if (nn::is_below(named.first, head_)) state_.push_back(named);
  }
}

void Fitting::interpolate(Interpolation rule) {
  const auto& [positions, prefix] = structure_.positions;
  const Tensor* own = find(own_, positions);
  if (!own) return;
  for (auto& [name, tensor] : state_) {
    if (name != positions || tensor.dim() != 3 || tensor.size(2) != own->size(2) ||
        tensor.size(1) == own->size(1)) {
      continue;
    }
    const int64_t before = tensor.size(1);
    tensor = interpolate_positions(tensor, own->size(1), prefix, rule);
    notes.push_back(
        fmt::format("position embeddings interpolated from {} to {} patches ({})", before - prefix,
                    own->size(1) - prefix,
                    rule == Interpolation::kTimm ? "timm's rule" : "torchvision's rule"));
  }
}

void Fitting::check_dtypes() const {
  for (const auto& [name, tensor] : state_) {
    const Tensor* own = find(own_, name);
    WEFT_CHECK(!own || is_floating(own->dtype()) == is_floating(tensor.dtype()),
               "{} is {}, the model's is {}", io::quote(name), tensor.dtype(), own->dtype());
  }
}

}  // namespace

Pretrained read_pretrained(const io::Path& path) {
  Pretrained result;
  result.file = read_weight_file(path);
  const std::string file = result.file.path.string();
  result.state = without_wrapper_prefixes(result.file.tensors);
  result.names = recognise_vit(result.state);
  if (!result.names) return result;
  try {
    RenamedState renamed = to_torchvision(result.state, *result.names);
    result.state = std::move(renamed.state);
    result.dropped = std::move(renamed.dropped);
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", file, error.what());
  }
  const VitNames source = source_names(result);
  apply_defaults(result, source);
  const io::Path directory = result.file.path.parent_path();
  if (*result.names == VitNames::kHuggingFace) apply_hugging_face_files(result, directory);
  if (*result.names == VitNames::kTimm) apply_timm_files(result, directory);
  apply_metadata(result);
  const Tensor* head = find(result.state, "heads.head.weight");
  if (!head || head->dim() != 2 || head->size(0) != static_cast<int64_t>(result.classes.size())) {
    result.classes.clear();
  }
  return result;
}

io::Metadata source_metadata(const Pretrained& p) {
  io::Metadata metadata;
  if (!p.names) return metadata;
  metadata[kNamesKey] = name(source_names(p));
  metadata[kEpsKey] = json(p.layer_norm_eps).dump();
  metadata[kMeanKey] = json(p.preprocess.normalization.mean).dump();
  metadata[kStdKey] = json(p.preprocess.normalization.std).dump();
  if (p.heads) metadata[kHeadsKey] = json(*p.heads).dump();
  return metadata;
}

models::VitConfig vit_config_of(const Pretrained& p) {
  const std::string file = p.file.path.string();
  WEFT_CHECK(p.names,
             "{}: the keys are not those of a vision transformer of torchvision, timm or Hugging "
             "Face",
             file);
  models::VitConfig config;
  models::EncoderConfig& encoder = config.encoder;
  const Shape projection = shape_of(p, "conv_proj.weight", 4);
  encoder.width = projection[0];
  config.channels = projection[1];
  config.patch = projection[2];
  config.image_size = image_size_of(p);
  if (p.layer_norm_eps > 0) encoder.layer_norm_eps = p.layer_norm_eps;
  encoder.layers = 0;
  const auto layer = [](int64_t i) { return kLayer + std::to_string(i) + "."; };
  while (find(p.state, layer(encoder.layers) + "ln_1.weight")) ++encoder.layers;
  encoder.hidden = shape_of(p, layer(0) + "mlp.0.weight", 2)[0];
  // A model is made of these sizes: the file must hold as much.
  const int64_t w = encoder.width, h = encoder.hidden;
  for (int64_t i = 0; i < encoder.layers; ++i) {
    for (const auto& [tail, shape] :
         {std::pair("self_attention.in_proj_weight", Shape{3 * w, w}),
          std::pair("mlp.0.weight", Shape{h, w}), std::pair("mlp.3.weight", Shape{w, h})}) {
      const Shape found = shape_of(p, layer(i) + tail, 2);
      WEFT_CHECK(found == shape, "{}: {} has the shape {}, expected {}", file, layer(i) + tail,
                 found, shape);
    }
  }
  if (find(p.state, "heads.pre_logits.weight")) {
    config.representation = shape_of(p, "heads.pre_logits.weight", 2)[0];
  }
  config.classes = shape_of(p, "heads.head.weight", 2)[0];
  constexpr int64_t kUsualDepth = 64;
  encoder.heads = p.heads.value_or(w / kUsualDepth);
  WEFT_CHECK(p.heads ? w % encoder.heads == 0 : w % kUsualDepth == 0,
             "{}: the number of attention heads is not known, and a width of {} is no multiple of "
             "{}",
             file, w, p.heads.value_or(kUsualDepth));
  return config;
}

std::vector<std::string> load_pretrained(nn::Module& model, const Pretrained& pretrained,
                                         Interpolation rule) {
  WEFT_CHECK(!pretrained.names || dynamic_cast<models::VisionTransformer*>(&model),
             "{}: the weights of a vision transformer ({}'s names) for a model of another kind",
             pretrained.file.path.string(), name(*pretrained.names));
  Fitting fitting(model, pretrained);
  try {
    fitting.replace_head();
    fitting.interpolate(rule);
    fitting.check_dtypes();
    model.load_state_dict(fitting.state());
  } catch (const Error& error) {
    const bool renamed = pretrained.names && *pretrained.names != VitNames::kTorchvision;
    WEFT_FAIL("{}: {}{}", pretrained.file.path.string(), error.what(),
              renamed
                  ? fmt::format(" ({}'s names, shown as torchvision's)", name(*pretrained.names))
                  : "");
  }
  if (nn::Linear* const head = fitting.replaced_head()) {
    const NoGrad guard;
    // As a new layer in PyTorch; a head of zeros, the models' own start, is for training from
    // nothing.
    const nn::Linear fresh(head->weight.size(1), head->weight.size(0), head->bias.defined());
    ops::copy_(head->weight, ops::to(fresh.weight, head->weight.device()));
    if (head->bias.defined()) ops::copy_(head->bias, ops::to(fresh.bias, head->bias.device()));
  }
  for (const std::string& key : pretrained.dropped) {
    fitting.notes.push_back("not used: " + io::printable(key));
  }
  return fitting.notes;
}

}  // namespace weft::train
