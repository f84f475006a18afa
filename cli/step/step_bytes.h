// What a training step moves, op by op, against the least that it could.
//
// A kernel moves its operands, each element once: that caches keep what it reads again is what
// tiles are for. An op, forward or backward, may launch several kernels. The least it could move
// are the operands of its matrix products, each of which is a kernel, and what the op takes from
// others and leaves to others besides. What is more are casts, sums and other passes that a product
// could take along. Nothing is computed (kernels/rehearsal): the kernels are those that the CPU's
// ops ask for, without what their variants ask for on the way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/step/training_step.h"

namespace weft::cli {

/// Bytes.
struct OpBytes {
  std::string phase, op;  // an optimizer's kernels, which no op asked for, by their own name
  int64_t calls = 0, kernels = 0;
  int64_t moved = 0, least = 0;
};

struct StepBytes {
  std::vector<OpBytes> ops;  // those that move most first
  int64_t kernels = 0, moved = 0, least = 0;
  /// Moved in forward and backward by kernels that are no matrix products.
  int64_t beside_products = 0;

  double ratio() const { return static_cast<double>(moved) / static_cast<double>(least); }
};

/// Of a step on the CPU, behind the first one. Throws what TrainingStep's constructor throws.
StepBytes count_bytes(const StepOptions& options);

}  // namespace weft::cli
