#include "dist/data_parallel/data_parallel.h"

#include <catch2/catch.hpp>
#include <set>

#include "dist/strategy/testing/oracle.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

NamedTensors gradients_of(const nn::Module& model) {
  NamedTensors result;
  for (const auto& [name, p] : model.named_parameters()) result.emplace_back(name, p.grad());
  return cloned(result);
}

}  // namespace

TEST_CASE("DataParallel equals the module itself") {
  for (int replicas : {1, 2, 3, 8}) {
    const OracleBatch batch = oracle_batch(0, 7, DType::f64);
    const auto one = make_oracle_model(DType::f64), many = make_oracle_model(DType::f64);
    DataParallel parallel(
        *many, [] { return make_oracle_model(DType::f64, 77); }, replicas);
    optim::AdamW a(one->named_parameters(), {.lr = 0.01}),
        b(many->named_parameters(), {.lr = 0.01});
    for (int step = 0; step < 3; ++step) {
      Tensor x = batch.x.alias(), y = batch.x.alias();
      x.set_requires_grad(true);
      y.set_requires_grad(true);
      a.zero_grad();
      b.zero_grad();
      const Tensor expected = (*one)(x), got = parallel(y);
      CHECK(difference({{"y", got}}, {{"y", expected}}) < 1e-14);
      backward(ops::cross_entropy(expected, batch.labels));
      backward(ops::cross_entropy(got, batch.labels));
      CHECK(difference(gradients_of(*many), gradients_of(*one)) < 1e-13);
      CHECK(difference({{"dx", y.grad()}}, {{"dx", x.grad()}}) < 1e-13);
      a.step();
      b.step();
    }
    CHECK(difference(many->state_dict(), one->state_dict()) < 1e-12);
  }
}

TEST_CASE("DataParallel keeps the first replica's buffers and refuses other architectures") {
  nn::BatchNorm2d model(2);
  DataParallel parallel(
      model, [] { return std::make_unique<nn::BatchNorm2d>(2); }, 2);
  // Images of ones for the first replica, of threes for the second.
  Tensor x = Tensor::full({4, 2, 2, 2}, 1);
  std::fill_n(x.data<float>() + 16, 16, 3.0f);
  const NoGrad guard;
  parallel(x);
  CHECK(model.running_mean.to_vector()[0] == Approx(0.1));
  CHECK(model.num_batches_tracked.item() == 1);
  CHECK_THROWS_WITH(DataParallel(
                        model, [] { return std::make_unique<nn::BatchNorm2d>(3); }, 2),
                    Contains("do not have the tensors"));
  const auto make = [] { return std::make_unique<nn::BatchNorm2d>(2); };
  CHECK_THROWS_WITH(DataParallel(model, make, 2, {0}),
                    Contains("1 numbers of devices for 2 replicas"));
  CHECK_THROWS_WITH(DataParallel(model, make, 2, {1, 0}),
                    Contains("the first replica is to be on number 1"));
}

TEST_CASE("the parts of replicas train or evaluate as those of the module do") {
  const auto make = [] {
    auto model = std::make_shared<nn::Sequential>();
    model->append<nn::BatchNorm2d>(2);
    model->append<nn::Dropout>(0.5);
    return model;
  };
  const auto one = make(), many = make();
  DataParallel parallel(*many, make, 2);
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, {4, 2, 1, 1});
  const NoGrad guard;
  for (const bool trains : {false, true, false}) {
    for (nn::Sequential* const model : {one.get(), many.get()}) {
      model->train();
      (*model)[0].train(trains);
      (*model)[1].eval();
    }
    const Tensor y = parallel(x);
    // Statistics of a batch are those of each replica's rows.
    if (!trains) CHECK(y.to_vector() == (*one)(x).to_vector());
    Tensor seen = dynamic_cast<nn::BatchNorm2d&>((*many)[0]).num_batches_tracked;
    CHECK(seen.item() == (trains ? 1 : 0));
    ops::zero_(seen);
    (*many)[0].load_state_dict((*one)[0].state_dict());
  }
}

TEST_CASE("trap: gradients are those of the parameters that the forward pass had") {
  struct Growing : nn::Module {
    using Module::parameter;
    Growing() : a(parameter("a", Tensor::full({2}, 3))) {}
    Tensor forward(const Tensor& x) override { return x * a; }
    Tensor a;
  };
  Growing model;
  std::vector<std::shared_ptr<Growing>> replicas;
  const auto make = [&] { return replicas.emplace_back(std::make_shared<Growing>()); };
  DataParallel parallel(model, make, 2);
  const Tensor y = parallel(Tensor::full({4, 2}, 5));
  // As in a program that adds a layer to its model before it calls backward().
  for (const auto& replica : replicas) replica->parameter("b", Tensor::full({1}, 1));
  backward(ops::sum(y));
  CHECK(model.a.grad().to_vector() == std::vector<double>{20, 20});
}

TEST_CASE("DataParallel refuses a module that has got tensors which its replicas do not have") {
  struct Growing : nn::Module {
    using Module::buffer;
    using Module::parameter;
    Growing() { parameter("a", Tensor::full({1}, 1)); }
    Tensor forward(const Tensor& x) override { return x; }
  };
  const auto make = [] { return std::make_shared<Growing>(); };
  Growing weights, buffers;
  DataParallel first(weights, make, 2), second(buffers, make, 2);
  weights.parameter("b", Tensor::full({1}, 1));
  buffers.buffer("c", Tensor::full({1}, 1));
  const Tensor x = Tensor::full({2}, 1);
  const char* const expected = "Growing: expected the tensors that it had when it was set up, got ";
  CHECK_THROWS_WITH(first(x), Contains(expected + std::string("\"b\"")));
  CHECK_THROWS_WITH(second(x), Contains(expected + std::string("\"c\"")));
}
