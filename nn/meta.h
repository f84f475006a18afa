// The meta device: models that have names, shapes and dtypes, but no elements.
//
//   std::unique_ptr<Net> model;
//   {
//     std::optional<nn::MetaScope> meta;
//     if (world->rank() != 0) meta.emplace();
//     model = std::make_unique<Net>();          // on rank 0 alone it takes memory
//   }
//   FullySharded fsdp(*model, {.shard = world}, policy);   // unit by unit, rank 0's weights
//
// So N ranks of a host need one copy of the weights while they start, not N. What wraps a model
// gives it memory (materialize) and rank 0's weights; touching an element before is an Error.
// Initialisers draw their random numbers and leave them, so that the generator moves on as ever.
#pragma once

#include "core/scoped_value.h"
#include "nn/module.h"

namespace weft::nn {

/// While it lives, parameters and buffers that layers make on this thread have no memory.
class MetaScope : ScopedValue<bool> {
 public:
  MetaScope();
};

Tensor meta(const Shape& shape, DType dtype, Device device);
/// What constructors take for their parameters in place of Tensor::empty.
Tensor blank(const Shape& shape, DType dtype = DType::f32);
bool has_memory(const Tensor& x);
/// Takes memory for a tensor that has none, uninitialised; every handle on it follows.
void materialize(Tensor x);
void materialize(const Module& module);
/// Lets a tensor's memory go; it is on the meta device then.
void dematerialize(Tensor x);

}  // namespace weft::nn
