// The members of GptConfig by their names: Python's keyword arguments (python/models.cc), and what
// checkpoints keep of a model that its weights describe (train/runs/text_model.h).
#pragma once

#include <tuple>

#include "models/gpt.h"

namespace weft::models {

template <class T>
struct GptOption {
  const char* name;
  T GptConfig::*member;
};
template <class T>
GptOption(const char*, T GptConfig::*) -> GptOption<T>;

/// What the files of a GPT-2 tell of it; else it is as GptConfig::gpt2() says.
constexpr auto gpt_sizes() {
  using C = GptConfig;
  return std::tuple(GptOption{"vocabulary", &C::vocabulary}, GptOption{"context", &C::context},
                    GptOption{"width", &C::width}, GptOption{"layers", &C::layers},
                    GptOption{"heads", &C::heads}, GptOption{"kv_heads", &C::kv_heads},
                    GptOption{"hidden", &C::hidden}, GptOption{"tied_head", &C::tied_head},
                    GptOption{"eps", &C::eps}, GptOption{"dropout", &C::dropout});
}

/// All of them.
constexpr auto gpt_options() {
  using C = GptConfig;
  return std::tuple_cat(
      gpt_sizes(),
      std::tuple(GptOption{"norm", &C::norm}, GptOption{"positions", &C::positions},
                 GptOption{"activation", &C::activation}, GptOption{"biases", &C::biases},
                 GptOption{"rope_base", &C::rope_base},
                 GptOption{"checkpoint_activations", &C::checkpoint_activations}));
}

/// Calls visit(name, member) for each of some options; works on const and mutable configurations.
template <class... T, class Config, class Visit>
void for_each_option(const std::tuple<GptOption<T>...>& options, Config& config, Visit&& visit) {
  std::apply([&](const auto&... option) { (visit(option.name, config.*option.member), ...); },
             options);
}

}  // namespace weft::models
