// weft.models: image classifiers by name, and language models.
#include <fmt/ranges.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>

#include "io/nearest.h"
#include "models/generate.h"
#include "models/gpt_names.h"
#include "models/gpt_options.h"
#include "models/registry.h"
#include "python/bindings.h"
#include "python/docstrings.h"
#include "python/json.h"
#include "python/named_tensors.h"
#include "python/options.h"
#include "train/pretrained/gpt2.h"

namespace weft::python {

using models::GptActivation;
using models::GptNorm;
using models::GptPositions;

template <>
struct Names<GptNorm> {
  static constexpr const char* kOption = "norm";
  static constexpr NameList<GptNorm> kAll = {{"layer", GptNorm::kLayer}, {"rms", GptNorm::kRms}};
};
template <>
struct Names<GptPositions> {
  static constexpr const char* kOption = "positions";
  static constexpr NameList<GptPositions> kAll = {{"learned", GptPositions::kLearned},
                                                  {"rotary", GptPositions::kRotary}};
};
template <>
struct Names<GptActivation> {
  static constexpr const char* kOption = "activation";
  static constexpr NameList<GptActivation> kAll = {{"gelu_tanh", GptActivation::kGeluTanh},
                                                   {"swiglu", GptActivation::kSwiglu}};
};

/// None says nothing here: of transformers' kv_heads and hidden it is what follows from the others.
template <>
inline constexpr bool kNoneIsDefault<models::GptConfig> = false;

namespace {

using models::Classifier;
using models::GenerateOptions;
using models::Gpt;
using models::GptConfig;
using models::KvCache;

/// What a C++ model says of itself, and another of its kind for copies.
template <class Model, class... Extra>
void describe(nb::class_<Model, Extra...>& bound) {
  bound
      .def(
          "structure", [](Model& self) { return self.structure(); }, nb::keep_alive<0, 1>(),
          "What the model says of itself to strategies.")
      .def("_replica",
           [](Model& self) { return std::static_pointer_cast<Model>(self.structure().replica()); });
}

void bind_classifiers(nb::module_& m) {
  nb::class_<Classifier, nn::Module> classifier(m, "Classifier",
                                                "Logits [N, classes] of images [N, C, H, W].");
  classifier
      .def(
          "forward",
          [](Classifier& self, const Tensor& x) {
            self.check_call();
            return self.forward(x);
          },
          "images"_a, Unlocked())
      .def_prop_ro("image_size", &Classifier::image_size)
      .def_prop_ro("classes", &Classifier::classes)
      .def_prop_ro("architecture",
                   [](const Classifier& c) { return object_of(nlohmann::json(c.architecture())); });
  describe(classifier);
  m.def("names", &models::model_names, "Those of image classifiers.");
  m.def(
      "make",
      [](const std::string& name, const nb::kwargs& options) {
        return models::make_model(name, models::model_options_from_json(json_of(options)));
      },
      "name"_a, "options"_a,
      "An image classifier by its name, with fresh parameters: make(\"cct\", image_size=32, "
      "classes=10).");
}

auto gpt_fields() {
  return std::apply(
      [](const auto&... option) {
        return std::tuple(Field{option.name, option.member}...);
      },
      models::gpt_options());
}

/// The options, by name.
nb::dict options_of(const GptConfig& config) {
  nb::dict dict;
  models::for_each_option(models::gpt_options(), config,
                          [&]<class T>(const char* name, const T& value) {
                            dict[name] = Conversion<T>::to_python(value);
                          });
  return dict;
}

constexpr const char* kGpt2 = "gpt2";

std::vector<std::string> gpt_names() {
  std::vector<std::string> names = models::gpt_names();
  names.emplace_back(kGpt2);
  return names;
}

GenerateOptions generate_options(double temperature, int64_t top_k, double top_p) {
  return {.temperature = temperature, .top_k = top_k, .top_p = top_p};
}

void bind_gpt(nb::module_& m) {
  nb::class_<KvCache>(m, "KvCache",
                      "Keys and values of the tokens that a Gpt has seen: the next ones cost their "
                      "own rows alone.")
      .def_ro("length", &KvCache::length, "Tokens that it has seen.");
  nb::class_<Gpt, nn::Module> gpt(
      m, "Gpt",
      "A decoder-only transformer: GPT-2, and what became of it in Llama. Logits [B, T, "
      "vocabulary] of what follows each of the tokens int64 [B, T].\n\n"
      "context: tokens that it sees at most. kv_heads: heads of keys and values, a divisor of "
      "heads. hidden: width of the MLPs.\n"
      "norm: \"rms\" or \"layer\". positions: \"rotary\" or \"learned\". activation: \"swiglu\", "
      "silu(gate(x)) * fc(x), or \"gelu_tanh\".\n"
      "biases: of the linear layers in the blocks. tied_head: the head's weight is the "
      "embedding's. dropout: of embeddings, attention weights, and the branches' results. eps: of "
      "the norms. checkpoint_activations: blocks keep their inputs alone, and are computed again "
      "when their gradients are needed.\n\n"
      "As it stands: a small model of bytes, built like Llama. Weights are N(0, 0.02^2), those of "
      "c_proj over sqrt(2 layers); biases 0. Parameters have the names of GPT-2's published files; "
      "matrices are [out, in]. Throws Error naming the option that does not fit.\n\n"
      "Radford et al., \"Language Models are Unsupervised Multitask Learners\", 2019; Touvron et "
      "al., \"LLaMA\", arXiv:2302.13971; grouped heads: Ainslie et al., \"GQA\", arXiv:2305.13245; "
      "SwiGLU: Shazeer, \"GLU Variants Improve Transformer\", arXiv:2002.05202; rotary positions: "
      "Su et al., \"RoFormer\", arXiv:2104.09864.");
  define_init<GptConfig>(gpt, gpt_fields());
  describe(gpt);
  gpt.def(
         "forward",
         [](Gpt& self, const Tensor& tokens) {
           self.check_call();
           return self.forward(tokens);
         },
         "tokens"_a, Unlocked(),
         "Logits [B, T, vocabulary] of what follows each of the tokens int64 [B, T]. Throws Error "
         "for more tokens than the context, and naming a token that the vocabulary lacks.")
      .def(
          "forward",
          [](Gpt& self, const Tensor& tokens, KvCache& cache) {
            return self.forward(tokens, cache);
          },
          "tokens"_a, "cache"_a, Unlocked(),
          "The same of tokens that follow those in the cache, without gradients; they join the "
          "cache.")
      .def("make_cache", &Gpt::make_cache, "batch"_a = 1, "An empty cache for so many sequences.")
      .def(
          "generate",
          [](Gpt& self, const std::vector<int64_t>& prompt, int64_t max_new_tokens,
             double temperature, int64_t top_k, double top_p, uint64_t seed) {
            GenerateOptions options = generate_options(temperature, top_k, top_p);
            options.max_new_tokens = max_new_tokens;
            options.seed = seed;
            return models::generate(self, prompt, options);
          },
          "prompt"_a, "max_new_tokens"_a = 100, nb::kw_only(), "temperature"_a = 1.0, "top_k"_a = 0,
          "top_p"_a = 1.0, "seed"_a = 0, Unlocked(),
          "The tokens, a list of ints, that follow those of the prompt. They depend on the model, "
          "the prompt and the options alone. Dropout rests meanwhile.\n\n"
          "temperature divides the logits; 0: always the most probable token. top_k: draw from so "
          "many most probable tokens; 0: from all. top_p: draw from the fewest tokens, most "
          "probable first, that have this probability together.\n\n"
          "Throws Error for an empty prompt, options out of range, and a prompt that leaves no "
          "room in the context for what is wanted.\n\n"
          "Holtzman et al., \"The Curious Case of Neural Text Degeneration\", arXiv:1904.09751.")
      .def_prop_ro(
          "config", [](const Gpt& self) { return options_of(self.config); },
          "The options: Gpt(**model.config) is another of the kind.")
      .def_static(
          "from_pretrained",
          [](const io::Path& path) {
            const nb::gil_scoped_release unlocked;
            const train::Pretrained pretrained = train::read_pretrained(path);
            auto model = std::make_unique<Gpt>(train::gpt2_config_of(pretrained));
            train::load_pretrained(*model, pretrained);
            return model;
          },
          "path"_a,
          "GPT-2 with the weights of a file, or of a folder with a config.json beside it, as "
          "transformers' save_pretrained leaves them, as first published, or Weft's own. Throws "
          "Error naming a tensor that does not fit, and a setting of config.json under which GPT-2 "
          "computes what Weft's does not.");
  m.def("gpt_names", &gpt_names, "Those of gpt().");
  m.def(
      "gpt",
      [](const std::string& name, const nb::kwargs& options) {
        const std::vector<std::string> known = gpt_names();
        WEFT_CHECK(std::ranges::count(known, name) > 0,
                   "unknown language model \"{}\"; known are {}{}", name, fmt::join(known, ", "),
                   io::did_you_mean(name, known));
        nb::dict all = options_of(name == kGpt2 ? GptConfig::gpt2() : models::gpt_config(name));
        all.update(options);
        return nb::type<Gpt>()(**all);
      },
      "name"_a = "gpt", "options"_a, nb::sig("def gpt(name: str = 'gpt', **options) -> Gpt"),
      "A Gpt by its name, with fresh parameters and other options than its own: gpt(\"gpt2\", "
      "dropout=0.0). \"gpt\": 4 layers of width 128 that see 256 bytes; \"gpt_mini\": 2 of width "
      "64 that see 64; both are built like Llama, with a head of their own, so that a pipeline can "
      "cut them. \"gpt2\": the smallest of the published ones, of 124 million parameters. Throws "
      "Error listing the names for another one.");
  m.def(
      "token_probabilities",
      [](const std::vector<double>& logits, double temperature, int64_t top_k, double top_p) {
        return models::token_probabilities(logits, generate_options(temperature, top_k, top_p));
      },
      "logits"_a, nb::kw_only(), "temperature"_a = 1.0, "top_k"_a = 0, "top_p"_a = 1.0,
      docs("models::token_probabilities"));
  m.def(
      "gpt2_to_transformers",
      [](const nb::dict& state) { return dict_of(train::from_gpt2(tensors_of(state))); },
      "state_dict"_a,
      "A Gpt's state under the names and in the layout, matrices [in, out], of transformers' "
      "GPT2LMHeadModel; matrices are views. A tied head has no tensor of its own, as in files that "
      "it saves. Throws Error naming a tensor that a GPT-2 does not have, such as Llama's.");
  m.def(
      "gpt2_from_transformers",
      [](const nb::dict& state) { return dict_of(train::to_gpt2(tensors_of(state))); },
      "state_dict"_a,
      "The other way round, for load_state_dict(): of GPT2LMHeadModel and GPT2Model, and as first "
      "published; matrices are views. Others' names stay as they are. Throws Error naming a matrix "
      "that fits neither layout, and two keys of one meaning.");
}

}  // namespace

void bind_models(nb::module_ m) {
  bind_classifiers(m);
  bind_gpt(m);
}

}  // namespace weft::python
