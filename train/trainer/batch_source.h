// Where a Trainer's batches come from: a loader of tensors, a loader of images, or one of the
// caller's own.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>

#include "data/loader.h"
#include "train/fabric.h"
#include "train/trainer/training_module.h"

namespace weft::train {

/// A loader that gives the same batches on every rank, as data::TensorLoader does.
template <class Loader>
concept TensorSource = requires(Loader& loader, data::LoaderPosition position) {
  { loader.next() } -> std::same_as<std::optional<Tensors>>;
  { loader.batches() } -> std::convertible_to<int64_t>;  // in an epoch
  loader.seek(position);
};

/// This rank's batches of a loader.
class RankBatches {
 public:
  virtual ~RankBatches() = default;
  /// In an epoch, as many on every rank.
  virtual int64_t per_epoch() const = 0;
  /// Continues with a batch of an epoch, both counted from 0.
  virtual void seek(data::LoaderPosition position) = 0;
  /// Nothing at the end of an epoch.
  virtual std::optional<Batch> next() = 0;
};

/// A loader, which must outlive it.
class BatchSource {
 public:
  template <TensorSource Loader>
  BatchSource(Loader& loader)
      : loader_(&loader), share_([&loader](const Fabric& fabric) {
          return std::make_unique<SharedBatches<Loader>>(loader, fabric);
        }) {}
  /// Its batches are images, labels and, with mixup or cutmix, soft labels.
  BatchSource(data::Loader& loader);

  /// Shares the loader out over the Fabric's ranks.
  std::unique_ptr<RankBatches> share(const Fabric& fabric) const { return share_(fabric); }
  /// Whether they are one loader, whose place each of the two moves.
  bool is_of_one_loader_with(const BatchSource& other) const { return loader_ == other.loader_; }

 private:
  template <TensorSource Loader>
  class SharedBatches : public RankBatches {
   public:
    SharedBatches(Loader& loader, const Fabric& fabric)
        : loader_(loader),
          fabric_(fabric),
          in_turn_(fabric.options().split_batches ? 1 : fabric.data_devices()) {}

    int64_t per_epoch() const override { return (loader_.batches() + in_turn_ - 1) / in_turn_; }
    void seek(data::LoaderPosition position) override {
      loader_.seek({position.epoch, std::min(position.batch * in_turn_, loader_.batches())});
      shared_.emplace(fabric_.share(loader_));
    }
    std::optional<Batch> next() override { return shared_->next(); }

   private:
    Loader& loader_;
    const Fabric& fabric_;
    const int64_t in_turn_;                       // batches that the ranks take together
    std::optional<SharedLoader<Loader>> shared_;  // from seek() on: it reads ahead
  };

  const void* loader_;
  std::function<std::unique_ptr<RankBatches>(const Fabric&)> share_;
};

}  // namespace weft::train
