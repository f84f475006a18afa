// B in the layout that a CPU's products read best, kept from one product to the next.
//
// A product brings B into that layout first, or with few rows reads it as it lies: 4 to 9% of its
// time either way. Inference multiplies by the same weights again and again:
//
//   const kernels::PackedWeights packed;
//   for (...) logits = model(images);
//
// From the second product on whose B is the same unchanged memory, a copy in that layout is kept,
// as large as B. The bits are the same. Who changes B through a pointer calls bump_version().
#pragma once

#include <memory>

#include "core/scoped_value.h"

namespace weft::kernels {

/// Copies are kept for products that this thread begins, as long as this lives. Of two that nest
/// the inner one keeps.
class PackedWeights {
 public:
  PackedWeights();
  ~PackedWeights();

  struct Copies;

 private:
  std::unique_ptr<Copies> copies_;
  ScopedValue<Copies*> in_force_;
};

}  // namespace weft::kernels
