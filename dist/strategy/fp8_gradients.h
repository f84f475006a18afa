// Gradients in fp8: FP8-LM's level 1 (Peng et al., arXiv:2310.18313, section 2.1; MS-AMP's O1).
//
// The gradient of a matrix that products read becomes codes of e4m3 with one scale as soon as
// backward has it (autograd/resting.h): a byte an element. On several ranks, which hold the whole
// model each as under ddp, codes travel when backward is over:
//
//   1. The ranks take the smallest of their exponents of each matrix, 4 bytes each, and bring their
//      codes to it. The exponent is one of a power of two, so that only what falls below the
//      format's normal numbers is rounded again.
//   2. Each gets the other ranks' codes of its part (all_to_all) and adds them in f32, exactly.
//   3. Sums, divided by the power of two that makes room for N of them, are rounded to codes, which
//      every rank gets (all_gather).
//
// A rank sends 2 (N-1)/N bytes for an element, a quarter of ddp's. Other gradients, of vectors and
// convolutions and of what was frozen when the model was wrapped, are summed in f32. Nothing
// overlaps with backward. A pass on top of gradients that are sums already is an Error: these would
// be rounded once more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/resting.h"
#include "dist/data_parallel/pass_watch.h"
#include "dist/data_parallel/summed_gradients.h"
#include "dist/strategy/strategy.h"

namespace weft::dist {

class Fp8Gradients : public Strategy {
 public:
  /// `world` null: one device.
  explicit Fp8Gradients(CommunicatorPtr world) : world_(std::move(world)) {}

  int data_size() const override { return world_ ? world_->size() : 1; }
  int data_rank() const override { return world_ ? world_->rank() : 0; }
  void wrap(nn::Module& module, const ModelStructure& structure) override;
  Tensors call(nn::Module& module, const std::function<Tensors()>& function) override;
  void share_buffers(nn::Module& module) override;
  std::shared_ptr<void> no_sync() override;
  ExactSum squares(const Tensors& parameters) override;
  std::string describe(int64_t parameters, int64_t state_tensors) const override;

 protected:
  static constexpr DType kFormat = DType::f8e4m3;
  /// Elements of a bucket. A reduction takes 4.5 bytes of each on two ranks, less on more.
  static constexpr int64_t kBucket = 4 << 20;

  /// Elements [first, first + count) of a matrix, and where they lie in a bucket [ranks * part] of
  /// which a rank adds up the part of its number.
  struct Piece {
    size_t matrix;
    int64_t first, count, place;
  };

  /// Sums over the ranks of all matrices' gradients, when backward is over. exponents: those that
  /// the ranks share.
  virtual void reduce_matrices(const std::vector<int>& exponents);
  /// This rank's part of the sum of the pieces' gradients, codes [part] at exponent_of_sum(). A
  /// rank without a gradient adds zeros.
  Tensor sum_of_part(const std::vector<Piece>& pieces, const std::vector<int>& exponents,
                     const Tensor& bucket) const;
  int exponent_of_sum(int exponent) const;
  static Tensor elements(const Tensor& codes, int64_t first, int64_t count);
  static void set_gradient(const Tensor& parameter, const LowBits& bits);

  const CommunicatorPtr world_;
  Tensors matrices_;                // that products read and that are trained, if not later frozen
  std::vector<std::string> names_;  // of matrices_

 private:
  void prepare();
  void recover() { watch_.recover("fp8 gradients", {world_.get()}); }
  void on_ready(bool is_matrix, size_t i);
  void begin();
  void compress(const Tensor& parameter);
  void reduce();
  std::vector<int> shared_exponents() const;
  void reduce_others();

  nn::Module* module_ = nullptr;
  Tensors others_;
  int local_depth_ = 0;  // of no_sync()
  PassWatch watch_;
  SummedGradients sums_;
  std::shared_ptr<Fp8Gradients*> alive_ = std::make_shared<Fp8Gradients*>(this);
};

}  // namespace weft::dist
