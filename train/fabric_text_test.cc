// Language models that a Fabric has set up.
#include <catch2/catch.hpp>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "dist/comm/in_process.h"
#include "models/generate.h"
#include "nn/init.h"
#include "train/fabric.h"

using namespace weft;
using namespace weft::train;

namespace {

/// Whose text depends on each of its weights.
std::unique_ptr<models::Gpt> make_model() {
  manual_seed(5);
  auto model = std::make_unique<models::Gpt>(models::GptConfig{.vocabulary = 23,
                                                               .context = 16,
                                                               .width = 16,
                                                               .layers = 2,
                                                               .kv_heads = 2,
                                                               .hidden = 24,
                                                               .tied_head = false});
  for (Tensor parameter : model->parameters()) {
    if (parameter.dim() == 2) nn::init::normal(parameter, 0, 0.3);
  }
  model->to(DType::f64);
  return model;
}

}  // namespace

TEST_CASE("a language model generates under every strategy what it does alone") {
  const std::vector<int64_t> prompt = {4, 11, 0};
  const models::GenerateOptions options = {.max_new_tokens = 9, .temperature = 0.7, .seed = 2};
  const std::vector<int64_t> expected = models::generate(*make_model(), prompt, options);
  const auto check = [&](const FabricOptions& how, const dist::CommunicatorPtr& world) {
    Fabric fabric(how);
    fabric.launch(world);
    const auto model = make_model();
    fabric.setup_model(*model, model->structure());
    for (int time = 0; time < 2; ++time) {
      WEFT_CHECK(models::generate(*model, prompt, options) == expected, "{}: another text",
                 how.strategy.name);
    }
    WEFT_CHECK(model->is_training(), "{}: still in evaluation", how.strategy.name);
  };
  for (const char* name : {"single", "dp", "ddp", "fsdp", "zero1", "tp", "fsdp+tp", "pipeline"}) {
    INFO(name);
    const bool is_single = std::string_view(name) == "single";
    const FabricOptions how = {
        .devices = is_single ? 1 : 2, .precision = "64-true", .strategy = {.name = name}};
    if (is_single || std::string_view(name) == "dp") {
      check(how, nullptr);
    } else {
      dist::run_ranks(2, [&](dist::Communicator& c) {
        check(how, {&c, [](dist::Communicator*) {}});
      });
    }
  }
}
