#include "train/pretrained/vit_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>

#include "autograd/ops.h"
#include "core/view.h"
#include "io/nearest.h"
#include "io/quote.h"

namespace weft::train {
namespace {

constexpr std::string_view kNames[] = {"torchvision", "timm", "huggingface"};

// "#" is the number of a layer; rows that end in "." stand for weight and bias.
using Row = std::array<std::string_view, 3>;  // by VitNames

constexpr Row kRows[] = {
    {"class_token", "cls_token", "vit.embeddings.cls_token"},
    {"encoder.pos_embedding", "pos_embed", "vit.embeddings.position_embeddings"},
    {"conv_proj.", "patch_embed.proj.", "vit.embeddings.patch_embeddings.projection."},
    {"encoder.layers.encoder_layer_#.ln_1.", "blocks.#.norm1.",
     "vit.encoder.layer.#.layernorm_before."},
    {"encoder.layers.encoder_layer_#.self_attention.in_proj_weight", "blocks.#.attn.qkv.weight",
     ""},
    {"encoder.layers.encoder_layer_#.self_attention.in_proj_bias", "blocks.#.attn.qkv.bias", ""},
    {"encoder.layers.encoder_layer_#.self_attention.out_proj.", "blocks.#.attn.proj.",
     "vit.encoder.layer.#.attention.output.dense."},
    {"encoder.layers.encoder_layer_#.ln_2.", "blocks.#.norm2.",
     "vit.encoder.layer.#.layernorm_after."},
    {"encoder.layers.encoder_layer_#.mlp.0.", "blocks.#.mlp.fc1.",
     "vit.encoder.layer.#.intermediate.dense."},
    {"encoder.layers.encoder_layer_#.mlp.3.", "blocks.#.mlp.fc2.",
     "vit.encoder.layer.#.output.dense."},
    {"encoder.ln.", "norm.", "vit.layernorm."},
    {"heads.head.", "head.", "classifier."},
};

constexpr std::string_view kQuery = "vit.encoder.layer.#.attention.attention.query.",
                           kKey = "vit.encoder.layer.#.attention.attention.key.",
                           kValue = "vit.encoder.layer.#.attention.attention.value.",
                           kInProjection = "encoder.layers.encoder_layer_#.self_attention.in_proj_";
constexpr std::string_view kThirds[] = {kQuery, kKey, kValue};

// Other forms of the same names, read and never written.
constexpr std::pair<std::string_view, std::string_view> kOlderTorchvision[] = {
    {"encoder.layers.encoder_layer_#.mlp.linear_1.", "encoder.layers.encoder_layer_#.mlp.0."},
    {"encoder.layers.encoder_layer_#.mlp.linear_2.", "encoder.layers.encoder_layer_#.mlp.3."},
};
constexpr std::pair<std::string_view, std::string_view> kHuggingFaceInMemory[] = {
    {"vit.layers.#.attention.q_proj.", kQuery},
    {"vit.layers.#.attention.k_proj.", kKey},
    {"vit.layers.#.attention.v_proj.", kValue},
    {"vit.layers.#.attention.o_proj.", "vit.encoder.layer.#.attention.output.dense."},
    {"vit.layers.#.layernorm_before.", "vit.encoder.layer.#.layernorm_before."},
    {"vit.layers.#.layernorm_after.", "vit.encoder.layer.#.layernorm_after."},
    {"vit.layers.#.mlp.fc1.", "vit.encoder.layer.#.intermediate.dense."},
    {"vit.layers.#.mlp.fc2.", "vit.encoder.layer.#.output.dense."},
};
constexpr std::string_view kHuggingFaceUnused[] = {"vit.pooler.dense.",
                                                   "vit.embeddings.mask_token"};

/// What a pattern leaves open.
struct Match {
  std::string layer;  // digits
  std::string tail;   // "weight" or "bias", of patterns that end in "."
};

std::optional<Match> match(std::string_view pattern, std::string_view text) {
  Match result;
  const size_t mark = pattern.find('#');
  if (mark != std::string_view::npos) {
    if (!text.starts_with(pattern.substr(0, mark))) return std::nullopt;
    text.remove_prefix(mark);
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (digits == 0 || (digits > 1 && text[0] == '0')) return std::nullopt;
    result.layer = text.substr(0, digits);
    text.remove_prefix(digits);
    pattern.remove_prefix(mark + 1);
  }
  if (!pattern.ends_with(".")) return text == pattern ? std::optional(result) : std::nullopt;
  if (!text.starts_with(pattern)) return std::nullopt;
  result.tail = text.substr(pattern.size());
  const bool is_known = result.tail == "weight" || result.tail == "bias";
  return is_known ? std::optional(result) : std::nullopt;
}

std::string fill(std::string_view pattern, const Match& match) {
  std::string text(pattern);
  if (const size_t mark = text.find('#'); mark != std::string::npos) {
    text.replace(mark, 1, match.layer);
  }
  return text + match.tail;
}

std::string_view of(const Row& row, VitNames names) { return row[static_cast<size_t>(names)]; }

/// The first rule whose left pattern fits, applied.
template <class Rules>
std::string rewrite(const Rules& rules, std::string name) {
  for (const auto& [from, to] : rules) {
    if (const auto found = match(from, name)) return fill(to, *found);
  }
  return name;
}

/// The form in which kRows has it.
std::string usual_form(std::string name, VitNames names) {
  if (names == VitNames::kTorchvision) return rewrite(kOlderTorchvision, std::move(name));
  if (names == VitNames::kTimm) return name;
  // ViTModel is ViTForImageClassification's "vit".
  for (const std::string_view part :
       {"embeddings.", "encoder.layer.", "layers.", "layernorm.", "pooler."}) {
    if (name.starts_with(part)) {
      name.insert(0, "vit.");
      break;
    }
  }
  return rewrite(kHuggingFaceInMemory, std::move(name));
}

bool is_unused(const std::string& usual, VitNames names) {
  return names == VitNames::kHuggingFace &&
         std::ranges::any_of(kHuggingFaceUnused, [&](std::string_view pattern) {
           return match(pattern, usual).has_value();
         });
}

/// Query, key and value, one above the other.
Tensor join(const std::string& name, const std::array<Tensor, 3>& thirds) {
  for (const Tensor& third : thirds) {
    WEFT_CHECK(third.dim() >= 1 && third.shape() == thirds[0].shape() &&
                   third.dtype() == thirds[0].dtype(),
               "{}: its query is {}, its key {} and its value {}; expected three of a kind",
               io::quote(name), thirds[0], thirds[1], thirds[2]);
  }
  const NoGrad guard;
  return ops::cat({thirds[0], thirds[1], thirds[2]}, 0);
}

}  // namespace

std::string_view name(VitNames names) { return kNames[static_cast<size_t>(names)]; }

VitNames parse_vit_names(std::string_view text) {
  for (const VitNames names : {VitNames::kTorchvision, VitNames::kTimm, VitNames::kHuggingFace}) {
    if (name(names) == text) return names;
  }
  WEFT_FAIL("names: {} is not one of torchvision, timm, huggingface{}", io::quote(text),
            io::did_you_mean(text, {std::begin(kNames), std::end(kNames)}));
}

std::optional<VitNames> recognise_vit(const NamedTensors& state) {
  // Tensors that every vision transformer has, under names that few other models do.
  for (const VitNames names : {VitNames::kTorchvision, VitNames::kTimm, VitNames::kHuggingFace}) {
    std::unordered_set<std::string_view> wanted = {of(kRows[0], names), of(kRows[1], names)};
    const std::string projection = std::string(of(kRows[2], names)) + "weight";
    wanted.insert(projection);
    for (const auto& [name, tensor] : state) wanted.erase(usual_form(name, names));
    if (wanted.empty()) return names;
  }
  return std::nullopt;
}

RenamedState to_torchvision(const NamedTensors& state, VitNames from) {
  RenamedState result;
  std::map<std::string, std::string> sources;  // torchvision's name: the file's
  const auto add = [&](std::string ours, const std::string& theirs, const Tensor& tensor) {
    const auto [place, is_new] = sources.emplace(ours, theirs);
    WEFT_CHECK(is_new, "the keys {} and {} mean the same parameter", io::quote(place->second),
               io::quote(theirs));
    result.state.emplace_back(std::move(ours), tensor);
  };
  struct Thirds {
    std::array<Tensor, 3> tensors;
    Match match;  // of one of them
  };
  std::map<std::string, Thirds> joined;  // by torchvision's name

  for (const auto& [name, tensor] : state) {
    const std::string usual = usual_form(name, from);
    if (is_unused(usual, from)) {
      result.dropped.push_back(name);
      continue;
    }
    bool is_known = false;
    for (size_t i = 0; i < std::size(kThirds) && from == VitNames::kHuggingFace; ++i) {
      const auto found = match(kThirds[i], usual);
      if (!found) continue;
      const std::string ours = fill(kInProjection, *found);
      // The place of the joined tensor is that of the first of the three.
      if (!joined.count(ours)) add(ours, name, {});
      Thirds& thirds = joined[ours];
      WEFT_CHECK(!thirds.tensors[i].defined(), "the key {} has the meaning of another one",
                 io::quote(name));
      thirds.tensors[i] = tensor;
      thirds.match = *found;
      is_known = true;
    }
    for (const Row& row : kRows) {
      if (is_known || of(row, from).empty()) continue;
      const auto found = match(of(row, from), usual);
      if (!found) continue;
      add(fill(row[0], *found), name, tensor);
      is_known = true;
    }
    if (!is_known) add(name, name, tensor);
  }

  for (auto& [name, tensor] : result.state) {
    const auto found = joined.find(name);
    if (found == joined.end()) continue;
    for (size_t i = 0; i < std::size(kThirds); ++i) {
      WEFT_CHECK(found->second.tensors[i].defined(), "the key {} is missing",
                 io::quote(fill(kThirds[i], found->second.match)));
    }
    tensor = join(name, found->second.tensors);
  }
  return result;
}

NamedTensors from_torchvision(const NamedTensors& state, VitNames to) {
  NamedTensors result;
  for (const auto& [name, tensor] : state) {
    const std::string usual = usual_form(name, VitNames::kTorchvision);
    const size_t before = result.size();
    if (to == VitNames::kHuggingFace) {
      for (const std::string tail : {"weight", "bias"}) {
        const auto found = match(std::string(kInProjection) + tail, usual);
        if (!found) continue;
        WEFT_CHECK(tensor.dim() >= 1 && tensor.size(0) % 3 == 0,
                   "{} is {}; expected query, key and value one above the other", io::quote(name),
                   tensor);
        const int64_t rows = tensor.size(0) / 3;
        for (int64_t i = 0; i < 3; ++i) {
          result.emplace_back(fill(kThirds[i], {found->layer, tail}),
                              view::slice(tensor, 0, i * rows, (i + 1) * rows));
        }
      }
    }
    for (const Row& row : kRows) {
      if (of(row, to).empty()) continue;
      if (const auto found = match(row[0], usual)) {
        result.emplace_back(fill(of(row, to), *found), tensor);
      }
    }
    WEFT_CHECK(result.size() > before, "{} has no counterpart among {}'s names", io::quote(name),
               weft::train::name(to));
  }
  return result;
}

NamedTensors without_wrapper_prefixes(NamedTensors state) {
  for (bool changed = !state.empty(); changed;) {
    changed = false;
    for (const std::string_view prefix : {"module.", "_orig_mod."}) {
      const auto has_prefix = [&](const auto& named) { return named.first.starts_with(prefix); };
      if (!std::ranges::all_of(state, has_prefix)) continue;
      for (auto& [name, tensor] : state) name.erase(0, prefix.size());
      changed = true;
    }
  }
  return state;
}

}  // namespace weft::train
