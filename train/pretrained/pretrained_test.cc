#include "train/pretrained/pretrained.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/view.h"
#include "io/pth_reader.h"
#include "io/safetensors_index.h"
#include "models/registry.h"
#include "tests/json_damage.h"

namespace weft::train {
namespace {

using Catch::Matchers::Contains;
using models::VisionTransformer;
using models::VitConfig;

const io::Path kData = "io/testdata";
const char* const kLayer0 = "encoder.layers.encoder_layer_0.";

io::Path scratch(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  return io::Path(directory ? directory : "/tmp") / name;
}

std::map<std::string, Tensor> by_name(const NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

std::map<std::string, Tensor> expected() {
  return by_name(io::read_safetensors(kData / "expected.safetensors").tensors);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const Tensor x = ops::contiguous(a), y = ops::contiguous(b);
  return a.numel() == 0 || std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const NoGrad guard;
  return ops::max(ops::abs(ops::sub(ops::cast(a, DType::f64), ops::cast(b, DType::f64)))).item();
}

/// The model of generate.py, with the heads that torchvision's and timm's files do not tell.
Pretrained read(const std::string& name) {
  Pretrained pretrained = read_pretrained(kData / name);
  pretrained.heads = 2;
  return pretrained;
}

/// Logits in f64 of a model made and loaded from the file.
Tensor logits_of(const Pretrained& pretrained, const Tensor& images) {
  const NoGrad guard;
  VisionTransformer model(vit_config_of(pretrained));
  CHECK(load_pretrained(model, pretrained).empty());
  model.to(DType::f64);
  model.eval();
  return model(images);
}

/// A small model of other random weights.
std::unique_ptr<VisionTransformer> fresh(const Pretrained& pretrained, int64_t classes,
                                         int64_t image_size = 12) {
  VitConfig config = vit_config_of(pretrained);
  config.classes = classes;
  config.image_size = image_size;
  manual_seed(7);
  return std::make_unique<VisionTransformer>(config);
}

Pretrained without(Pretrained pretrained, const std::string& name) {
  const size_t erased =
      std::erase_if(pretrained.state, [&](const auto& named) { return named.first == name; });
  REQUIRE(erased == 1);
  return pretrained;
}

// In f64 both programs round at 2^-53 per operation; two small layers amplify that by far less than
// the thousandfold allowed here, and a wrong term, order or eps shows at once: taking 1e-6 for
// Hugging Face's 1e-12 moves these logits by more than 1e-7.
constexpr double kLogitBound = 1e3 * 0x1p-53;

TEST_CASE("files of torchvision, timm and Hugging Face give their programs' logits") {
  const auto truth = expected();
  const std::pair<const char*, const char*> cases[] = {
      {"torchvision.pth", "torchvision"},
      {"wrapped.pth", "torchvision"},
      {"timm.safetensors", "timm"},
      {"huggingface", "huggingface"},
      {"huggingface/model.safetensors", "huggingface"},
  };
  for (const auto& [file, names] : cases) {
    INFO(file);
    const Pretrained pretrained = read(file);
    REQUIRE(pretrained.names);
    CHECK(name(*pretrained.names) == names);
    const Tensor logits = logits_of(pretrained, truth.at("images"));
    const Tensor& theirs = truth.at(std::string("logits.") + names);
    const double scale = ops::max(ops::abs(theirs)).item();
    CHECK(largest_difference(logits, theirs) <= kLogitBound * scale);
  }
}

TEST_CASE("the LayerNorm eps of the source decides the logits") {
  const auto truth = expected();
  Pretrained pretrained = read("huggingface");
  CHECK(pretrained.layer_norm_eps == 1e-12);
  pretrained.layer_norm_eps = 1e-6;
  const Tensor logits = logits_of(pretrained, truth.at("images"));
  CHECK(largest_difference(logits, truth.at("logits.huggingface")) > 1e-7);
}

TEST_CASE("the architecture is read off the shapes") {
  const VitConfig config = vit_config_of(read("timm.safetensors"));
  CHECK(config.image_size == 12);
  CHECK(config.patch == 4);
  CHECK(config.channels == 3);
  CHECK(config.classes == 5);
  CHECK(config.representation == 0);
  CHECK(config.encoder.layers == 2);
  CHECK(config.encoder.width == 16);
  CHECK(config.encoder.hidden == 32);
  CHECK(config.encoder.heads == 2);
  CHECK(config.encoder.layer_norm_eps == 1e-6);
  CHECK(vit_config_of(read_pretrained(kData / "huggingface")).encoder.heads == 2);  // config.json
  CHECK_THROWS_WITH(vit_config_of(read_pretrained(kData / "timm.safetensors")),
                    Contains("timm.safetensors: the number of attention heads is not known, and a "
                             "width of 16 is no multiple of 64"));
  CHECK_THROWS_WITH(vit_config_of(read_pretrained(kData / "dtypes.pth")),
                    Contains("dtypes.pth: the keys are not those of a vision transformer"));
  CHECK_THROWS_WITH(vit_config_of(read("huggingface_in_memory.pth")),
                    Contains("no heads.head.weight"));
  Pretrained large = read("torchvision.pth");
  for (auto& [name, tensor] : large.state) {
    if (name == std::string("encoder.layers.encoder_layer_1.mlp.0.weight")) {
      tensor = Tensor::zeros({1, 1});
    }
  }
  CHECK_THROWS_WITH(
      vit_config_of(large),
      Contains("encoder_layer_1.mlp.0.weight has the shape [1, 1], expected [32, 16]"));
}

TEST_CASE("heads are 64 wide, but for the published models that have sixteen of other widths") {
  Pretrained pretrained = read_pretrained(kData / "torchvision.pth");
  REQUIRE_FALSE(pretrained.heads);
  // ViT-L, ViT-H (torchvision's vit_h_14), ViT-g and ViT-G, and a width of nobody's.
  const std::map<int64_t, int64_t> known = {
      {1024, 16}, {1280, 16}, {1408, 16}, {1664, 16}, {1536, 24}};
  for (const auto& [w, heads] : known) {
    const std::map<std::string, Shape> shapes = {
        {"conv_proj.weight", {w, 3, 14, 14}},
        {"encoder.pos_embedding", {1, 5, w}},
        {std::string(kLayer0) + "ln_1.weight", {w}},
        {std::string(kLayer0) + "self_attention.in_proj_weight", {3 * w, w}},
        {std::string(kLayer0) + "mlp.0.weight", {4 * w, w}},
        {std::string(kLayer0) + "mlp.3.weight", {w, 4 * w}},
        {"heads.head.weight", {2, w}}};
    pretrained.state.clear();
    for (const auto& [name, shape] : shapes) {
      pretrained.state.emplace_back(name, view::expand(Tensor::scalar(0), shape));
    }
    CHECK(vit_config_of(pretrained).encoder.heads == heads);
  }
}

TEST_CASE("weights of another number of heads are refused, which no shape tells") {
  Pretrained pretrained = read("torchvision.pth");
  const auto model = fresh(pretrained, 5);
  pretrained.heads = 4;
  CHECK_THROWS_WITH(load_pretrained(*model, pretrained),
                    Contains("torchvision.pth: weights of 4 attention heads for a model of 2"));
}

TEST_CASE("input normalisation and resizing follow the source") {
  const auto preprocess = [](const char* name) { return read_pretrained(kData / name).preprocess; };
  const data::Preprocess torchvision = preprocess("torchvision.pth");
  CHECK(torchvision.normalization == data::kImageNetNormalization);
  CHECK(torchvision.size == 12);
  CHECK(torchvision.fit == data::Fit::kShorterSide);
  const data::Preprocess timm = preprocess("timm.safetensors");
  CHECK(timm.normalization.mean == std::array<float, 3>{0.5f, 0.5f, 0.5f});
  CHECK(timm.filter == data::Filter::kBicubic);
  CHECK(timm.resize == 13);
  // What no file says is a guess, by the name of the file where that tells.
  CHECK_THAT(read_pretrained(kData / "timm.safetensors").guess, Contains("mean 0.5 and std 0.5"));
  CHECK(read_pretrained(kData / "huggingface").guess.empty());
  const io::Path named = scratch("deit_tiny_patch16_224.safetensors");
  std::filesystem::copy_file(kData / "timm.safetensors", named,
                             std::filesystem::copy_options::overwrite_existing);
  const Pretrained deit = read_pretrained(named);
  CHECK(deit.preprocess.normalization == data::kImageNetNormalization);
  CHECK(deit.preprocess.resize == deit.preprocess.size * 256 / 224);
  CHECK_THAT(deit.guess, Contains("DeiT or DINO"));
  io::write_safetensors(scratch("said.safetensors"), deit.state, source_metadata(deit));
  const Pretrained said = read_pretrained(scratch("said.safetensors"));
  CHECK(said.preprocess.normalization == data::kImageNetNormalization);
  CHECK(said.guess.empty());
  const data::Preprocess face = preprocess("huggingface");
  CHECK(face.fit == data::Fit::kStretch);
  CHECK(face.normalization.std == std::array<float, 3>{0.5f, 0.5f, 0.5f});
  const Pretrained labelled = read_pretrained(kData / "huggingface");
  CHECK(labelled.classes ==
        std::vector<std::string>{"thing 0", "thing 1", "thing 2", "thing 3", "thing 4"});
}

TEST_CASE("torchvision's and timm's files of other sizes are read at their own resizing") {
  io::Path path = scratch("sizes.safetensors");
  const auto preprocess = [&](int64_t width, int64_t patch, int64_t side) {
    io::write_safetensors(path,
                          {{"class_token", Tensor::zeros({1, 1, width})},
                           {"conv_proj.weight", Tensor::zeros({width, 1, patch, patch})},
                           {"encoder.pos_embedding", Tensor::zeros({1, 1 + side * side, width})}});
    return read_pretrained(path).preprocess;
  };
  const data::Preprocess base = preprocess(768, 16, 14), large = preprocess(1024, 16, 14),
                         swag = preprocess(1280, 14, 37), swag_linear = preprocess(1280, 14, 16);
  CHECK(base.resize == 256);
  CHECK(base.filter == data::Filter::kBilinear);
  CHECK(large.resize == 242);
  CHECK(large.filter == data::Filter::kBilinear);
  CHECK(swag.size == 518);
  CHECK(swag.resize == 518);
  CHECK(swag.filter == data::Filter::kBicubic);
  CHECK(swag_linear.size == 224);
  CHECK(swag_linear.resize == 224);
  CHECK(swag_linear.filter == data::Filter::kBicubic);
  const auto of_timm = [&](int64_t side) {
    io::write_safetensors(path, {{"cls_token", Tensor::zeros({1, 1, 768})},
                                 {"patch_embed.proj.weight", Tensor::zeros({768, 1, 16, 16})},
                                 {"pos_embed", Tensor::zeros({1, 1 + side * side, 768})}});
    return read_pretrained(path).preprocess.resize;
  };
  path = scratch("vit_b_16_lc_swag-4e70ced5.safetensors");
  const data::Preprocess named = preprocess(768, 16, 14);
  CHECK(named.resize == 224);
  CHECK(named.filter == data::Filter::kBicubic);
  CHECK_THAT(read_pretrained(path).guess, Contains("SWAG"));
  CHECK(of_timm(14) == 248);
  CHECK(of_timm(24) == 384);
}

TEST_CASE("files beside the weights are read, and bad ones refused") {
  const io::Path folder = scratch("hf");
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kData / "huggingface/model.safetensors", folder / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  const auto write = [&](const char* name, const std::string& text) {
    io::write_file_atomically(folder / name, [&](io::FileWriter& writer) { writer.write(text); });
  };
  write("config.json", R"({"layer_norm_eps": 1e-5, "num_attention_heads": 4, "id2label":
      {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2", "3": "LABEL_3", "4": "LABEL_4"}})");
  write("preprocessor_config.json",
        R"({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3], "resample": 3})");
  const Pretrained pretrained = read_pretrained(folder);
  CHECK(pretrained.layer_norm_eps == 1e-5);
  CHECK(pretrained.heads == 4);
  CHECK(pretrained.classes.empty());
  CHECK(pretrained.preprocess.normalization == data::Normalization{{.1f, .2f, .3f}, {1, 2, 3}});
  CHECK(pretrained.preprocess.filter == data::Filter::kBicubic);
  for (const auto& [text, message] : {
           std::pair("[1]", "config.json: not a JSON object"),
           std::pair("{", "config.json is damaged: parse error"),
           std::pair(R"({"layer_norm_eps": "x"})",
                     R"("layer_norm_eps": expected a number, got "x")"),
           std::pair(R"({"layer_norm_eps": -1})", "layer_norm_eps -1, expected a number in [0, 1)"),
           std::pair(R"({"num_attention_heads": -3})", "-3 attention heads"),
           std::pair(R"({"hidden_act": "gelu_new"})", R"(hidden_act "gelu_new", Weft has "gelu")"),
       }) {
    INFO(text);
    write("config.json", text);
    CHECK_THROWS_WITH(read_pretrained(folder), Contains(message));
  }
  constexpr size_t kDeep = 200000;
  write("config.json", R"({"a": )" + std::string(kDeep, '[') + std::string(kDeep, ']') + "}");
  CHECK_THROWS_WITH(read_pretrained(folder),
                    Contains("config.json: JSON nested more than 32 deep"));
  // Cut anywhere, keys missing, too many, or of another type: read, or named.
  const auto check_named = [&](const char* name, const std::string& text) {
    int errors = 0;
    const auto check = [&](const std::string& damaged, const std::string& key) {
      INFO(damaged);
      write(name, damaged);
      try {
        read_pretrained(folder);
      } catch (const Error& error) {
        ++errors;
        CHECK_THAT(error.what(), Contains(name) && Contains(key));
      }
    };
    for (size_t size = 0; size < text.size(); ++size) check(text.substr(0, size), "");
    for_each_damage(
        nlohmann::json::parse(text),
        [&](const nlohmann::json& damaged, const std::string& key) { check(damaged.dump(), key); });
    CHECK(errors > static_cast<int>(text.size()));
    write(name, "{}");
  };
  check_named("config.json", R"({"layer_norm_eps": 1e-5, "num_attention_heads": 4,
      "hidden_act": "gelu", "id2label": {"0": "a", "1": "b", "2": "c", "3": "d", "4": "e"}})");
  check_named("preprocessor_config.json",
              R"({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3], "resample": 3,
      "size": {"height": 8, "width": 8}})");
  // DeiT's, which transformers has as ViTForImageClassification: 256 of 224 there, 13 of 12 here.
  for (const std::string size : {"256", R"({"height": 256, "width": 256})"}) {
    write("preprocessor_config.json",
          R"({"do_center_crop": true, "crop_size": 224, "size": )" + size + "}");
    CHECK(read_pretrained(folder).preprocess.resize == 13);
    CHECK(read_pretrained(folder).preprocess.fit == data::Fit::kStretch);
  }
  write("preprocessor_config.json", R"({"do_center_crop": true, "size": {"shortest_edge": 16},
      "crop_size": {"height": 12, "width": 12}})");
  CHECK(read_pretrained(folder).preprocess.resize == 16);
  CHECK(read_pretrained(folder).preprocess.fit == data::Fit::kShorterSide);
  write("preprocessor_config.json", R"({"do_center_crop": false, "size": 16, "crop_size": 12})");
  CHECK(read_pretrained(folder).preprocess.resize == 12);
  write("preprocessor_config.json", R"({"resample": 1})");
  CHECK_THROWS_WITH(read_pretrained(folder),
                    Contains("preprocessor_config.json: resample 1, Weft has 2, bilinear, and 3"));
  write("preprocessor_config.json", R"({"image_std": [1, 0, 3]})");
  CHECK_THROWS_WITH(read_pretrained(folder), Contains("standard deviation 0"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("timm's weights are read where the class token is what they classify by") {
  const io::Path folder = scratch("timm");
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kData / "timm.safetensors", folder / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  const auto read_with = [&](const std::string& config) {
    io::write_file_atomically(folder / "config.json",
                              [&](io::FileWriter& writer) { writer.write(config); });
    return read_pretrained(folder);
  };
  const Pretrained pretrained = read_with(R"({"architecture": "vit_base_patch16_224",
      "global_pool": "token", "pretrained_cfg": {"crop_pct": 1.0, "interpolation": "bilinear"}})");
  CHECK(pretrained.preprocess.resize == 12);
  CHECK(pretrained.preprocess.filter == data::Filter::kBilinear);
  const Pretrained older = read_with(R"({"architecture": "vit_base_patch16_224", "crop_pct": 0.8,
      "interpolation": "bilinear", "mean": [0.1, 0.2, 0.3], "labels": ["a", "b", "c", "d", "e"],
      "model_args": {"num_heads": 4}})");
  CHECK(older.preprocess.resize == 15);
  CHECK(older.preprocess.filter == data::Filter::kBilinear);
  CHECK(older.preprocess.normalization.mean == std::array<float, 3>{0.1f, 0.2f, 0.3f});
  CHECK(older.classes == std::vector<std::string>{"a", "b", "c", "d", "e"});
  CHECK(older.heads == 4);
  const Pretrained squashed = read_with(R"({"crop_pct": 0.8, "crop_mode": "squash"})");
  CHECK(squashed.preprocess.fit == data::Fit::kStretch);
  CHECK(squashed.preprocess.resize == 15);
  CHECK_THROWS_WITH(read_with(R"({"crop_mode": "border"})"),
                    Contains(R"(config.json: crop_mode "border", Weft has "center" and "squash")"));
  CHECK_THROWS_WITH(read_with(R"({"interpolation": "nearest"})"),
                    Contains(R"(config.json: interpolation "nearest", Weft has "bilinear" and)"));
  CHECK_THROWS_WITH(read_with(R"({"global_pool": "avg"})"),
                    Contains(R"(config.json: global_pool "avg", Weft has "token")"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("names go from each to each and back, bit for bit") {
  const NamedTensors ours = read_pretrained(kData / "torchvision.pth").state;
  for (const VitNames names : {VitNames::kTorchvision, VitNames::kTimm, VitNames::kHuggingFace}) {
    INFO(name(names));
    const NamedTensors theirs = from_torchvision(ours, names);
    CHECK(recognise_vit(theirs) == names);
    const auto back = by_name(to_torchvision(theirs, names).state);
    REQUIRE(back.size() == ours.size());
    for (const auto& [key, tensor] : ours) {
      INFO(key);
      REQUIRE(back.count(key));
      CHECK(same_bits(back.at(key), tensor));
    }
  }
  // Written under the names that the programs' own files have.
  const auto keys = [](const NamedTensors& tensors) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) names.push_back(name);
    std::ranges::sort(names);
    return names;
  };
  CHECK(keys(from_torchvision(ours, VitNames::kTimm)) ==
        keys(io::read_safetensors(kData / "timm.safetensors").tensors));
  CHECK(keys(from_torchvision(ours, VitNames::kHuggingFace)) ==
        keys(io::read_safetensors(kData / "huggingface/model.safetensors").tensors));
}

TEST_CASE("Hugging Face's names in memory mean what those in its files do") {
  const Pretrained file = read_pretrained(kData / "huggingface");
  const Pretrained memory = read_pretrained(kData / "huggingface_in_memory.pth");
  CHECK(memory.names == VitNames::kHuggingFace);
  CHECK(memory.dropped == std::vector<std::string>{"pooler.dense.weight", "pooler.dense.bias"});
  const auto from_file = by_name(file.state);
  for (const auto& [key, tensor] : memory.state) {
    INFO(key);
    CHECK(same_bits(from_file.at(key), tensor));
  }
  CHECK(memory.state.size() + 2 == file.state.size());  // ViTModel has no classifier
}

TEST_CASE("keys that mean the same, or that lack a part, are refused by name") {
  const NamedTensors ours = read_pretrained(kData / "torchvision.pth").state;
  NamedTensors twice = ours;
  twice.emplace_back(std::string(kLayer0) + "mlp.linear_1.weight", Tensor::zeros({32, 16}));
  CHECK_THROWS_WITH(
      to_torchvision(twice, VitNames::kTorchvision),
      Contains("mlp.0.weight\" and \"") && Contains("linear_1.weight\" mean the same"));
  NamedTensors face = from_torchvision(ours, VitNames::kHuggingFace);
  const std::string key = "vit.encoder.layer.1.attention.attention.key.weight";
  std::erase_if(face, [&](const auto& named) { return named.first == key; });
  CHECK_THROWS_WITH(to_torchvision(face, VitNames::kHuggingFace),
                    "the key \"" + key + "\" is missing");
  face.emplace_back(key, Tensor::zeros({16, 15}));
  CHECK_THROWS_WITH(to_torchvision(face, VitNames::kHuggingFace),
                    Contains("expected three of a kind"));
  face.back().second = Tensor::zeros({16, 16});
  face.emplace_back("vit.layers.1.attention.k_proj.weight", Tensor::zeros({16, 16}));
  CHECK_THROWS_WITH(to_torchvision(face, VitNames::kHuggingFace),
                    Contains("k_proj.weight\" has the meaning of another one"));
  CHECK_THROWS_WITH(from_torchvision({{"conv1.weight", Tensor::zeros({1})}}, VitNames::kTimm),
                    "\"conv1.weight\" has no counterpart among timm's names");
  CHECK_THROWS_WITH(parse_vit_names("keras"),
                    "names: \"keras\" is not one of torchvision, timm, huggingface");
  CHECK_THROWS_WITH(parse_vit_names("trochvision"), Contains("did you mean \"torchvision\"?"));
}

TEST_CASE("prefixes that wrappers put before every key are taken off") {
  const auto key = [](NamedTensors state) { return without_wrapper_prefixes(state)[0].first; };
  const Tensor x = Tensor::scalar(1);
  CHECK(key({{"module._orig_mod.a", x}, {"module._orig_mod.b", x}}) == "a");
  CHECK(key({{"module.a", x}, {"b", x}}) == "module.a");
  CHECK(without_wrapper_prefixes({}).empty());
}

TEST_CASE("a head of other classes is replaced by a fresh one, and so is a missing one") {
  const Pretrained pretrained = read("torchvision.pth");
  const auto model = fresh(pretrained, 3);
  CHECK(load_pretrained(*model, pretrained) ==
        std::vector<std::string>{"the head of 5 classes is replaced by a fresh one of 3"});
  const auto loaded = by_name(model->state_dict()), source = by_name(pretrained.state);
  CHECK(same_bits(loaded.at("encoder.ln.weight"), source.at("encoder.ln.weight")));
  // As a new Linear(16, 3): uniform within 1/sqrt(16), and not the zeros of a new model.
  const double largest = ops::max(ops::abs(loaded.at("heads.head.weight"))).item();
  CHECK(largest <= 0.25);
  CHECK(largest > 0.1);

  Pretrained headless = without(pretrained, "heads.head.weight");
  headless = without(headless, "heads.head.bias");
  CHECK(load_pretrained(*fresh(pretrained, 4), headless) ==
        std::vector<std::string>{"no head in the file: a fresh one of 4 classes"});
  const auto kept = fresh(pretrained, 5);
  CHECK(load_pretrained(*kept, pretrained).empty());
  CHECK(same_bits(by_name(kept->state_dict()).at("heads.head.weight"),
                  source.at("heads.head.weight")));
}

TEST_CASE("position embeddings are interpolated as torchvision and timm do") {
  const auto truth = expected();
  for (const int64_t side : {1, 2, 5}) {
    for (const auto& [rule, name] : {std::pair(Interpolation::kTorchvision, "torchvision"),
                                     std::pair(Interpolation::kTimm, "timm")}) {
      INFO(name << " " << side);
      const Tensor ours = interpolate_positions(truth.at("positions"), 1 + side * side, 1, rule);
      // Sums of at most 16 products with weights that add up to at most 2 in absolute value, in
      // either order: 2 * 16 roundings of values below 2.
      CHECK(largest_difference(ours, truth.at(fmt::format("positions.{}.{}", name, side))) <=
            64 * 0x1p-53);
    }
  }
  const Pretrained pretrained = read("torchvision.pth");
  const auto model = fresh(pretrained, 5, 20);
  CHECK(load_pretrained(*model, pretrained) ==
        std::vector<std::string>{
            "position embeddings interpolated from 9 to 25 patches (torchvision's rule)"});
  const Tensor loaded = by_name(model->state_dict()).at("encoder.pos_embedding");
  // Rounded once to f32.
  CHECK(largest_difference(loaded, truth.at("positions.torchvision.5")) <= 2 * 0x1p-24);
  CHECK(parse_interpolation("timm") == Interpolation::kTimm);
  CHECK_THROWS_WITH(parse_interpolation("nearest"),
                    "interpolation: \"nearest\" is not one of torchvision, timm");
  CHECK_THROWS_WITH(
      interpolate_positions(Tensor::zeros({1, 11, 2}), 10, 1, Interpolation::kTimm),
      "position embeddings f32 [1, 11, 2] on cpu: 10 patches do not make a square grid");
}

TEST_CASE("weights that do not fit change nothing") {
  const Pretrained pretrained = read("timm.safetensors");
  const auto model = fresh(pretrained, 5);
  const auto before = by_name(model->state_dict());
  std::map<std::string, std::vector<double>> values;
  for (const auto& [name, tensor] : before) values[name] = tensor.to_vector();
  const auto refuses = [&](const Pretrained& wrong, const std::string& message) {
    INFO(message);
    CHECK_THROWS_WITH(load_pretrained(*model, wrong),
                      Contains("timm.safetensors: ") && Contains(message));
    for (const auto& [name, tensor] : before) CHECK(tensor.to_vector() == values[name]);
  };
  refuses(without(pretrained, "encoder.ln.bias"),
          "missing keys: encoder.ln.bias (timm's names, shown as torchvision's)");
  Pretrained more = pretrained;
  more.state.emplace_back("reg_token", Tensor::zeros({1, 4, 16}));
  refuses(more, "unexpected keys: reg_token");
  Pretrained integers = pretrained;
  for (auto& [name, tensor] : integers.state) {
    if (name == "encoder.ln.bias") tensor = Tensor::zeros({16}, DType::i32);
  }
  refuses(integers, R"("encoder.ln.bias" is i32, the model's is f32)");
  Pretrained wide = pretrained;
  for (auto& [name, tensor] : wide.state) {
    if (name == "heads.head.weight") tensor = Tensor::zeros({5, 17});
  }
  refuses(wide, "heads.head.weight (expected [5, 16], got [5, 17])");
  Pretrained odd = pretrained;
  for (auto& [name, tensor] : odd.state) {
    if (name == "encoder.pos_embedding") tensor = Tensor::zeros({1, 8, 16});
  }
  refuses(odd, "7 patches do not make a square grid");

  const auto other = models::make_model("cct", {.layers = 1});
  CHECK_THROWS_WITH(load_pretrained(*other, pretrained),
                    Contains("timm.safetensors: the weights of a vision transformer (timm's names) "
                             "for a model of another kind"));
  const Pretrained none = read_pretrained(kData / "no_crc.pth");
  CHECK_THROWS_WITH(load_pretrained(*other, none), Contains("no_crc.pth: load_state_dict: missing "
                                                            "keys: "));
}

TEST_CASE("other models' own files load too, with another head") {
  manual_seed(1);
  const auto a = models::make_model("cct", {.classes = 4, .layers = 1}),
             b = models::make_model("cct", {.classes = 6, .layers = 1});
  const io::Path path = scratch("cct.safetensors");
  io::write_safetensors(path, a->state_dict());
  CHECK(load_pretrained(*b, read_pretrained(path)) ==
        std::vector<std::string>{"the head of 4 classes is replaced by a fresh one of 6"});
  CHECK(same_bits(by_name(a->state_dict()).at("attention_pool.weight"),
                  by_name(b->state_dict()).at("attention_pool.weight")));
}

TEST_CASE(
    "weights that are no numbers, or none in the model's dtype, are named before any is loaded") {
  manual_seed(1);
  const auto model = models::make_model("cct", {.classes = 4, .layers = 1}),
             other = models::make_model("cct", {.classes = 4, .layers = 1});
  const auto numbers = [&] { return model->state_dict()[0].second.to_vector(); };
  const std::vector<double> before = numbers();
  NamedTensors state = other->state_dict();
  const io::Path path = scratch("nan.safetensors");
  const Shape shape = by_name(state).at("attention_pool.weight").shape();
  for (const float value : {NAN, INFINITY, 3e38f}) {
    Tensor changed = Tensor::full(shape, 1);
    changed.data<float>()[0] = changed.data<float>()[1] = value;
    for (auto& [name, tensor] : state) {
      if (name == "attention_pool.weight") tensor = changed;
    }
    io::write_safetensors(path, state);
    const auto load = [&] { load_pretrained(*model, read_pretrained(path)); };
    if (std::isfinite(value)) {
      CHECK_NOTHROW(load());  // although the sum is not
      CHECK(numbers() != before);
    } else {
      CHECK_THROWS_WITH(load(), Contains("nan.safetensors: \"attention_pool.weight\" holds a NaN"));
      CHECK(numbers() == before);
    }
  }
  model->to(DType::f16);
  CHECK_THROWS_WITH(load_pretrained(*model, read_pretrained(path)),
                    Contains("\"attention_pool.weight\" holds a NaN or an infinity"));
}

TEST_CASE("the metadata of a converted file keeps what the source decided") {
  const Pretrained face = read_pretrained(kData / "huggingface");
  const io::Path path = scratch("converted.safetensors");
  io::write_safetensors(path, face.state, source_metadata(face));
  const Pretrained again = read_pretrained(path);
  CHECK(again.names == VitNames::kTorchvision);
  CHECK(again.layer_norm_eps == 1e-12);
  CHECK(again.heads == 2);
  CHECK(again.preprocess.normalization == face.preprocess.normalization);
  CHECK(again.preprocess.fit == data::Fit::kStretch);
  // What files beside the weights said is with the converted one alone.
  Pretrained timm = read_pretrained(kData / "timm.safetensors");
  timm.preprocess.resize = 17;
  timm.preprocess.filter = data::Filter::kBilinear;
  timm.preprocess.fit = data::Fit::kStretch;
  io::write_safetensors(path, timm.state, source_metadata(timm));
  CHECK(read_pretrained(path).preprocess.resize == 17);
  CHECK(read_pretrained(path).preprocess.filter == data::Filter::kBilinear);
  CHECK(read_pretrained(path).preprocess.fit == data::Fit::kStretch);
  CHECK(source_metadata(read_pretrained(kData / "dtypes.pth")).empty());
  for (const auto& [key, value, message] :
       {std::tuple("image_resize", "3", "image_resize 3, expected 0 or 12 to 65536"),
        {"image_filter", "\"box\"", R"(image_filter "box", expected "bilinear" or "bicubic")"}}) {
    io::write_safetensors(path, face.state, {{key, value}});
    CHECK_THROWS_WITH(read_pretrained(path), Contains(message));
  }
  io::write_safetensors(path, face.state, {{"layer_norm_eps", "no number"}});
  CHECK_THROWS_WITH(read_pretrained(path),
                    Contains("metadata: \"layer_norm_eps\" is damaged: parse error"));
  io::write_safetensors(path, face.state, {{"layer_norm_eps", "\"x\""}});
  CHECK_THROWS_WITH(read_pretrained(path),
                    Contains("metadata: \"layer_norm_eps\": expected a number"));
  constexpr size_t kDeep = 200000;
  io::write_safetensors(path, face.state,
                        {{"image_mean", std::string(kDeep, '[') + std::string(kDeep, ']')}});
  CHECK_THROWS_WITH(read_pretrained(path),
                    Contains("metadata: \"image_mean\": JSON nested more than 32 deep"));
}

TEST_CASE("a directory's weights are its model.safetensors, else its pytorch_model.bin") {
  const io::Path folder = scratch("folder");
  std::filesystem::create_directories(folder);
  const auto copy = [&](const char* from, const char* to) {
    std::filesystem::copy_file(kData / from, folder / to);
  };
  copy("torchvision.pth", "pytorch_model.bin");
  CHECK(read_weight_file(folder).is_pth);
  copy("timm.safetensors", "model.safetensors");
  CHECK(read_weight_file(folder).path == folder / "model.safetensors");
  std::filesystem::remove_all(folder);
}

TEST_CASE("weights in several files are read by their index, of a directory or named") {
  const io::Path folder = scratch("several"), whole = kData / "timm.safetensors";
  const auto state = by_name(io::read_safetensors(whole).tensors);
  std::vector<io::PendingTensor> tensors;
  for (const auto& [name, x] : state) tensors.push_back({name, x.dtype(), x.shape()});
  const auto files = io::write_indexed(folder, tensors, 2000,
                                       [&](const std::string& name) { return state.at(name); });
  REQUIRE(files.size() > 3);
  const io::Path index = folder / "model.safetensors.index.json";
  for (const io::Path& path : {folder, index}) {
    const Pretrained several = read_pretrained(path), one = read_pretrained(whole);
    CHECK(several.file.path == index);
    CHECK(describe_format(several.file) ==
          fmt::format("safetensors in {} files", files.size() - 1));
    CHECK(several.names == one.names);
    const auto found = by_name(several.state);
    CHECK(found.size() == one.state.size());
    for (const auto& [name, x] : one.state) CHECK(same_bits(found.at(name), x));
  }
  // Parts of torch.save, and one that is gone.
  std::filesystem::copy_file(kData / "torchvision.pth", folder / "pytorch_model-1.bin");
  const std::string name = io::read_pth(kData / "torchvision.pth").tensors.at(0).first;
  const auto write = [&](const std::string& file, const std::string& part) {
    io::write_file_atomically(folder / file, [&](io::FileWriter& writer) {
      writer.write(fmt::format(R"({{"weight_map": {{"{}": "{}"}}}})", name, part));
    });
    return folder / file;
  };
  const WeightFile pth =
      read_weight_file(write("pytorch_model.bin.index.json", "pytorch_model-1.bin"));
  CHECK(pth.is_pth);
  CHECK(pth.tensors.size() == 1);
  CHECK_THROWS_WITH(read_weight_file(write("other.index.json", "none.bin")),
                    Contains("none.bin: No such file"));
  // An index is no part of an index.
  CHECK_THROWS_WITH(read_weight_file(write("self.index.json", "self.index.json")),
                    Contains("self.index.json"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("formats are told by their first bytes") {
  CHECK(describe_format(read_weight_file(kData / "timm.safetensors")) == "safetensors");
  CHECK(describe_format(read_weight_file(kData / "dtypes.pth")) == "torch.save");
  CHECK(describe_format(read_weight_file(kData / "wrapped.pth")) ==
        "torch.save, under the key \"state_dict\" (not read: epoch optimizer)");
  CHECK_THROWS_WITH(read_weight_file(kData / "legacy.pth"), Contains("PyTorch 1.5 or older"));
  CHECK_THROWS_WITH(read_weight_file(kData),
                    Contains("holds no model.safetensors and no pytorch_model.bin"));
  CHECK_THROWS_WITH(read_weight_file("/nonexistent"), Contains("cannot read /nonexistent"));
  // A header of 640 bytes begins as a pickle does.
  const io::Path path = scratch("640.safetensors");
  io::Metadata metadata = {{"pad", std::string(640 - 28, 'x')}};
  {
    io::FileWriter writer(path);
    io::write_safetensors(writer, {}, metadata);
    writer.finish();
  }
  const std::string bytes = io::read_text(path);
  CHECK(bytes.substr(0, 2) == "\x80\x02");
  CHECK(read_weight_file(path).metadata == metadata);
}

}  // namespace
}  // namespace weft::train
