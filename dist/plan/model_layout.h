// A model as far as its sizes go: what the formulas of the strategies are about.
//
//   const Sharing sharing = {.shard = 4, .tensor = 2};                  // 4 parts of 2 cuts
//   const ModelLayout mine = layout_of(model, structure, sharing, 3);   // of rank 3
//
// Under tensor parallelism a rank's layout is that of a model with its parts of the cut layers, in
// a pipeline that of its stage.
#pragma once

#include <cstdint>
#include <vector>

#include "dist/plan/sharing.h"
#include "nn/structure.h"

namespace weft::dist {

/// Elements.
struct ModelLayout {
  int64_t parameters = 0;
  int64_t largest_parameter = 0;
  /// Of the root, which is what no policy chose: how much comes before the first other unit in
  /// order of registration, and how much behind it.
  int64_t root_before = 0, root_behind = 0;
  std::vector<int64_t> units;  // the others, in the order of a forward pass
  std::vector<int64_t> sizes;  // of all parameters, in order of registration
  /// Of the units and the root what products alone read (nn/product_weights.h); empty: nothing.
  std::vector<int64_t> unit_products;
  int64_t root_products = 0;

  // Tensor parallelism: attentions and MLPs that are cut, what a parallel head takes, and the whole
  // parameters whose gradients are summed where tokens are dealt out.
  int64_t cut_layers = 0;
  int64_t width = 0;  // of the activations between them
  int64_t head_width = 0;
  int64_t head_rows = 1;  // that a parallel head takes of a sample: of a language model each token
  std::vector<int64_t> summed;

  int64_t tokens = 0;  // of an image, between cut layers
  // Elements of an image's activations, for the caller to fill in: what a pipeline's stage takes
  // from the one before it, and what it hands on.
  int64_t taken = 0, given = 0;
  double activation_bytes = 4;  // of an element of theirs

  int64_t state_tensors = 2;  // of the optimizer for each parameter (optim/registry.h); Adam's

  int64_t root() const { return root_before + root_behind; }
  /// Of a unit, the root's number being -1.
  int64_t products(int unit) const {
    if (unit < 0) return root_products;
    return unit_products.empty() ? 0 : unit_products[unit];
  }
};
/// Of a module whose parts are called in order of registration, as transformers' are. Throws Error
/// for a model that cannot be shared so.
ModelLayout layout_of(nn::Module& module, const nn::ModelStructure& structure,
                      const Sharing& sharing = {}, int rank = 0);

}  // namespace weft::dist
