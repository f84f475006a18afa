#include "data/loader.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <functional>
#include <iterator>
#include <numeric>
#include <thread>

#include "data/fixtures.h"
#include "data/sets/open.h"

namespace weft::data {
namespace {

// `size` images of 32 x 32 pixels, all of value index % 256 unless `before` throws or waits.
class Counting : public Dataset {
 public:
  explicit Counting(int64_t size, std::function<void(int64_t)> before = {})
      : before_(std::move(before)) {
    format_ = {32, 32, {}};
    class_names_ = {"a", "b", "c", "d", "e"};
    for (int64_t i = 0; i < size; ++i) labels_.push_back(i % 5);
  }
  Image image(int64_t index) const override {
    if (before_) before_(index);
    Image image = formula_image(32, 32);
    for (uint8_t& byte : image.pixels) byte = static_cast<uint8_t>(byte / 2 + index % 128);
    return image;
  }

 private:
  std::function<void(int64_t)> before_;
};

DatasetPtr counting(int64_t size, std::function<void(int64_t)> before = {}) {
  return std::make_shared<Counting>(size, std::move(before));
}

LoaderOptions everything(int workers) {
  return {
      .batch_size = 10,
      .shuffle = true,
      .seed = 42,
      .workers = workers,
      .preprocess = {.size = 16},
      .augmentation = {
          .shift = 2, .flip = true, .rand_augment = 2, .erase = 0.5, .mixup = 0.8, .cutmix = 1.0}};
}

using Bytes = std::vector<uint8_t>;

void append(Bytes& bytes, const Tensor& tensor) {
  const auto* data = static_cast<const uint8_t*>(tensor.raw());
  bytes.insert(bytes.end(), data, data + tensor.nbytes());
}

// Everything the rest of the current epoch holds. Compared in double parentheses: a failed CHECK
// would print megabytes.
std::vector<Bytes> rest_of_epoch(Loader& loader) {
  std::vector<Bytes> batches;
  while (auto batch = loader.next()) {
    Bytes& bytes = batches.emplace_back();
    append(bytes, batch->images);
    append(bytes, batch->labels);
    if (batch->soft_labels) append(bytes, batch->soft_labels);
  }
  return batches;
}

TEST_CASE("of several loaders counts who gave a batch last, and is in an epoch") {
  const auto watch = std::make_shared<WatchedLoaders>();
  const LoaderOptions options{.batch_size = 10, .watch = watch, .preprocess = {.size = 8}};
  Loader train(counting(30), options);
  auto validation = std::make_unique<Loader>(counting(10), options);
  CHECK(!watch->latest().is_last);
  train.next();
  CHECK(!watch->latest().is_last);
  validation->next();
  CHECK(watch->latest().is_last);
  // In turn with it the other's batch is the latest.
  train.next();
  CHECK(!watch->latest().is_last);
  CHECK(!validation->next());
  CHECK(!watch->latest().is_last);
  train.next();
  CHECK(watch->latest().is_last);
  // One that is sought, or gone, is in no epoch.
  train.seek({0, 1});
  CHECK(!watch->latest().is_last);
  validation->next();
  CHECK(watch->latest().is_last);
  validation.reset();
  CHECK(!watch->latest().is_last);
}

TEST_CASE("an epoch's order is a permutation that seed and epoch choose") {
  std::vector<int64_t> all(1000);
  std::iota(all.begin(), all.end(), 0);
  CHECK(epoch_order(1000, false, 1, 0) == all);
  std::vector<int64_t> order = epoch_order(1000, true, 1, 0);
  CHECK(order == epoch_order(1000, true, 1, 0));
  CHECK(order != epoch_order(1000, true, 1, 1));
  CHECK(order != epoch_order(1000, true, 2, 0));
  int fixed = 0;
  for (int64_t i = 0; i < 1000; ++i) fixed += order[i] == i;
  CHECK(fixed < 10);  // Poisson(1)
  std::sort(order.begin(), order.end());
  CHECK(order == all);
}

TEST_CASE("batches have the promised shapes, values and count") {
  Loader loader(counting(23), {.batch_size = 10, .preprocess = {.size = 32}});
  CHECK(loader.batches() == 3);
  for (int64_t index = 0; index < 3; ++index) {
    const auto batch = loader.next();
    REQUIRE(batch);
    CHECK(batch->index == index);
    CHECK(batch->size() == (index < 2 ? 10 : 3));
    CHECK(batch->images.shape() == Shape{batch->size(), 3, 32, 32});
    CHECK(!batch->soft_labels);
    for (int64_t i = 0; i < batch->size(); ++i) {
      const int64_t sample = 10 * index + i;
      CHECK(batch->labels.data<int64_t>()[i] == sample % 5);
      // Red of the upper left pixel: 0 / 2 + sample.
      CHECK(batch->images.data<float>()[i * 3072] == static_cast<float>(sample) / 255.0f);
    }
  }
  CHECK(!loader.next());
  CHECK(loader.position() == LoaderPosition{1, 0});
  CHECK(loader.next()->index == 0);
  CHECK(loader.position() == LoaderPosition{1, 1});

  Loader dropping(counting(23), {.batch_size = 10, .drop_last = true});
  CHECK(dropping.batches() == 2);
  CHECK(rest_of_epoch(dropping).size() == 2);
}

TEST_CASE("soft labels are weights that sum to one") {
  Loader loader(counting(23), everything(1));
  const auto batch = loader.next();
  CHECK(batch->soft_labels.shape() == Shape{10, 5});
  for (int64_t i = 0; i < 10; ++i) {
    const float* row = batch->soft_labels.data<float>() + 5 * i;
    CHECK(std::accumulate(row, row + 5, 0.0f) == Approx(1));
  }
}

TEST_CASE("1, 2 and 8 workers give the same bits, epoch after epoch") {
  Loader one(counting(203), everything(1));
  const std::vector<std::vector<Bytes>> expected = {rest_of_epoch(one), rest_of_epoch(one)};
  CHECK(expected[0].size() == 21);
  CHECK((expected[0] != expected[1]));
  for (const int workers : {2, 8}) {
    LoaderOptions options = everything(workers);
    options.prefetch = workers == 2 ? 1 : 7;
    Loader loader(counting(203), options);
    for (const auto& epoch : expected) CHECK((rest_of_epoch(loader) == epoch));
  }
  LoaderOptions other = everything(1);
  other.seed = 43;
  Loader reseeded(counting(203), other);
  CHECK((rest_of_epoch(reseeded) != expected[0]));
}

TEST_CASE("seeking a saved position continues the run") {
  Loader whole(counting(55), everything(2));
  (void)rest_of_epoch(whole);
  const std::vector<Bytes> second = rest_of_epoch(whole);

  Loader interrupted(counting(55), everything(2));
  interrupted.seek({1, 0});
  for (int i = 0; i < 4; ++i) REQUIRE(interrupted.next());
  const LoaderPosition saved = interrupted.position();
  CHECK(saved == LoaderPosition{1, 4});
  Loader resumed(counting(55), everything(3));
  resumed.seek(saved);
  CHECK((rest_of_epoch(resumed) == std::vector<Bytes>(second.begin() + 4, second.end())));

  // Back in the same loader, and from the very end of an epoch.
  resumed.seek({1, 2});
  CHECK((rest_of_epoch(resumed) == std::vector<Bytes>(second.begin() + 2, second.end())));
  resumed.seek({0, 6});
  CHECK(!resumed.next());
  CHECK((rest_of_epoch(resumed) == second));
  CHECK(error_of([&] {
          resumed.seek({0, 7});
        }) == "loader: cannot continue at epoch 0, batch 7: an epoch has 6 batches");
}

TEST_CASE("a worker's error reaches the consumer at its batch") {
  const TemporaryFolder folder;
  for (int i = 0; i < 30; ++i) {
    write_file(folder / fmt::format("x/{:02}.png", i), encode_png(formula_image(4, 4)));
  }
  const std::string bad = folder / "x/17.png";
  write_file(bad, {'b', 'a', 'd', '!'});
  Loader loader(open_evaluation("folder:" + folder.path()).dataset,
                {.batch_size = 5, .workers = 2, .preprocess = {.size = 4}});
  for (int i = 0; i < 3; ++i) REQUIRE(loader.next());
  const std::string expected = bad + ": not a JPEG or PNG image (it begins with 62 61 64 21)";
  CHECK(error_of([&] { loader.next(); }) == expected);
  CHECK(error_of([&] { loader.next(); }) == expected);
  CHECK(loader.position() == LoaderPosition{0, 3});
  write_file(bad, encode_png(formula_image(4, 4)));
  CHECK(loader.next()->index == 3);
  loader.seek({0, 5});
  CHECK(loader.next()->index == 5);
}

TEST_CASE("options out of range are refused") {
  const auto refusal = [](LoaderOptions options, int64_t size) {
    return error_of([&] { Loader(counting(size), options); });
  };
  CHECK(refusal({.batch_size = 64, .drop_last = true}, 10) ==
        "loader: batch size 64 is larger than the data set of 10 images");
  CHECK(refusal({.batch_size = 0}, 10) == "loader: batch size must be positive, got 0");
  CHECK(refusal({.workers = 0}, 10) == "loader: workers must be positive, got 0");
  CHECK(refusal({.prefetch = 0}, 10) == "loader: prefetch must be positive, got 0");
  CHECK(refusal({}, 0) == "loader: the data set is empty");
  CHECK(refusal({.batch_size = 64}, 10).empty());
}

TEST_CASE("the loader ends without finishing batches") {
  // Two workers hold batches of 5,000 examples, a millisecond each. The first example fails once
  // the other worker is in the midst of its batch.
  std::atomic<int> prepared = 0;
  const auto slow = counting(10000, [&](int64_t index) {
    ++prepared;
    if (index == 0) {
      while (prepared < 10) std::this_thread::yield();
      WEFT_FAIL("stopped");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  {
    Loader loader(slow, {.batch_size = 5000, .workers = 2});
    CHECK(error_of([&] { loader.next(); }) == "stopped");
  }
  CHECK(prepared < 2500);
}

TEST_CASE("alternating flips mirror an image in every other epoch, half of them in the first") {
  constexpr int64_t kImages = 200, kRow = 32;
  LoaderOptions options = {.batch_size = kImages, .seed = 5, .preprocess = {.size = kRow}};
  Loader plain(counting(kImages), options);
  const Tensor original = plain.next()->images;
  options.augmentation = {.flip = true, .alternate_flip = true};
  options.shuffle = true;  // the draw is the image's, not its place's
  const auto mirrored = [&](LoaderOptions of, int64_t epoch) {
    Loader loader(counting(kImages), of);
    loader.seek({epoch, 0});
    const Tensor images = loader.next()->images;
    const std::vector<int64_t> order = epoch_order(kImages, of.shuffle, of.seed, epoch);
    std::vector<bool> result(kImages);
    for (int64_t i = 0; i < kImages; ++i) {
      const float* const seen = images.data<float>() + i * 3 * kRow * kRow;
      const float* const row = original.data<float>() + order[i] * 3 * kRow * kRow;
      const bool as_is = std::equal(seen, seen + kRow, row);
      REQUIRE((as_is || std::equal(seen, seen + kRow, std::reverse_iterator(row + kRow))));
      result[order[i]] = !as_is;
    }
    return result;
  };
  const std::vector<bool> first = mirrored(options, 0);
  const auto count = std::ranges::count(first, true);
  CHECK((count > kImages / 3 && count < 2 * kImages / 3));
  std::vector<bool> others = first;
  others.flip();
  CHECK(mirrored(options, 1) == others);
  CHECK(mirrored(options, 2) == first);
  CHECK(mirrored(options, 7) == others);
  options.seed = 6;
  CHECK(mirrored(options, 0) != first);
  options.augmentation.flip = false;  // alternation says when, not whether
  CHECK(mirrored(options, 1) == std::vector<bool>(kImages, false));
}

TEST_CASE("one worker prepares more than 10,000 small images a second") {
  const DatasetPtr images = open_data("builtin", 0).test;
  Loader loader(images, {.batch_size = 64,
                         .shuffle = true,
                         .preprocess = {.size = 32},
                         .augmentation = {.shift = 4, .flip = true}});
  // Processor time of all threads, which other programs on the machine do not change.
  const std::clock_t start = std::clock();
  int64_t count = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    while (const auto batch = loader.next()) count += batch->size();
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  CAPTURE(count / seconds);
  CHECK(count == 10000);
#ifdef __OPTIMIZE__  // not under sanitizers
  CHECK(seconds < 1);
#endif
  std::printf("loader: %.0f images per processor second\n", count / seconds);
}

TEST_CASE("a batch's micro-batches differ by one sample at most, and none is empty without need") {
  const auto sizes = [](int64_t samples, int micro_batches) {
    Loader loader(
        counting(samples),
        {.batch_size = samples, .micro_batches = micro_batches, .preprocess = {.size = 8}});
    std::vector<int64_t> sizes;
    while (const auto batch = loader.next()) sizes.push_back(batch->size());
    return sizes;
  };
  using Sizes = std::vector<int64_t>;
  CHECK(sizes(7, 3) == Sizes{3, 2, 2});
  CHECK(sizes(9, 4) == Sizes{3, 2, 2, 2});  // not 3, 3, 3 and none
  CHECK(sizes(2, 3) == Sizes{1, 1, 0});
  Sizes many = sizes(64, 12);
  CHECK(std::ranges::count(many, 6) == 4);
  CHECK(std::ranges::count(many, 5) == 8);
}

TEST_CASE("the micro-batches of the ranks together are the batches of one loader") {
  LoaderOptions whole = everything(1);
  whole.augmentation.mixup = whole.augmentation.cutmix = 0;  // these mix within a micro-batch
  Loader one(counting(47), whole);
  for (const auto& [ranks, micro_batches] : {std::pair(2, 2), {3, 3}, {2, 8}, {8, 8}, {1, 4}}) {
    one.seek({1, 0});
    std::vector<std::unique_ptr<Loader>> loaders;
    for (int rank = 0; rank < ranks; ++rank) {
      LoaderOptions options = whole;
      options.micro_batches = micro_batches;
      options.ranks = ranks;
      options.rank = rank;
      loaders.push_back(std::make_unique<Loader>(counting(47), options));
      loaders.back()->seek({1, 0});
      CHECK(loaders.back()->batches() == one.batches() * micro_batches / ranks);
    }
    int64_t index = 0;
    while (auto batch = one.next()) {
      Bytes expected, got;
      append(expected, batch->images);
      append(expected, batch->labels);
      Bytes labels;
      for (int number = 0; number < micro_batches; ++number) {
        const auto part = loaders[number % ranks]->next();
        REQUIRE(part.has_value());
        CHECK(part->index == index * micro_batches + number);
        append(got, part->images);
        append(labels, part->labels);
      }
      got.insert(got.end(), labels.begin(), labels.end());
      CHECK(got == expected);
      ++index;
    }
    for (auto& loader : loaders) CHECK(!loader->next());
  }
  LoaderOptions bad = whole;
  bad.micro_batches = 3;
  bad.ranks = 2;
  CHECK_THROWS_WITH(Loader(counting(47), bad),
                    Catch::Matchers::Contains("batches of 3 micro-batches"));
}

}  // namespace
}  // namespace weft::data
