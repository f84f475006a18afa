#include "nn/modes.h"

#include <catch2/catch.hpp>

#include "nn/nn.h"

using namespace weft;

namespace {

std::unique_ptr<nn::Sequential> make() {
  auto model = std::make_unique<nn::Sequential>();
  model->append<nn::Linear>(2, 2);
  auto& inner = model->append<nn::Sequential>();
  inner.append<nn::Dropout>(0.5);
  inner.append<nn::BatchNorm2d>(2);
  return model;
}

std::vector<bool> modes_of(nn::Module& module) {
  std::vector<bool> modes;
  for (const auto& [name, part] : module.named_modules()) modes.push_back(part->is_training());
  return modes;
}

}  // namespace

TEST_CASE("each module has its own mode back after an evaluation, in a copy too") {
  const auto model = make(), copy = make();
  for (size_t i : {1, 2, 4}) {
    model->train();
    model->named_modules()[i].second->eval();
    const std::vector<bool> before = modes_of(*model);
    {
      const nn::EvalScope scope(*model);
      CHECK(modes_of(*model) == std::vector<bool>(5, false));
    }
    CHECK(modes_of(*model) == before);
    nn::Modes(*model).restore(*copy);
    CHECK(modes_of(*copy) == before);
  }
}

TEST_CASE("a module that was added meanwhile goes along with its parent, where that changes") {
  const auto model = make();
  model->eval();
  const nn::Modes modes(*model);
  model->train();
  auto& added =
      static_cast<nn::Sequential*>(model->named_modules()[2].second)->append<nn::Dropout>(0.5);
  modes.restore(*model);
  CHECK(modes_of(*model) == std::vector<bool>(6, false));
  added.train();
  modes.restore(*model);
  CHECK(added.is_training());
}
