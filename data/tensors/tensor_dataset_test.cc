#include "data/tensors/tensor_dataset.h"

#include <catch2/catch.hpp>
#include <set>

#include "autograd/ops.h"
#include "core/error.h"

using namespace weft;
using namespace weft::data;
using Catch::Matchers::Contains;

namespace {

Tensor numbers(int64_t count) {
  std::vector<int64_t> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = i;
  return Tensor::from(values, {count});
}

/// Windows of a text and the same one further, as language models are trained.
struct Tokens : TensorDataset {
  explicit Tokens(int64_t count) : text(numbers(count)) {}
  int64_t size() const override { return (text.numel() - 1) / 4; }
  Tensors sample(int64_t i) const override {
    return {ops::narrow(text, 0, 4 * i, 4), ops::narrow(text, 0, 4 * i + 1, 4)};
  }
  Tensor text;
};

}  // namespace

TEST_CASE("rows of several tensors come in batches, each once, in an order of (seed, epoch)") {
  const Tensor x = numbers(10);
  const Tensor pairs = ops::stack({x, x * 2.0}, 1);
  TensorLoader loader(tensor_dataset({x, pairs}), {.batch_size = 4, .shuffle = true, .seed = 3});
  CHECK(loader.batches() == 3);
  std::vector<std::vector<double>> epochs(2);
  for (std::vector<double>& seen : epochs) {
    while (const auto batch = loader.next()) {
      REQUIRE(batch->size() == 2);
      CHECK((*batch)[0].dtype() == DType::i64);
      CHECK((*batch)[1].shape() == Shape({(*batch)[0].size(0), 2}));
      const std::vector<double> rows = (*batch)[1].to_vector();
      for (double v : (*batch)[0].to_vector()) {
        CHECK(rows[2 * (seen.size() % 4) + 1] == 2 * v);
        seen.push_back(v);
      }
    }
    CHECK(std::set<double>(seen.begin(), seen.end()).size() == 10);
  }
  CHECK(epochs[0] != epochs[1]);
  for (int64_t epoch : {0, 1}) {
    const std::vector<int64_t> order = epoch_order(10, true, 3, epoch);
    CHECK(epochs[epoch] == std::vector<double>(order.begin(), order.end()));
  }
  // From anywhere, without those before.
  loader.seek({1, 2});
  CHECK(loader.next()->at(0).to_vector() == std::vector<double>{epochs[1][8], epochs[1][9]});
  CHECK(loader.position() == LoaderPosition{1, 3});
  CHECK(!loader.next());
  CHECK(loader.position() == LoaderPosition{2, 0});
}

TEST_CASE("a set of one's own") {
  const auto tokens = std::make_shared<Tokens>(14);
  TensorLoader loader(tokens, {.batch_size = 2});
  const Tensors batch = *loader.next();
  CHECK(batch[0].shape() == Shape({2, 4}));
  CHECK(batch[0].to_vector() == std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(batch[1].to_vector() == std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(TensorLoader(tokens, {.batch_size = 2, .drop_last = true}).batches() == 1);
}

TEST_CASE("a set says what is wrong with it") {
  struct Ragged : TensorDataset {
    int64_t size() const override { return 3; }
    Tensors sample(int64_t i) const override { return {Tensor::zeros({i + 1})}; }
  };
  CHECK_THROWS_WITH(TensorLoader(std::make_shared<Ragged>(), {.batch_size = 2}).next(),
                    Contains("tensor 0 of sample 1 is") && Contains("of sample 0 it is"));
  CHECK_THROWS_WITH(tensor_dataset({}), Contains("got none"));
  CHECK_THROWS_WITH(tensor_dataset({numbers(3), numbers(4)}), Contains("3 and 4 rows"));
  CHECK_THROWS_WITH(tensor_dataset({Tensor::scalar(1)}), Contains("a row for each sample"));
  const TensorDatasetPtr set = tensor_dataset({numbers(3)});
  CHECK_THROWS_WITH(TensorLoader(set, {.batch_size = 0}), Contains("positive, got 0"));
  CHECK_THROWS_WITH(TensorLoader(set, {.batch_size = 4, .drop_last = true}),
                    Contains("larger than the data set of 3 samples"));
  TensorLoader loader(set, {});
  CHECK_THROWS_WITH(loader.seek({0, 4}), Contains("an epoch has 3 batches"));
}
