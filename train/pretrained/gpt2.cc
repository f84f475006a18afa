#include "train/pretrained/gpt2.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "core/view.h"
#include "train/pretrained/json_settings.h"

namespace weft::train {
namespace {

constexpr std::string_view kPrefix = "transformer.", kHead = "lm_head.weight";
constexpr std::string_view kMatrices[] = {".attn.c_attn.weight", ".attn.c_proj.weight",
                                          ".mlp.c_fc.weight", ".mlp.c_proj.weight"};
constexpr std::string_view kMasks[] = {".attn.bias", ".attn.masked_bias"};

std::string our_name(const std::string& key) {
  return key.starts_with(kPrefix) ? key.substr(kPrefix.size()) : key;
}

const Tensor* find(const NamedTensors& state, std::string_view ours) {
  const auto place =
      std::ranges::find_if(state, [&](const auto& named) { return our_name(named.first) == ours; });
  return place == state.end() ? nullptr : &place->second;
}

bool ends_in(const std::string& name, std::span<const std::string_view> endings) {
  return name.starts_with("h.") && std::ranges::any_of(endings, [&](std::string_view ending) {
           return name.ends_with(ending);
         });
}

/// Whether matrices are [in, out]: told by the first one's shape, [W, 3 W] or [3 W, W].
bool is_transposed(const NamedTensors& state) {
  const std::string first = "h.0.attn.c_attn.weight";
  const Tensor& matrix = *find(state, first);
  WEFT_CHECK(matrix.dim() == 2 &&
                 (matrix.size(1) == 3 * matrix.size(0) || matrix.size(0) == 3 * matrix.size(1)),
             "{} is {}, expected [W, 3 W] or [3 W, W]", first, matrix);
  return matrix.size(1) == 3 * matrix.size(0);
}

/// Whether a tensor of one of Weft's names is a GPT-2's.
bool is_gpt2s(std::string_view name) {
  constexpr std::string_view kLayers[] = {"ln_1", "attn.c_attn", "attn.c_proj",
                                          "ln_2", "mlp.c_fc",    "mlp.c_proj"};
  if (name == kHead || name == "wte.weight" || name == "wpe.weight") return true;
  const size_t tail = name.rfind('.');
  if (tail == name.npos || (name.substr(tail) != ".weight" && name.substr(tail) != ".bias")) {
    return false;
  }
  const std::string_view module = name.substr(0, tail);
  if (module == "ln_f") return true;
  const size_t number = name.find_first_not_of("0123456789", 2);
  return name.starts_with("h.") && number > 2 && number != name.npos && name[number] == '.' &&
         number < tail && std::ranges::count(kLayers, module.substr(number + 1)) == 1;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.is_contiguous() &&
         b.is_contiguous() && std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0;
}

Shape shape_of(const Pretrained& p, const std::string& name, int dims) {
  const Tensor* tensor = find(p.state, name);
  const std::string file = p.file.path.string();
  WEFT_CHECK(tensor, "{}: no {}: not the weights of a whole GPT-2", file, name);
  WEFT_CHECK(tensor->dim() == dims && tensor->numel() > 0, "{}: {} is {}, expected {} dimensions",
             file, name, *tensor, dims);
  return tensor->shape();
}

}  // namespace

bool recognise_gpt2(const NamedTensors& state) {
  return find(state, "wte.weight") && find(state, "wpe.weight") &&
         find(state, "h.0.attn.c_attn.weight");
}

NamedTensors to_gpt2(const NamedTensors& state) {
  const bool transposes = is_transposed(state);
  const Tensor* const embedding = find(state, "wte.weight");
  NamedTensors result;
  std::unordered_set<std::string> names;
  for (const auto& [key, tensor] : state) {
    std::string name = our_name(key);
    const bool is_tied_head = name == kHead && same_bits(tensor, *embedding);
    if (is_tied_head || ends_in(name, kMasks)) continue;
    WEFT_CHECK(names.insert(name).second, "two keys mean the parameter {}", io::quote(name));
    const bool turns = transposes && ends_in(name, kMatrices);
    WEFT_CHECK(!turns || tensor.dim() == 2, "{} is {}, expected a matrix", io::quote(key), tensor);
    result.emplace_back(std::move(name), turns ? view::transpose(tensor, 0, 1) : tensor);
  }
  return result;
}

NamedTensors from_gpt2(const NamedTensors& state) {
  NamedTensors result;
  for (const auto& [name, tensor] : state) {
    WEFT_CHECK(is_gpt2s(name), "{} is no tensor of a GPT-2", io::quote(name));
    const bool turns = ends_in(name, kMatrices);
    WEFT_CHECK(!turns || tensor.dim() == 2, "{} is {}, expected a matrix", io::quote(name), tensor);
    result.emplace_back(name == kHead ? name : std::string(kPrefix) + name,
                        turns ? view::transpose(tensor, 0, 1) : tensor);
  }
  return result;
}

void apply_gpt2_files(Pretrained& p, const io::Path& directory) {
  const std::string place = (directory / "config.json").string();
  const nlohmann::json config = read_json(place);
  std::string activation = "gelu_new";
  get(config, place, "activation_function", activation);
  WEFT_CHECK(activation == "gelu_new" || activation == "gelu_pytorch_tanh",
             "{}: activation_function {}, Weft has \"gelu_new\"", place, io::quote(activation));
  for (const auto& [key, expected] : {std::pair("scale_attn_weights", true),
                                      {"scale_attn_by_inverse_layer_idx", false},
                                      {"add_cross_attention", false}}) {
    bool value = expected;
    get(config, place, key, value);
    WEFT_CHECK(value == expected, "{}: {} is {}, which Weft does not have", place, key, value);
  }
  // transformers puts the embedding in the place of another head, or keeps it, as its version has
  // it.
  bool is_tied = !config.empty();
  get(config, place, "tie_word_embeddings", is_tied);
  WEFT_CHECK(!is_tied || !find(p.state, kHead),
             "{}: {} differs from wte.weight in {}, where tie_word_embeddings, true unless it is "
             "given, has one be the other; with \"tie_word_embeddings\": false the file's is taken",
             place, kHead, p.file.path.string());
  std::array<double, 3> dropouts;
  dropouts.fill(models::GptConfig::gpt2().dropout);
  constexpr const char* kDropouts[] = {"embd_pdrop", "attn_pdrop", "resid_pdrop"};
  for (size_t i = 0; i < dropouts.size(); ++i) get(config, place, kDropouts[i], dropouts[i]);
  const double dropout = dropouts[0];
  WEFT_CHECK(dropouts[1] == dropout && dropouts[2] == dropout && dropout >= 0 && dropout < 1,
             "{}: embd_pdrop, attn_pdrop and resid_pdrop are {}, {} and {}, Weft has one number in "
             "[0, 1) for all three",
             place, dropout, dropouts[1], dropouts[2]);
  p.dropout = dropout;
  p.layer_norm_eps = models::GptConfig::gpt2().eps;
  get(config, place, "layer_norm_epsilon", p.layer_norm_eps);
  WEFT_CHECK(p.layer_norm_eps > 0 && p.layer_norm_eps < 1,
             "{}: layer_norm_epsilon {}, expected a number in (0, 1)", place, p.layer_norm_eps);
  int64_t heads = 0;
  get(config, place, "n_head", heads);
  WEFT_CHECK(heads >= 0, "{}: {} attention heads", place, heads);
  if (heads > 0) p.heads = heads;
}

models::GptConfig gpt2_config_of(const Pretrained& p) {
  const std::string file = p.file.path.string();
  WEFT_CHECK(recognise_gpt2(p.state), "{}: the keys are not those of a GPT-2", file);
  models::GptConfig config = models::GptConfig::gpt2();
  const Shape tokens = shape_of(p, "wte.weight", 2);
  const int64_t w = tokens[1];
  config.vocabulary = tokens[0];
  config.width = w;
  config.context = shape_of(p, "wpe.weight", 2)[0];
  config.hidden = shape_of(p, "h.0.mlp.c_fc.weight", 2)[0];
  const auto layer = [](int64_t i) { return "h." + std::to_string(i) + "."; };
  config.layers = 0;
  while (find(p.state, layer(config.layers) + "ln_1.weight")) ++config.layers;
  // A model is made of these sizes: the file must hold as much.
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const auto& [tail, shape] : {std::pair("attn.c_attn.weight", Shape{3 * w, w}),
                                      {"attn.c_proj.weight", Shape{w, w}},
                                      {"mlp.c_fc.weight", Shape{config.hidden, w}},
                                      {"mlp.c_proj.weight", Shape{w, config.hidden}}}) {
      const Shape found = shape_of(p, layer(i) + tail, 2);
      WEFT_CHECK(found == shape, "{}: {} has the shape {}, expected {}", file, layer(i) + tail,
                 found, shape);
    }
  }
  config.tied_head = find(p.state, kHead) == nullptr;
  if (p.layer_norm_eps > 0) config.eps = p.layer_norm_eps;
  config.dropout = p.dropout.value_or(config.dropout);
  constexpr int64_t kUsualDepth = 64;
  const int64_t heads = p.heads.value_or(w / kUsualDepth);
  WEFT_CHECK(heads > 0 && (p.heads ? w % heads == 0 : w % kUsualDepth == 0),
             "{}: the number of attention heads is not known, and a width of {} is no multiple of "
             "{}",
             file, w, p.heads.value_or(kUsualDepth));
  config.heads = config.kv_heads = heads;
  return config;
}

}  // namespace weft::train
