#include "train/pretrained/pretrained.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "autograd/finite.h"
#include "autograd/ops.h"
#include "io/checked_json.h"
#include "io/quote.h"
#include "nn/layers.h"
#include "train/pretrained/gpt2.h"
#include "train/pretrained/json_settings.h"

namespace weft::train {
namespace {

using json = nlohmann::json;

constexpr const char *kNamesKey = "source", *kEpsKey = "layer_norm_eps",
                     *kHeadsKey = "attention_heads", *kMeanKey = "image_mean",
                     *kStdKey = "image_std", *kFitKey = "image_fit", *kResizeKey = "image_resize",
                     *kFilterKey = "image_filter", *kDropoutKey = "dropout";
constexpr const char* kPositions = "encoder.pos_embedding";
constexpr const char* kLayer = "encoder.layers.encoder_layer_";
constexpr int64_t kUsualDepth = 64;  // of an attention head
constexpr int kLargestResize = 1 << 16;

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

/// Of a vision transformer: 64 wide, but for ViT-H, ViT-g and ViT-G, which have 16 whatever their
/// width (Dosovitskiy et al., arXiv:2010.11929, table 1; Zhai et al., arXiv:2106.04560, table 2).
int64_t usual_heads(int64_t width) {
  constexpr int64_t kOfSixteen[] = {1280, 1408, 1664};
  return std::ranges::count(kOfSixteen, width) > 0 ? 16 : width / kUsualDepth;
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

void get_heads(const json& object, const std::string& place, const char* key, Pretrained& p) {
  int64_t heads = 0;
  get(object, place, key, heads);
  if (heads != 0) p.heads = heads;
}

void check_source(const Pretrained& p, const std::string& place) {
  WEFT_CHECK(p.layer_norm_eps >= 0 && p.layer_norm_eps < 1,
             "{}: layer_norm_eps {}, expected a number in [0, 1)", place, p.layer_norm_eps);
  WEFT_CHECK(!p.heads || *p.heads > 0, "{}: {} attention heads", place, p.heads.value_or(0));
  const double dropout = p.dropout.value_or(0);
  WEFT_CHECK(dropout >= 0 && dropout < 1, "{}: dropout {}, expected a number in [0, 1)", place,
             dropout);
  for (int c = 0; c < 3; ++c) {
    const float mean = p.preprocess.normalization.mean[c], std = p.preprocess.normalization.std[c];
    WEFT_CHECK(std::isfinite(mean) && std::isfinite(std) && std > 0,
               "{}: images are normalised with mean {} and standard deviation {}", place, mean,
               std);
  }
}

/// What timm keeps of an image's shorter side: all of it where it is more than 224 pixels.
double timm_crop(const Pretrained& p) { return p.preprocess.size > 224 ? 1 : 0.9; }

void apply_defaults(Pretrained& p, VitNames names) {
  p.layer_norm_eps = names == VitNames::kHuggingFace ? 1e-12 : 1e-6;
  data::Preprocess& pre = p.preprocess;
  pre.size = static_cast<int>(image_size_of(p));
  pre.fit = names == VitNames::kHuggingFace ? data::Fit::kStretch : data::Fit::kShorterSide;
  pre.filter = names == VitNames::kTimm ? data::Filter::kBicubic : data::Filter::kBilinear;
  if (names == VitNames::kTorchvision) {
    pre.normalization = data::kImageNetNormalization;
    // Of vit_l_16 it is 242. Its files of larger sizes, and all of vit_h_14, are SWAG's, which use
    // the whole shorter side; of others only the name tells, as of vit_b_16_lc_swag-4e70ced5.pth.
    const bool is_named_swag = p.file.path.filename().string().find("_swag") != std::string::npos;
    const Shape projection = shape_of(p, "conv_proj.weight", 4);
    const bool is_l_16 = projection[0] == 1024 && projection[3] == 16;
    const bool is_swag =
        pre.size > 224 || (projection[0] == 1280 && projection[3] == 14) || is_named_swag;
    pre.resize = is_swag || pre.size != 224 ? pre.size : is_l_16 ? 242 : 256;
    if (is_swag) pre.filter = data::Filter::kBicubic;
    if (is_named_swag) {
      p.guess =
          "by the file's name the images are SWAG's: bicubic, of whose shorter side nothing is "
          "cropped";
    }
  } else {
    pre.normalization = {{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}};
    pre.resize = names == VitNames::kTimm ? static_cast<int>(pre.size / timm_crop(p)) : pre.size;
  }
  if (names != VitNames::kTimm) return;
  const std::string file = p.file.path.filename().string();
  if (file.starts_with("deit_") || file.starts_with("dino_")) {
    pre.normalization = data::kImageNetNormalization;
    pre.resize = pre.size * 256 / 224;
    p.guess =
        "by the file's name the images are those of DeiT or DINO: normalised as ImageNet's, "
        "bicubic, 256 of 224 pixels before the crop";
  } else {
    p.guess =
        "nothing says how images were normalised: mean 0.5 and std 0.5 are taken, which are timm's "
        "own; weights of DeiT and DINO, under the same names, have ImageNet's, which a timm "
        "config.json beside them says";
  }
}

/// A size of preprocessor_config.json, of which there are three forms: 256, {"height": 256,
/// "width": 256} and {"shortest_edge": 256}; 0: there is none.
int get_size(const json& images, const std::string& place, const char* key, const char* side) {
  int size = 0;
  const json value = images.value(key, json());
  value.is_object() ? get(value, place, side, size) : get(images, place, key, size);
  WEFT_CHECK(size >= 0 && size <= kLargestResize, "{}: {} {}, expected 0 to {}", place, key, size,
             kLargestResize);
  return size;
}

/// Of preprocessor_config.json, as DeiT's has it: images that are larger at first than what the
/// model sees of them.
void apply_centre_crop(Pretrained& p, const json& images, const std::string& place) {
  bool crops = false;
  get(images, place, "do_center_crop", crops);
  if (!crops) return;
  const int crop = get_size(images, place, "crop_size", "height");
  const int shortest = get_size(images, place, "size", "shortest_edge");
  const int side = std::max(shortest, get_size(images, place, "size", "height"));
  // Of another size the positions have been interpolated: the share of an image stays.
  if (crop == 0 || side < crop) return;
  p.preprocess.resize = static_cast<int>(int64_t{p.preprocess.size} * side / crop);
  if (images.at("size").contains("shortest_edge")) p.preprocess.fit = data::Fit::kShorterSide;
}

/// Hugging Face's config.json and preprocessor_config.json.
void apply_hugging_face_files(Pretrained& p, const io::Path& directory) {
  std::string place = (directory / "config.json").string();
  const json config = read_json(place);
  std::string activation = "gelu";
  get(config, place, "hidden_act", activation);
  WEFT_CHECK(activation == "gelu", "{}: hidden_act {}, Weft has \"gelu\"", place,
             io::quote(activation));
  get(config, place, "layer_norm_eps", p.layer_norm_eps);
  get_heads(config, place, "num_attention_heads", p);
  std::map<std::string, std::string> labels;
  get(config, place, "id2label", labels);
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto label = labels.find(std::to_string(i));
    // "LABEL_3" is what transformers calls a class without a name.
    if (label == labels.end() || label->second == fmt::format("LABEL_{}", i)) {
      p.classes.clear();
      break;
    }
    p.classes.push_back(label->second);
  }
  check_source(p, place);

  place = (directory / "preprocessor_config.json").string();
  const json images = read_json(place);
  get(images, place, "image_mean", p.preprocess.normalization.mean);
  get(images, place, "image_std", p.preprocess.normalization.std);
  constexpr int kPilsBilinear = 2, kPilsBicubic = 3;
  int filter = p.preprocess.filter == data::Filter::kBicubic ? kPilsBicubic : kPilsBilinear;
  get(images, place, "resample", filter);
  WEFT_CHECK(filter == kPilsBilinear || filter == kPilsBicubic,
             "{}: resample {}, Weft has 2, bilinear, and 3, bicubic", place, filter);
  p.preprocess.filter = filter == kPilsBicubic ? data::Filter::kBicubic : data::Filter::kBilinear;
  apply_centre_crop(p, images, place);
  check_source(p, place);
}

/// timm's config.json.
void apply_timm_files(Pretrained& p, const io::Path& directory) {
  const std::string place = (directory / "config.json").string();
  const json config = read_json(place);
  std::string pooling = "token";
  get(config, place, "global_pool", pooling);
  WEFT_CHECK(pooling == "token" || pooling.empty(), "{}: global_pool {}, Weft has \"token\"", place,
             io::quote(pooling));
  if (const auto found = config.find("model_args"); found != config.end() && found->is_object()) {
    get_heads(*found, place, "num_heads", p);
  }
  // timm's older files have no object of their own for it.
  const json nested = config.value("pretrained_cfg", config);
  if (!nested.is_object()) return;
  std::string filter = p.preprocess.filter == data::Filter::kBicubic ? "bicubic" : "bilinear";
  std::string crop_mode = "center";
  get(nested, place, "mean", p.preprocess.normalization.mean);
  get(nested, place, "std", p.preprocess.normalization.std);
  if (nested.contains("mean")) p.guess.clear();
  get(nested, place, "interpolation", filter);
  if (nested.contains("crop_pct") && !nested["crop_pct"].is_null()) {
    double crop = 0;
    get(nested, place, "crop_pct", crop);
    WEFT_CHECK(crop > 0.1 && crop <= 1, "{}: crop_pct {}", place, crop);
    p.preprocess.resize = static_cast<int>(p.preprocess.size / crop);
  }
  WEFT_CHECK(filter == "bilinear" || filter == "bicubic",
             "{}: interpolation {}, Weft has \"bilinear\" and \"bicubic\"", place,
             io::quote(filter));
  p.preprocess.filter = filter == "bicubic" ? data::Filter::kBicubic : data::Filter::kBilinear;
  get(nested, place, "crop_mode", crop_mode);
  WEFT_CHECK(crop_mode == "center" || crop_mode == "squash",
             "{}: crop_mode {}, Weft has \"center\" and \"squash\"", place, io::quote(crop_mode));
  if (crop_mode == "squash") p.preprocess.fit = data::Fit::kStretch;
  get(config, place, "labels", p.classes);
  get(config, place, "label_names", p.classes);
  check_source(p, place);
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
  json settings = json::object();
  for (const char* key :
       {kEpsKey, kHeadsKey, kDropoutKey, kMeanKey, kStdKey, kFitKey, kResizeKey, kFilterKey}) {
    const auto found = p.file.metadata.find(key);
    if (found == p.file.metadata.end()) continue;
    settings[key] = io::parse_foreign_json(found->second, place + ": " + io::quote(key));
  }
  get(settings, place, kEpsKey, p.layer_norm_eps);
  get_heads(settings, place, kHeadsKey, p);
  if (p.dropout) get(settings, place, kDropoutKey, *p.dropout);
  get(settings, place, kMeanKey, p.preprocess.normalization.mean);
  get(settings, place, kStdKey, p.preprocess.normalization.std);
  if (settings.contains(kMeanKey)) p.guess.clear();
  data::Preprocess& pre = p.preprocess;
  get(settings, place, kResizeKey, pre.resize);
  WEFT_CHECK(pre.resize == 0 || (pre.resize >= pre.size && pre.resize <= kLargestResize),
             "{}: {} {}, expected 0 or {} to {}", place, kResizeKey, pre.resize, pre.size,
             kLargestResize);
  const auto choose = [&](const char* key, auto& value, auto first, auto second) {
    std::string text(name(value));
    get(settings, place, key, text);
    WEFT_CHECK(text == name(first) || text == name(second), "{}: {} {}, expected \"{}\" or \"{}\"",
               place, key, io::quote(text), name(first), name(second));
    value = text == name(first) ? first : second;
  };
  choose(kFitKey, pre.fit, data::Fit::kStretch, data::Fit::kShorterSide);
  choose(kFilterKey, pre.filter, data::Filter::kBilinear, data::Filter::kBicubic);
  check_source(p, place);
}

/// What becomes of a file's state on its way into the model.
struct Fitting {
  NamedTensors state;
  std::vector<std::string> notes;
};

/// Puts the model's head in the place of one of another number of classes, or none; false where the
/// file's fits, and where its width says that the model is a different one.
bool replace_head(Fitting& fitting, const NamedTensors& own, nn::Module& model, nn::Linear* head) {
  const auto modules = model.named_modules();
  const auto place = std::ranges::find_if(modules, [&](const auto& m) { return m.second == head; });
  if (!head || place == modules.end()) return false;
  const std::string& name = place->first;
  const Tensor* theirs = find(fitting.state, name + ".weight");
  const Shape& shape = head->weight.shape();
  if (theirs && (theirs->shape() == shape || theirs->dim() != 2 || theirs->size(1) != shape[1])) {
    return false;
  }
  fitting.notes.push_back(
      theirs ? fmt::format("the head of {} classes is replaced by a fresh one of {}",
                           theirs->size(0), shape[0])
             : fmt::format("no head in the file: a fresh one of {} classes", shape[0]));
  const auto in_head = [&](const auto& named) { return nn::is_below(named.first, name); };
  std::erase_if(fitting.state, in_head);
  std::ranges::copy_if(own, std::back_inserter(fitting.state), in_head);
  return true;
}

void interpolate(Fitting& fitting, const NamedTensors& own, const nn::ModelStructure& structure,
                 Interpolation rule) {
  const auto& [positions, prefix] = structure.positions;
  const Tensor* wanted = find(own, positions);
  if (!wanted) return;
  const int64_t width = wanted->size(2), tokens = wanted->size(1);
  for (auto& [name, tensor] : fitting.state) {
    if (name != positions || tensor.dim() != 3 || tensor.size(2) != width) continue;
    const int64_t before = tensor.size(1);
    if (before == tokens) continue;
    tensor = interpolate_positions(tensor, tokens, prefix, rule);
    fitting.notes.push_back(fmt::format(
        "position embeddings interpolated from {} to {} patches ({})", before - prefix,
        tokens - prefix, rule == Interpolation::kTimm ? "timm's rule" : "torchvision's rule"));
  }
}

}  // namespace

Pretrained read_pretrained(const io::Path& path) {
  Pretrained result;
  result.file = read_weight_file(path);
  const std::string file = result.file.path.string();
  result.state = without_wrapper_prefixes(result.file.tensors);
  result.names = recognise_vit(result.state);
  const io::Path directory = result.file.path.parent_path();
  const bool is_gpt2 = recognise_gpt2(result.state);
  if (!result.names && !is_gpt2) return result;
  if (is_gpt2) {
    result.state = io::read_at(file, [&] { return to_gpt2(result.state); });
    apply_gpt2_files(result, directory);
    apply_metadata(result);
    return result;
  }
  RenamedState renamed =
      io::read_at(file, [&] { return to_torchvision(result.state, *result.names); });
  result.state = std::move(renamed.state);
  result.dropped = std::move(renamed.dropped);
  apply_defaults(result, source_names(result));
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
  if (p.layer_norm_eps > 0) metadata[kEpsKey] = json(p.layer_norm_eps).dump();
  if (p.heads) metadata[kHeadsKey] = json(*p.heads).dump();
  if (p.dropout) metadata[kDropoutKey] = json(*p.dropout).dump();
  if (!p.names) return metadata;
  metadata[kNamesKey] = name(source_names(p));
  const data::Preprocess& pre = p.preprocess;
  metadata[kMeanKey] = json(pre.normalization.mean).dump();
  metadata[kStdKey] = json(pre.normalization.std).dump();
  metadata[kResizeKey] = json(pre.resize).dump();
  metadata[kFitKey] = json(name(pre.fit)).dump();
  metadata[kFilterKey] = json(name(pre.filter)).dump();
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
  encoder.heads = p.heads.value_or(usual_heads(w));
  WEFT_CHECK(p.heads ? w % encoder.heads == 0 : w % kUsualDepth == 0,
             "{}: the number of attention heads is not known, and a width of {} is no multiple of "
             "{}",
             file, w, p.heads.value_or(kUsualDepth));
  return config;
}

namespace {

/// Of a transformer; 0 of other models.
int64_t heads_of(const nn::Module& model) {
  if (const auto* vit = dynamic_cast<const models::VisionTransformer*>(&model)) {
    return vit->config.encoder.heads;
  }
  const auto* gpt = dynamic_cast<const models::Gpt*>(&model);
  return gpt ? gpt->config.heads : 0;
}

}  // namespace

std::vector<std::string> load_pretrained(nn::Module& model, const Pretrained& pretrained,
                                         Interpolation rule) {
  WEFT_CHECK(!pretrained.names || dynamic_cast<models::VisionTransformer*>(&model),
             "{}: the weights of a vision transformer ({}'s names) for a model of another kind",
             pretrained.file.path.string(), name(*pretrained.names));
  // Shapes are the same whatever their number.
  const int64_t heads = heads_of(model);
  WEFT_CHECK(heads == 0 || pretrained.heads.value_or(heads) == heads,
             "{}: weights of {} attention heads for a model of {}", pretrained.file.path.string(),
             *pretrained.heads, heads);
  const nn::ModelStructure structure = model.structure();
  nn::Linear* const head = structure.head;
  Fitting fitting{pretrained.state};
  bool is_fresh = false;
  try {
    const NamedTensors own = model.state_dict();
    is_fresh = replace_head(fitting, own, model, head);
    interpolate(fitting, own, structure, rule);
    for (const auto& [name, tensor] : fitting.state) {
      const Tensor* wanted = find(own, name);
      WEFT_CHECK(!wanted || is_floating(wanted->dtype()) == is_floating(tensor.dtype()),
                 "{} is {}, the model's is {}", io::quote(name), tensor.dtype(), wanted->dtype());
      // As the model will have it: a number may be too large for a narrower dtype.
      const Tensor loaded = wanted ? ops::cast(tensor, wanted->dtype()) : tensor;
      WEFT_CHECK(is_finite(loaded), "{} holds a NaN or an infinity", io::quote(name));
    }
    model.load_state_dict(fitting.state);
  } catch (const Error& error) {
    const bool renamed = pretrained.names && *pretrained.names != VitNames::kTorchvision;
    WEFT_FAIL("{}: {}{}", pretrained.file.path.string(), error.what(),
              renamed
                  ? fmt::format(" ({}'s names, shown as torchvision's)", name(*pretrained.names))
                  : "");
  }
  if (is_fresh) {
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
