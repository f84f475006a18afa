// fp8 linear layers: operands scaled into an fp8 format, e4m3 forward and e5m2 for gradients.
//
//   Fp8Scaling scaling;                        // as long as the model is trained
//   {
//     Autocast mode(DType::bf16);              // everything but the linear layers
//     Fp8Scope fp8(scaling);
//     backward(loss_of(model, batch));
//   }
//   optimizer.step();
//   scaling.update();
//
// Under an Fp8Scope, linear and linear_gelu multiply codes: x and W in e4m3 forward, dy in e5m2
// with W for dx and with x for dW. Each of a layer's three tensors x, W and dy has a scale of its
// own, fp8_max / amax / 2^margin, so that its largest magnitude lands on the format's largest
// number:
//   current   amax is that of the tensor at hand (a second pass over it)
//   delayed   amax is the largest of the tensor's last `history` steps, as TransformerEngine's
//             DelayedScaling has it; a tensor that outgrows it saturates. Under NoGrad, in an
//             evaluation, scales are used and nothing is remembered.
// Outputs are in the Autocast's dtype, weight gradients in the weight's. Sums are promoted to f32
// every 128 of K (kernels/gemm/gemm.h). Activations are kept for backward as codes, a quarter of
// f32. A scale is left as it was when amax is 0, infinite or NaN, and starts at 1.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "autograd/tape.h"
#include "core/scoped_value.h"

namespace weft {

struct Fp8Options {
  enum class Scaling { kCurrent, kDelayed };
  Scaling scaling = Scaling::kCurrent;
  int64_t history = 1024;  // delayed: steps, this one included
  int margin = 0;          // powers of two kept free above amax
};

/// The scales of every layer that was met, by its weight. A handle: copies have the same scales,
/// and what a linear layer records holds one, so that a loss may outlive whom it was computed
/// under.
class Fp8Scaling {
 public:
  /// Throws Error for a history below 1 or a margin out of [0, 16].
  explicit Fp8Scaling(const Fp8Options& options = {});

  const Fp8Options& options() const { return state_->options; }
  /// Whether both are handles on the same scales.
  bool operator==(const Fp8Scaling&) const = default;
  /// To be called after each optimizer step: histories move on, delayed scales follow.
  void update();

  /// For delayed scaling, of each named weight that was met: "<name>.fp8_<tensor>" with tensor one
  /// of input, weight, gradient: f32 [1 + n], the scale, then the last n amax, newest first.
  NamedTensors state_dict(const NamedTensors& parameters) const;
  /// Throws Error for an unknown name or a malformed tensor.
  void load_state_dict(const NamedTensors& state, const NamedTensors& parameters);

  /// This step's amax so far of each named weight's three tensors, f32 [n, 3], -1 for weights that
  /// were never met; and its replacement: several ranks take the maximum of theirs before update().
  Tensor step_amax(const NamedTensors& parameters) const;
  void set_step_amax(const Tensor& amax, const NamedTensors& parameters);

  enum class Role { kInput, kWeight, kGradient };
  struct Quantized {
    Tensor codes;
    double inverse_scale = 1;
  };
  /// x in the format of its role. A weight's codes are kept until it changes. A weight that is no
  /// leaf, as a slice of one, has no history: its scales are current ones.
  Quantized quantize(const Tensor& weight, Role role, const Tensor& x) const;
  /// For a weight that is a rank's part of a larger one: makes of the amax of this rank's tensor
  /// that of the whole, so that current scales are those of one rank. Every rank quantises in one
  /// order.
  void share(const Tensor& weight, std::function<void(const Tensor& amax)> largest_of_ranks) const;
  /// The scale that a tensor was last quantised with.
  double scale(const Tensor& weight, Role role) const;

 private:
  struct Slot {
    double scale = 1;
    std::vector<float> history;  // delayed: amax of past steps, newest first
    float amax = 0;              // of this step so far
    bool was_met = false;
    Quantized cached;  // of a weight
    float cached_amax = 0;
    // What they were made of.
    std::weak_ptr<Storage> source;
    int64_t offset = 0;
    uint64_t version = 0;
  };

  struct State {
    Fp8Options options;
    std::unordered_map<const void*, std::array<Slot, 3>> slots;  // by Tensor::id()
    std::unordered_map<const void*, std::function<void(const Tensor&)>> largest_of_ranks;
  };

  double scale_for(float amax, DType format, double previous) const;

  std::shared_ptr<State> state_;
};

/// Makes linear layers on this thread run in fp8 for as long as it lives.
class Fp8Scope : ScopedValue<std::optional<Fp8Scaling>> {
 public:
  /// nullopt: turns fp8 off.
  explicit Fp8Scope(std::optional<Fp8Scaling> scaling);
};

/// The scaling in force on this thread; nullopt outside of any scope.
const std::optional<Fp8Scaling>& fp8_in_force();

}  // namespace weft
