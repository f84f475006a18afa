#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "data/device_feed.h"
#include "data/mix.h"
#include "data/random.h"
#include "kernels/copy/copy.h"

namespace weft::data {

std::vector<int64_t> epoch_order(int64_t size, bool shuffle, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  if (!shuffle) return order;
  Philox random = random_stream(seed, Purpose::kShuffle, epoch);
  for (int64_t i = size - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

void WatchedLoaders::give(Place& place, const LoaderWatch& batch) {
  const std::lock_guard lock(mutex_);
  if (!place) {
    std::erase_if(epochs_, [](const auto& epoch) { return epoch.expired(); });
    place = std::make_shared<Epoch>();
    epochs_.push_back(place);
  }
  *place = {batch, ++given_};
}

LoaderWatch WatchedLoaders::latest() const {
  const std::lock_guard lock(mutex_);
  Epoch last;
  for (const auto& epoch : epochs_) {
    const Place place = epoch.lock();
    if (place && place->number > last.number) last = *place;
  }
  return last.batch;
}

// Workers take the batches of one epoch in turn, at most `prefetch` ahead of the consumer. A batch
// is made by one worker, so no two write the same memory. A new epoch or a seek changes
// `generation_`, which makes workers drop what they have in hand.
class Loader::Workers {
 public:
  /// `feed` is null on the CPU.
  Workers(const Dataset& dataset, const LoaderOptions& options, int64_t batches, DeviceFeed* feed)
      : dataset_(dataset), options_(options), batches_(batches), feed_(feed) {
    try {
      for (int i = 0; i < options.workers; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      // Any number of workers makes the same batches.
      WEFT_CHECK(!threads_.empty(), "loader: cannot start a thread: {}", error.what());
    }
  }

  ~Workers() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      ++generation_;
    }
    wake_workers_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  /// Begins at `position`; what was prepared before is dropped.
  void begin(LoaderPosition position) {
    auto order = std::make_shared<const std::vector<int64_t>>(
        epoch_order(dataset_.size(), options_.shuffle, options_.seed, position.epoch));
    std::lock_guard lock(mutex_);
    ++generation_;
    epoch_ = position.epoch;
    order_ = std::move(order);
    next_to_claim_ = next_to_take_ = position.batch;
    done_.clear();
    wake_workers_.notify_all();
  }

  bool is_at(LoaderPosition position) const {
    return order_ && position.epoch == epoch_ && position.batch == next_to_take_;
  }

  /// A batch that is ready; on its way to a device `bytes` has what it holds.
  struct Ready {
    Batch batch;
    ByteBatch bytes;
  };

  /// Whether take() would return one at once.
  bool has_next() {
    std::lock_guard lock(mutex_);
    const auto entry = done_.find(next_to_take_);
    return entry != done_.end() && !entry->second.failure;
  }

  Ready take() {
    std::unique_lock lock(mutex_);
    wake_consumer_.wait(lock, [&] { return done_.contains(next_to_take_); });
    const auto entry = done_.find(next_to_take_);
    if (entry->second.failure) {
      // begin() makes the batch again, should the caller ask again.
      const std::exception_ptr failure = entry->second.failure;
      ++generation_;
      order_ = nullptr;
      std::rethrow_exception(failure);
    }
    Ready ready = std::move(entry->second.ready);
    done_.erase(entry);
    ++next_to_take_;
    lock.unlock();
    wake_workers_.notify_one();
    return ready;
  }

 private:
  struct Result {
    Ready ready;
    std::exception_ptr failure;
  };

  bool has_work() const {
    return order_ && next_to_claim_ < std::min(batches_, next_to_take_ + options_.prefetch);
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_workers_.wait(lock, [&] { return stop_ || has_work(); });
      if (stop_) return;
      const int64_t index = next_to_claim_++;
      const uint64_t generation = generation_;
      const int64_t epoch = epoch_;
      const auto order = order_;
      lock.unlock();
      Result result;
      try {
        result.ready = make_batch(*order, epoch, index, generation);
      } catch (...) {
        result.failure = std::current_exception();
      }
      lock.lock();
      if (generation != generation_) continue;
      done_.emplace(index, std::move(result));
      wake_consumer_.notify_one();
    }
  }

  // Incomplete, and never handed out, when the generation changes on the way.
  Ready make_batch(const std::vector<int64_t>& order, int64_t epoch, int64_t index,
                   uint64_t generation) const {
    // Of this rank: micro-batch `number` of the batch that begins at `first`.
    const int64_t per_batch = options_.micro_batches / options_.ranks;
    const int64_t number = index % per_batch * options_.ranks + options_.rank;
    const int64_t first = index / per_batch * options_.batch_size;
    const int64_t whole = std::min(options_.batch_size, static_cast<int64_t>(order.size()) - first);
    // As many for each, and one more for the first ones.
    const int64_t share = whole / options_.micro_batches, rest = whole % options_.micro_batches;
    int64_t count = share + (number < rest ? 1 : 0);
    const int64_t begin = first + (count > 0 ? number * share + std::min(number, rest) : 0);
    const bool is_filler = count == 0 && options_.fills_empty;
    if (is_filler) count = 1;
    const int size = options_.preprocess.size;
    const int64_t image_size = int64_t{3} * size * size;
    const Augmentation& augmentation = options_.augmentation;
    const bool mixes = augmentation.mixes() && count > 0;
    const auto classes = mixes ? static_cast<int64_t>(dataset_.class_names().size()) : 0;
    Ready ready;
    Batch& batch = ready.batch;
    batch.fillers = is_filler ? 1 : 0;
    batch.index = index / per_batch * options_.micro_batches + number;
    if (feed_) {
      ready.bytes = feed_->host_batch({count, classes, augmentation.erase > 0});
      batch.labels = ready.bytes.labels;
      batch.soft_labels = ready.bytes.soft_labels;
    } else {
      batch.images = Tensor::empty({count, 3, size, size}, DType::f32);
      batch.labels = Tensor::empty({count}, DType::i64);
      if (mixes) batch.soft_labels = Tensor::empty({count, classes}, DType::f32);
    }
    auto* const labels = batch.labels.data<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      if (generation != generation_) return {};
      const int64_t sample = order[begin + i];
      const Example example = dataset_.example(sample);
      const SampleKey key = {options_.seed, epoch, sample};
      if (feed_) {
        const Window erased = prepare_bytes(example.image, options_.preprocess, augmentation, key,
                                            ready.bytes.pixels.data<uint8_t>() + i * image_size);
        if (ready.bytes.erased.defined()) {
          int32_t* const row = ready.bytes.erased.data<int32_t>() + 4 * i;
          row[0] = erased.top, row[1] = erased.left;
          row[2] = erased.height, row[3] = erased.width;
        }
      } else {
        prepare_image(example.image, options_.preprocess, augmentation, key,
                      batch.images.data<float>() + i * image_size);
      }
      labels[i] = example.label;
    }
    if (mixes) {
      float* const soft_labels = batch.soft_labels.data<float>();
      one_hot({labels, static_cast<size_t>(count)}, classes, soft_labels);
      Philox random = random_stream(options_.seed, Purpose::kMix, epoch, batch.index);
      const Mixing mixing = draw_mixing(augmentation.mixup, augmentation.cutmix, size, random);
      if (feed_) {
        ready.bytes.mixing = mixing;
        apply_to_labels(mixing, soft_labels, count, classes);
      } else {
        apply(mixing, {batch.images.data<float>(), soft_labels, count, size, classes});
      }
    }
    if (!feed_) batch.images = kernels::contiguous(batch.images, options_.dtype);
    return ready;
  }

  const Dataset& dataset_;
  const LoaderOptions& options_;
  const int64_t batches_;
  DeviceFeed* const feed_;

  std::mutex mutex_;
  std::condition_variable wake_workers_, wake_consumer_;
  bool stop_ = false;
  std::atomic<uint64_t> generation_ = 0;  // written under the mutex
  int64_t epoch_ = 0;
  std::shared_ptr<const std::vector<int64_t>> order_;  // null: nothing to do
  int64_t next_to_claim_ = 0;
  int64_t next_to_take_ = 0;
  std::map<int64_t, Result> done_;
  std::vector<std::thread> threads_;
};

struct Loader::Ahead {
  LoaderPosition position;
  Batch batch;  // of the host: its numbers
  DeviceFeed::UnderWay under_way;
};

Loader::Loader(DatasetPtr dataset, LoaderOptions options) : dataset_(std::move(dataset)) {
  set_options(std::move(options));
}

void Loader::set_options(LoaderOptions options) {
  ahead_ = nullptr;
  workers_ = nullptr;
  feed_ = nullptr;
  unshared_.reset();
  options_ = std::move(options);
  WEFT_CHECK(options_.batch_size > 0, "loader: batch size must be positive, got {}",
             options_.batch_size);
  WEFT_CHECK(options_.workers > 0, "loader: workers must be positive, got {}", options_.workers);
  WEFT_CHECK(options_.prefetch > 0, "loader: prefetch must be positive, got {}", options_.prefetch);
  check_mixing("loader: mixup", options_.augmentation.mixup);
  check_mixing("loader: cutmix", options_.augmentation.cutmix);
  WEFT_CHECK(options_.preprocess.size > 0, "loader: image size must be positive, got {}",
             options_.preprocess.size);
  WEFT_CHECK(options_.ranks > 0 && options_.rank >= 0 && options_.rank < options_.ranks &&
                 options_.micro_batches > 0 && options_.micro_batches % options_.ranks == 0,
             "loader: rank {} of {} cannot share batches of {} micro-batches", options_.rank,
             options_.ranks, options_.micro_batches);
  const DType dtype = options_.dtype;
  WEFT_CHECK(dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
             "loader: images are f32, f16 or bf16, not {}", dtype);
  WEFT_CHECK(dataset_->size() > 0, "loader: the data set is empty");
  WEFT_CHECK(!options_.drop_last || options_.batch_size <= dataset_->size(),
             "loader: batch size {} is larger than the data set of {} images", options_.batch_size,
             dataset_->size());
  if (options_.device.type == DeviceType::cuda) {
    feed_ = std::make_unique<DeviceFeed>(options_.device, dtype, options_.preprocess);
  }
  seek({});
  workers_ = std::make_unique<Workers>(*dataset_, options_, batches(), feed_.get());
}

Loader::~Loader() = default;

int64_t Loader::batches() const {
  const int64_t full = dataset_->size() / options_.batch_size;
  const bool has_rest = dataset_->size() % options_.batch_size != 0 && !options_.drop_last;
  return (full + has_rest) * (options_.micro_batches / options_.ranks);
}

std::optional<Batch> Loader::next() {
  if (position().batch == batches()) {
    begin_next_epoch();
    return std::nullopt;
  }
  Batch batch;
  if (feed_) {
    batch = next_on_device();
  } else {
    if (!workers_->is_at(position())) workers_->begin(position());
    batch = workers_->take().batch;
  }
  advance();
  if (options_.watch) {
    options_.watch->give(place_, {batch.fillers, position().batch == batches()});
  }
  return batch;
}

/// The batch of position(), and the one after it, where that is ready, on its way.
Batch Loader::next_on_device() {
  const auto begin = [this](LoaderPosition position) {
    Workers::Ready ready = workers_->take();
    return std::make_unique<Ahead>(
        Ahead{position, std::move(ready.batch), feed_->begin(ready.bytes)});
  };
  if (!ahead_ || ahead_->position != position()) {
    ahead_ = nullptr;
    if (!workers_->is_at(position())) workers_->begin(position());
    ahead_ = begin(position());
  }
  const std::unique_ptr<Ahead> taken = std::move(ahead_);
  const LoaderPosition after = {position().epoch, position().batch + 1};
  if (after.batch < batches() && workers_->has_next()) ahead_ = begin(after);
  Batch batch = feed_->finish(taken->under_way);
  batch.index = taken->batch.index;
  batch.fillers = taken->batch.fillers;
  return batch;
}

}  // namespace weft::data
