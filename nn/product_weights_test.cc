#include "nn/product_weights.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "nn/nn.h"

using namespace weft;

namespace {

/// Multiplies by a weight that it scales first.
struct Standardized : nn::Linear {
  using nn::Linear::Linear;
  Tensor forward(const Tensor& x) override { return ops::linear(x, weight * 2.0, bias); }
};

struct Net : nn::Module {
  Net()
      : positions(parameter("positions", Tensor::zeros({1, 4, 8}))),
        patches(add<nn::Conv2d>("patches", 3, 8, 2)),
        tokens(add<nn::Embedding>("tokens", 5, 8)),
        attention(add<nn::MultiheadAttention>("attention", 8, 2)),
        norm(add<nn::LayerNorm>("norm", 8)),
        own(add<Standardized>("own", 8, 8)),
        hidden(add<nn::Linear>("hidden", 8, 6)),
        again(add<nn::Linear>("again", 8, 6)),
        tied(add<nn::Linear>("tied", 8, 5, false)) {}
  Tensor positions;
  nn::Conv2d& patches;
  nn::Embedding& tokens;
  nn::MultiheadAttention& attention;
  nn::LayerNorm& norm;
  Standardized& own;
  nn::Linear &hidden, &again, &tied;
};

/// A linear layer and an embedding of one weight.
struct Tied : nn::Module {
  Tied() : head(add<nn::Linear>("head", 4, 3, false)), rows(parameter("rows", head.weight)) {}
  nn::Linear& head;
  Tensor rows;
};

std::set<std::string> names_of(nn::Module& module) {
  const auto ids = nn::product_weights(module);
  std::set<std::string> names;
  for (const auto& [name, tensor] : module.named_parameters()) {
    if (ids.contains(tensor.id())) names.insert(name);
  }
  return names;
}

}  // namespace

TEST_CASE("weights of linear layers, convolutions and attention are read by products alone") {
  Net net;
  CHECK(names_of(net) == std::set<std::string>{"patches.weight", "attention.in_proj_weight",
                                               "attention.out_proj.weight", "hidden.weight",
                                               "again.weight", "tied.weight"});
}

TEST_CASE("a weight that another module has too is not of products alone") {
  Tied tied;
  REQUIRE(tied.num_parameters() == 12);
  CHECK(names_of(tied).empty());
  nn::Linear alone(4, 3);
  CHECK(names_of(alone) == std::set<std::string>{"weight"});
}
