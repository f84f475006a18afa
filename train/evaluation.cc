#include "train/evaluation.h"

#include "autograd/ops.h"
#include "train/precision.h"

namespace weft::train {

int64_t count_correct(const Tensor& logits, const Tensor& labels) {
  NoGrad guard;
  return count_equal(ops::argmax(logits, 1), labels);
}

int64_t count_equal(const Tensor& predicted, const Tensor& labels) {
  NoGrad guard;
  const Tensor there = ops::to(labels, predicted.device());
  return static_cast<int64_t>(ops::sum(ops::eq(predicted, there)).item());
}

Score evaluate(TrainedModel& trained, data::Loader& loader, int64_t limit,
               const std::function<bool(int64_t, const Score&)>& progress,
               const std::function<Tensor(const Tensor&)>& forward) {
  NoGrad guard;
  // One scope for all batches: the weights are cast once.
  const Precision& precision = find_precision(trained.config.precision);
  Fp8Scaling fp8;  // evaluation scales each tensor by its own amax
  const PrecisionScope scope = enter_precision(trained.config, fp8);
  const bool was_training = trained.model->is_training();
  trained.model->eval();
  Score score;
  double loss_sum = 0, correct = 0;
  const auto position = loader.position();
  loader.seek({position.epoch, 0});
  int64_t batches = 0;
  while (auto batch = loader.next()) {
    const int64_t n = batch->size();
    // A rank that has no part in a batch goes along, so that sharded parameters can be unsharded.
    const int size = trained.preprocess.size;
    const Tensor images =
        ops::to(n > 0 ? batch->images : Tensor::zeros({1, 3, size, size}), trained.device);
    const Tensor labels = ops::to(batch->labels, trained.device);
    const auto run = [&](const Tensor& x) { return forward ? forward(x) : (*trained.model)(x); };
    const Tensor logits = forward_logits(run, images, precision);
    ++batches;
    if (n > 0) {
      loss_sum += ops::cross_entropy(logits, labels).item() * static_cast<double>(n);
      correct += static_cast<double>(count_correct(logits, labels));
      score.examples += n;
      score.loss = loss_sum / static_cast<double>(score.examples);
      score.accuracy = correct / static_cast<double>(score.examples);
      if (progress && !progress(batches, score)) break;
    }
    if (batches == limit) break;
  }
  trained.model->train(was_training);
  return score;
}

}  // namespace weft::train
