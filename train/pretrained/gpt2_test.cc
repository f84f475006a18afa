#include "train/pretrained/gpt2.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "tests/shell.h"
#include "tests/skip.h"

namespace weft::train {
namespace {

using Catch::Matchers::Contains;

const io::Path kData = "train/pretrained/testdata";

std::map<std::string, Tensor> expected(const io::Path& folder = kData) {
  const NamedTensors tensors = io::read_safetensors(folder / "expected.safetensors").tensors;
  return {tensors.begin(), tensors.end()};
}

io::Path scratch(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  return io::Path(directory ? directory : "/tmp") / name;
}

/// How far logits lie from the truth, in units of its largest.
double distance(const Tensor& logits, const Tensor& truth) {
  REQUIRE(logits.shape() == truth.shape());
  const NoGrad guard;
  return ops::max(ops::abs(ops::sub(ops::cast(logits, DType::f64), truth))).item() /
         ops::max(ops::abs(truth)).item();
}

// Both programs round at u per operation, and add up the same terms in other orders: along a path
// to a logit some hundred of them, in two small layers that amplify an error by less than ten. A
// wrong term, order, mask or eps shows at once: taking 1e-5 for this file's 1e-3 moves the logits
// by more than 1e-4.
constexpr double kRoundings = 1e3;

/// `u`: of the truth.
void check_logits(models::Gpt& model, const Tensor& tokens, const Tensor& truth, double u) {
  const NoGrad guard;
  model.eval();
  for (const DType dtype : {DType::f32, DType::f64}) {
    model.to(dtype);
    const double bound = kRoundings * std::max(u, unit_roundoff(dtype));
    CHECK(distance(model(tokens), truth) <= bound);
    models::KvCache cache = model.make_cache(tokens.size(0));
    Tensors parts;
    for (int64_t t = 0; t < tokens.size(1); ++t) {
      parts.push_back(model.forward(ops::narrow(tokens, 1, t, 1), cache));
    }
    CHECK(distance(ops::cat(parts, 1), truth) <= bound);
  }
}

void check_gpt2(const io::Path& folder) {
  const auto truth = expected(folder);
  for (const char* file : {"gpt2", "gpt2/model.safetensors", "gpt2/hub.bin"}) {
    INFO(file);
    const Pretrained pretrained = read_pretrained(folder / file);
    CHECK_FALSE(pretrained.names);
    models::Gpt model(gpt2_config_of(pretrained));
    CHECK(load_pretrained(model, pretrained).empty());
    check_logits(model, truth.at("tokens"), truth.at("logits.gpt2"), 0x1p-53);
  }
}

void check_llama(const io::Path& folder) {
  const auto truth = expected(folder);
  NamedTensors state;
  for (const auto& [name, tensor] : truth) {
    if (name.starts_with("llama.")) state.emplace_back(name.substr(6), tensor);
  }
  models::Gpt model({.vocabulary = 24,
                     .context = 12,
                     .width = 8,
                     .layers = 2,
                     .heads = 2,
                     .kv_heads = 1,
                     .hidden = 12,
                     .tied_head = false});
  model.load_state_dict(state);
  // transformers computes Llama's norms and angles in f32, whatever the model's dtype.
  check_logits(model, truth.at("tokens"), truth.at("logits.llama"), 0x1p-24);
}

TEST_CASE("GPT-2's files give transformers' logits") { check_gpt2(kData); }

TEST_CASE("Llama's layers give transformers' logits") { check_llama(kData); }

TEST_CASE("models that transformers makes now give its logits") {
  const std::string python = "timeout 240 python3 ";
  if (run_command(python + "-c 'import torch, transformers, safetensors.torch'").code != 0) {
    WEFT_SKIP("GPT-2 of transformers: python3 has no torch, transformers and safetensors");
  }
  const io::Path folder = scratch("transformers");
  std::filesystem::create_directories(folder);
  const CommandOutcome made =
      run_command(python + (kData / "generate.py").string() + " " + folder.string() + " 7");
  INFO(made.text);
  REQUIRE(made.code == 0);
  check_gpt2(folder);
  check_llama(folder);
  std::filesystem::remove_all(folder);
}

/// A loaded model's tensors under transformers' names.
NamedTensors written_back(const io::Path& folder) {
  const Pretrained pretrained = read_pretrained(folder / "gpt2");
  models::Gpt model(gpt2_config_of(pretrained));
  load_pretrained(model, pretrained);
  NamedTensors state;
  for (const auto& [name, tensor] : model.state_dict())
    state.emplace_back(name, ops::clone(tensor));
  return from_gpt2(state);
}

TEST_CASE("a GPT-2 goes back under transformers' names, bit for bit") {
  const io::Path path = scratch("back.safetensors");
  io::write_safetensors(path, written_back(kData), {{"format", "pt"}});
  const auto theirs = io::read_safetensors(kData / "gpt2/model.safetensors");
  const auto tensors = io::read_safetensors(path).tensors;
  const std::map<std::string, Tensor> ours(tensors.begin(), tensors.end());
  CHECK(ours.size() == theirs.tensors.size());
  for (const auto& [name, tensor] : theirs.tensors) {
    INFO(name);
    REQUIRE(ours.contains(name));
    const Tensor& mine = ours.at(name);
    CHECK(mine.dtype() == tensor.dtype());
    CHECK(mine.shape() == tensor.shape());
    CHECK(std::memcmp(mine.raw(), tensor.raw(), tensor.nbytes()) == 0);
  }
  // And ours again.
  const NamedTensors there = to_gpt2(from_gpt2(to_gpt2(theirs.tensors)));
  const NamedTensors here = to_gpt2(theirs.tensors);
  REQUIRE(there.size() == here.size());
  for (size_t i = 0; i < here.size(); ++i) {
    CHECK(there[i].first == here[i].first);
    CHECK(there[i].second.to_vector() == here[i].second.to_vector());
  }
}

TEST_CASE("what a GPT-2 does not have is named, and a head of its own keeps its name") {
  const Tensor one = Tensor::zeros({1, 1});
  CHECK(from_gpt2({{"lm_head.weight", one}})[0].first == "lm_head.weight");
  for (const char* name : {"h.0.mlp.c_gate.weight", "h.attn.c_attn.weight", "h.x.ln_1.weight",
                           "h.0.ln_1", "h.0.weight", "transformer.wte.weight", "ln_f.eps", "wte"}) {
    CHECK_THROWS_WITH(from_gpt2({{name, one}}),
                      fmt::format("\"{}\" is no tensor of a GPT-2", name));
  }
  CHECK_THROWS_WITH(from_gpt2({{"h.10.mlp.c_fc.weight", Tensor::zeros({3})}}),
                    Contains("\"h.10.mlp.c_fc.weight\" is f32 [3] on cpu, expected a matrix"));
}

TEST_CASE("transformers loads what was written back") {
  const std::string python = "timeout 240 python3 ";
  if (run_command(python + "-c 'import torch, transformers, safetensors.torch'").code != 0) {
    WEFT_SKIP("GPT-2 for transformers: python3 has no torch, transformers and safetensors");
  }
  const io::Path folder = scratch("written_back");
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kData / "gpt2/config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  io::write_safetensors(folder / "model.safetensors", written_back(kData), {{"format", "pt"}});
  const CommandOutcome loaded =
      run_command(fmt::format("{} {} {} {}", python, (kData / "load.py").string(), folder.string(),
                              (kData / "expected.safetensors").string()));
  INFO(loaded.text);
  CHECK(loaded.code == 0);
  std::filesystem::remove_all(folder);
}

TEST_CASE("config.json's eps decides the logits") {
  const auto truth = expected();
  const Pretrained pretrained = read_pretrained(kData / "gpt2");
  models::GptConfig config = gpt2_config_of(pretrained);
  CHECK(config.eps == 1e-3);
  config.eps = 1e-5;
  models::Gpt model(config);
  load_pretrained(model, pretrained);
  model.eval();
  CHECK(distance(model(truth.at("tokens")), truth.at("logits.gpt2")) > 1e-4);
}

TEST_CASE("a GPT-2's architecture is read off the shapes and config.json") {
  const models::GptConfig config = gpt2_config_of(read_pretrained(kData / "gpt2"));
  CHECK(config.vocabulary == 24);
  CHECK(config.context == 12);
  CHECK(config.width == 8);
  CHECK(config.layers == 2);
  CHECK(config.heads == 2);
  CHECK(config.kv_heads == 2);
  CHECK(config.hidden == 32);
  CHECK(config.tied_head);
  // Alone, the file does not tell its heads.
  const io::Path alone = scratch("alone.safetensors");
  std::filesystem::copy_file(kData / "gpt2/model.safetensors", alone,
                             std::filesystem::copy_options::overwrite_existing);
  CHECK_THROWS_WITH(gpt2_config_of(read_pretrained(alone)),
                    Contains("the number of attention heads is not known, and a width of 8"));
  CHECK_THROWS_WITH(gpt2_config_of(read_pretrained(kData / "expected.safetensors")),
                    Contains("the keys are not those of a GPT-2"));
}

TEST_CASE("Weft's own file of a GPT-2 is read as it is, and keeps heads and eps") {
  const Pretrained pretrained = read_pretrained(kData / "gpt2");
  models::GptConfig config = gpt2_config_of(pretrained);
  config.tied_head = false;
  manual_seed(1);
  models::Gpt model(config);
  const io::Path path = scratch("ours.safetensors");
  io::write_safetensors(path, model.state_dict(), source_metadata(pretrained));
  const Pretrained again = read_pretrained(path);
  CHECK(again.heads == 2);
  CHECK(again.layer_norm_eps == 1e-3);
  const models::GptConfig found = gpt2_config_of(again);
  CHECK_FALSE(found.tied_head);
  models::Gpt loaded(found);
  CHECK(load_pretrained(loaded, again).empty());
  const NamedTensors a = model.state_dict(), b = loaded.state_dict();
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i].second.to_vector() == b[i].second.to_vector());
}

TEST_CASE("a GPT-2 is trained with config.json's dropout, also when it was converted") {
  CHECK(gpt2_config_of(read_pretrained(kData / "gpt2")).dropout == 0.1);
  const io::Path folder = scratch("dropout"), converted = scratch("dropout.safetensors");
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kData / "gpt2/model.safetensors", folder / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  io::write_file_atomically(folder / "config.json", [](io::FileWriter& writer) {
    writer.write(R"({"n_head": 2, "embd_pdrop": 0, "attn_pdrop": 0.0, "resid_pdrop": 0})");
  });
  const Pretrained pretrained = read_pretrained(folder);
  CHECK(gpt2_config_of(pretrained).dropout == 0);
  io::write_safetensors(converted, pretrained.state, source_metadata(pretrained));
  CHECK(gpt2_config_of(read_pretrained(converted)).dropout == 0);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a GPT-2 that does not fit is named") {
  const NamedTensors state = read_pretrained(kData / "gpt2").file.tensors;
  NamedTensors twice = state;
  twice.emplace_back("ln_f.weight", Tensor::zeros({8}));
  CHECK_THROWS_WITH(to_gpt2(twice), "two keys mean the parameter \"ln_f.weight\"");
  const std::string key = "transformer.h.0.attn.c_attn.weight";
  NamedTensors odd = state;
  for (auto& [name, tensor] : odd) {
    if (name == key) tensor = Tensor::zeros({8, 25});
  }
  CHECK_THROWS_WITH(to_gpt2(odd), Contains("[8, 25] on cpu, expected [W, 3 W] or [3 W, W]"));

  const io::Path folder = scratch("gpt2");
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kData / "gpt2/model.safetensors", folder / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  for (const auto& [text, message] :
       {std::pair(R"({"activation_function": "relu"})",
                  R"(activation_function "relu", Weft has "gelu_new")"),
        std::pair(R"({"scale_attn_weights": false})", "scale_attn_weights is false"),
        std::pair(R"({"n_head": "two"})", R"("n_head": expected a whole number, got "two")"),
        std::pair(R"({"layer_norm_epsilon": 2})", "layer_norm_epsilon 2, expected a number"),
        std::pair(R"({"attn_pdrop": 0})",
                  "embd_pdrop, attn_pdrop and resid_pdrop are 0.1, 0 and 0.1"),
        std::pair("[]", "config.json: not a JSON object")}) {
    INFO(text);
    io::write_file_atomically(folder / "config.json",
                              [&, &t = text](io::FileWriter& writer) { writer.write(t); });
    CHECK_THROWS_WITH(read_pretrained(folder), Contains(message));
  }
  // A head that is not the embedding, which config.json says it is unless it says otherwise.
  NamedTensors untied = state;
  std::erase_if(untied, [](const auto& named) { return named.first == "lm_head.weight"; });
  untied.emplace_back("lm_head.weight", Tensor::zeros({24, 8}));
  io::write_safetensors(folder / "model.safetensors", untied);
  const auto read_with = [&](const std::string& config) {
    io::write_file_atomically(folder / "config.json",
                              [&](io::FileWriter& writer) { writer.write(config); });
    return read_pretrained(folder);
  };
  CHECK_THROWS_WITH(read_with(R"({"n_head": 2})"),
                    Contains("config.json: lm_head.weight differs from wte.weight in "));
  const std::string says_so = R"({"n_head": 2, "tie_word_embeddings": false})";
  CHECK_FALSE(gpt2_config_of(read_with(says_so)).tied_head);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace weft::train
