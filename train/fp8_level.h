// What training in fp8 keeps in few bits: FP8-LM's levels, under MS-AMP's names (Peng et al.,
// arXiv:2310.18313, table 1 and section 2).
//
//   level   gradients   weights   Adam's moments   bytes of a parameter
//   none    f32         f32       f32, f32         16
//   O1      e4m3        f32       f32, f32         13
//   O2      e4m3        f16       e4m3, f16         6
//   O3      e4m3        e4m3      e4m3, f16         2 + 5 / N, and f16 masters in it
//
// of matrices that products read; vectors, embeddings and convolutions keep f32. Each tensor has a
// scale of its own (autograd/resting.h). Matrices are f32 one at a time, while their layer runs or
// they are updated, so the optimizer's arithmetic is that of f32. Gradients are summed over ranks
// in e4m3 (dist/strategy/fp8_gradients.h). MS-AMP's O1 keeps weights in f16 with a scale; here they
// stay f32 until O2, whose f16 are then the only weights there are. O3 is O2 with an owner for each
// matrix among N ranks, who alone has the f16, now master weights, and the moments
// (dist/strategy/fp8_zero.h); all have a weight in e4m3, whose codes linear layers multiply as they
// are.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>

#include "dist/strategy/options.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "train/precision.h"

namespace weft::train {

enum class Fp8Level { kNone, kO1, kO2, kO3 };

/// "O1", "O2", "O3", or "" for none. Throws Error for others.
Fp8Level parse_fp8_level(const std::string& name);
/// Whether Adam's moments are in few bits.
bool keeps_moments(Fp8Level level);
/// Throws Error for a level that is none of these, or does not go with the precision, the strategy
/// on so many devices, or settings of it that say otherwise what is kept or sent.
void check_fp8_level(const std::string& name, const Precision& precision,
                     const dist::StrategyOptions& strategy, int devices);

/// Between steps keeps what a level says in few bits.
class LowBitStates {
 public:
  explicit LowBitStates(Fp8Level level) : level_(level) {}

  /// O2: the module's matrices rest in f16 when no layer of it runs; O3: those that the strategy
  /// has not put to rest.
  void take(nn::Module& module) const;
  /// Throws Error for an optimizer that is not Adam's kind, under O2 and O3.
  void check(const optim::Optimizer& optimizer) const;
  /// step(coefficient), which is the optimizer's with the gradients multiplied, for one parameter
  /// in few bits after the other, then for all others together. What it returns is true of all. A
  /// gate is read beforehand: closed, no parameter takes part.
  bool step(optim::Optimizer& optimizer, const kernels::StepGate& gate,
            const std::function<bool(double coefficient)>& step);

 private:
  void adopt_states(const optim::Optimizer& optimizer);

  const Fp8Level level_;
  std::unordered_map<const void*, Tensors> states_;  // in few bits, by Tensor::id() of parameters
};

}  // namespace weft::train
