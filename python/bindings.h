// The parts of the module, in the order in which module.cc makes them.
#pragma once

#include <nanobind/nanobind.h>

#include "core/tensor.h"

namespace weft::nn {
class Module;
}

namespace weft::python {

template <class Base>
struct Derivable;

void bind_dtype(nanobind::module_& m);                                       // casters.cc
void bind_tensor(nanobind::module_& m, nanobind::class_<Tensor>& tensor);    // tensor.cc
void bind_exchange(nanobind::module_& m, nanobind::class_<Tensor>& tensor);  // exchange.cc
void bind_indexing(nanobind::class_<Tensor>& tensor);                        // indexing.cc
void bind_ops(nanobind::module_& m, nanobind::class_<Tensor>& tensor);       // ops.cc
void bind_autograd(nanobind::module_& m, nanobind::class_<Tensor>& tensor);  // autograd.cc
void bind_nn(nanobind::module_& m);                                          // nn.cc
void bind_dispatch(nanobind::module_ nn);                                    // dispatch.cc
void bind_functional(nanobind::module_ m);                                   // functional.cc
void bind_optim(nanobind::module_ m);                                        // optim.cc
void bind_numerics(nanobind::module_ m);                                     // numerics.cc
void bind_kernels(nanobind::module_ m);                                      // kernels.cc
void bind_training(nanobind::module_& m);                                    // training.cc
void bind_fabric(nanobind::module_ train);   // python/train/fabric.cc
void bind_trainer(nanobind::module_ train);  // python/train/trainer.cc
void bind_engine(nanobind::module_ train);   // python/train/engine.cc
void bind_torch(nanobind::module_ m);        // torch.cc
void bind_dist(nanobind::module_ m);         // dist.cc

void bind_text(nanobind::module_& data);     // text.cc
void bind_models(nanobind::module_ models);  // models.cc
/// structure() and copies of modules.
void bind_structures(nanobind::module_& m,
                     nanobind::class_<nn::Module, Derivable<nn::Module>>& module);  // modules.cc

/// The slots of the type weft.Tensor that speak the buffer protocol.
PyType_Slot* buffer_slots();  // exchange.cc

}  // namespace weft::python
