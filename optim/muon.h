// Muon, whose update of a matrix is the orthogonal matrix nearest to its momentum.
//
//   optim::Muon optimizer(model.named_parameters(), {.lr = 1e-3});
//
// Jordan et al.: "Muon: An optimizer for hidden layers in neural networks", 2024. That updates have
// the size of AdamW's, so that AdamW's learning rates and decay go on being right, is Liu et al.:
// "Muon is Scalable for LLM Training", arXiv:2502.16982.
#pragma once

#include "optim/optimizer.h"

namespace weft::optim {

struct MuonOptions {
  double lr = 1e-3;
  double momentum = 0.95;
  double weight_decay = 0.1;
  bool nesterov = true;
  int steps = 5;  // of the iteration that makes a matrix orthogonal
  double eps = 1e-7;
};

/// m = momentum m + g;  u = g + momentum m, or without nesterov m
/// w = w - lr (0.2 sqrt(max(R, C)) orthogonal(u) + weight_decay w)
///
/// Of a parameter [R, ...] the other dimensions are one, C. orthogonal(u) is near U V^T of the
/// singular value decomposition u = U S V^T: orthogonalized() below. Of a vector, a diagonal
/// matrix, that is sign(u), and the factor 0.2 (Bernstein and Newhouse, arXiv:2409.20325). An
/// update's root mean square is so about 0.2 lr.
class Muon : public Optimizer {
 public:
  explicit Muon(const ParameterGroups& groups, const MuonOptions& options = {});

  bool needs_whole_parameters() const override { return true; }

 protected:
  void check(const ParameterGroup& group) const override;
  std::vector<std::string> state_names(const ParameterGroup& group) const override;
  void update(const ParameterGroup& group, const Batch& batch, double gradient_scale) override;
  bool is_fused() const override { return true; }
};

/// x [R, C] with its singular values brought near 1, those of x / |x| that are above some
/// hundredths into [0.68, 1.14] by 5 steps: so many of the Newton-Schulz iteration
///   x = a x + b (x x^T) x + c (x x^T)^2 x,  a, b, c = 3.4445, -4.7750, 2.0315,
/// from x / (|x| + eps). Without history, in f64 of an f64 x, else in f32, whose bits matrix
/// products may make others on other devices.
Tensor orthogonalized(const Tensor& x, int steps = 5, double eps = 1e-7);

}  // namespace weft::optim
