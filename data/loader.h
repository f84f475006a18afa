// Batches of a data set, prepared ahead by worker threads.
//
//   Loader loader(splits.train, {.batch_size = 64, .shuffle = true, .drop_last = true,
//                                .seed = seed, .workers = 2});
//   while (auto batch = loader.next()) step(batch->images, batch->labels);   // epoch 0
//   while (auto batch = loader.next()) step(batch->images, batch->labels);   // epoch 1
//
// What a batch holds depends on (data set, options, epoch, index) alone: the order of an epoch is a
// Philox shuffle keyed by (seed, epoch), a sample's augmentation is keyed by (seed, epoch, sample).
// `workers` and `prefetch` change nothing but the speed.
//
// Several ranks share the batches: each is cut into micro-batches that are as equal as it goes, and
// rank r of N takes those of numbers r, r + N, ... of each in turn, as batches of its own. Together
// the ranks see what one loader of whole batches would yield, but for mixup and cutmix, which mix
// within a micro-batch. Where a batch has fewer samples than micro-batches the last ones are empty.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/tensor.h"
#include "data/dataset.h"
#include "data/loader_position.h"
#include "data/transforms.h"

namespace weft::data {

/// What a loader says of the batch that next() gave last, to whoever shares it out.
struct LoaderWatch {
  int64_t fillers = 0;  // rows at its end that other ranks have as well
  bool is_last = false;
};

/// What several loaders say so, one in the midst of another: a validation between two batches of
/// training. Those that are in an epoch are known, each from its first batch there until next()
/// says that it is over, the loader is sought or gone. Threads may have a loader each.
class WatchedLoaders {
 public:
  struct Epoch {
    LoaderWatch batch;    // given last
    uint64_t number = 0;  // of that batch, among those of all loaders
  };
  /// A loader's own; null outside of an epoch.
  using Place = std::shared_ptr<Epoch>;

  /// A loader gives a batch.
  void give(Place& place, const LoaderWatch& batch);
  /// Of the loader that gave a batch last; nothing of note where none is in an epoch.
  LoaderWatch latest() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Epoch>> epochs_;
  uint64_t given_ = 0;
};

struct LoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;  // leave out a last batch that is not full
  uint64_t seed = 0;
  int micro_batches = 1;  // a multiple of ranks
  int ranks = 1;
  int rank = 0;
  int workers = 1;
  int prefetch = 4;  // batches prepared ahead, at least 1
  /// Where next() brings a batch. On a CUDA device batches travel as bytes, one ahead of the
  /// consumer, and become numbers there (data/device_feed.h).
  Device device = {};
  DType dtype = DType::f32;  // of images: f32, or f16 and bf16, rounded from that
  /// A rank whose share of a batch is empty gets the batch's first sample as a filler.
  bool fills_empty = false;
  std::shared_ptr<WatchedLoaders> watch = {};  // may be null
  Preprocess preprocess = {};
  Augmentation augmentation = {};
};

struct Batch {
  Tensor images;        // [B, 3, size, size], of the options' dtype
  Tensor labels;        // i64 [B]
  Tensor soft_labels;   // f32 [B, classes] with mixup or cutmix, else undefined
  int64_t index = 0;    // in its epoch; of a micro-batch: batch * micro_batches + its number
  int64_t fillers = 0;  // rows, all of them or none, that are there instead of an empty share
  int64_t size() const { return labels.size(0); }
};

class DeviceFeed;

/// Not thread safe: one thread calls.
class Loader final : public PositionedLoader {
 public:
  /// Throws Error for options out of range, and for a batch larger than the data set when the last
  /// batch is dropped.
  Loader(DatasetPtr dataset, LoaderOptions options);
  /// Stops and joins the workers; waits for the examples in their hands, not for whole batches.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  const LoaderOptions& options() const { return options_; }
  /// Begins anew, with the first epoch, as constructed with these.
  void set_options(LoaderOptions options);
  /// Those from before somebody shared the loader out who may share it out anew; none where nobody
  /// has said so since set_options().
  const std::optional<LoaderOptions>& unshared() const { return unshared_; }
  void keep_unshared(LoaderOptions options) { unshared_ = std::move(options); }

  int64_t batches() const override;
  /// Rethrows what a worker threw over this batch; the position then stays.
  std::optional<Batch> next();

 private:
  class Workers;
  struct Ahead;

  Batch next_on_device();
  void on_seek() override { place_ = nullptr; }

  DatasetPtr dataset_;
  LoaderOptions options_;
  std::optional<LoaderOptions> unshared_;
  std::unique_ptr<DeviceFeed> feed_;  // null on the CPU
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<Ahead> ahead_;  // on its way to the device; null: none
  WatchedLoaders::Place place_;   // in options_.watch
};

/// The order in which an epoch takes the examples 0..size-1.
std::vector<int64_t> epoch_order(int64_t size, bool shuffle, uint64_t seed, int64_t epoch);

}  // namespace weft::data
