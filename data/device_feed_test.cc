// Batches that become numbers on a device against the CPU's.
#include "data/device_feed.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>

#include "core/runtime.h"
#include "core/transfer.h"
#include "data/fixtures.h"
#include "kernels/copy/copy.h"
#include "tests/skip.h"

namespace weft::data {
namespace {

#define NEEDS_DEVICE() \
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str())

constexpr Device kDevice = {DeviceType::cuda, 0};

class Varied : public Dataset {
 public:
  explicit Varied(int64_t size) {
    format_ = {24, 24, kCifar10Normalization};
    class_names_ = {"a", "b", "c"};
    for (int64_t i = 0; i < size; ++i) labels_.push_back(i % 3);
  }
  Image image(int64_t index) const override {
    WEFT_CHECK(index != fails_at, "image {} is broken", index);
    Image image = formula_image(24, 24);
    for (uint8_t& byte : image.pixels) byte = static_cast<uint8_t>(byte + 31 * index);
    return image;
  }
  int64_t fails_at = -1;
};

LoaderOptions options_on(Device device, const Augmentation& augmentation, DType dtype) {
  return {.batch_size = 7,
          .shuffle = true,
          .seed = 3,
          .workers = 2,
          .device = device,
          .dtype = dtype,
          .preprocess = {.size = 20, .normalization = kCifar10Normalization},
          .augmentation = augmentation};
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = to_device(a, Device{}), y = to_device(b, Device{});
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

/// The rest of an epoch, one loader beside the other.
void check_same(Loader& here, Loader& there) {
  while (true) {
    const auto expected = here.next(), got = there.next();
    REQUIRE(got.has_value() == expected.has_value());
    if (!expected) return;
    CHECK(there.position() == here.position());
    CHECK(got->images.device() == kDevice);
    CHECK(got->index == expected->index);
    CHECK(same_bits(got->images, expected->images));
    CHECK(same_bits(got->labels, expected->labels));
    REQUIRE(got->soft_labels.defined() == expected->soft_labels.defined());
    if (expected->soft_labels.defined()) CHECK(same_bits(got->soft_labels, expected->soft_labels));
  }
}

TEST_CASE("a device's batches have the bits of the CPU's, whatever is done to them") {
  NEEDS_DEVICE();
  const auto dataset = std::make_shared<Varied>(30);
  for (const Augmentation& augmentation :
       std::vector<Augmentation>{{},
                                 {.random_crop = true, .shift = 3, .flip = true, .rand_augment = 2},
                                 {.erase = 0.7},
                                 {.mixup = 0.8},
                                 {.cutmix = 1.0},
                                 {.flip = true, .erase = 0.5, .mixup = 0.8, .cutmix = 1.0}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(dtype, augmentation.erase, augmentation.mixup, augmentation.cutmix);
      Loader here(dataset, options_on(Device{}, augmentation, dtype));
      Loader there(dataset, options_on(kDevice, augmentation, dtype));
      for (int epoch = 0; epoch < 2; ++epoch) check_same(here, there);
    }
  }
}

TEST_CASE("narrow images are those in f32, rounded once") {
  const auto dataset = std::make_shared<Varied>(7);
  Loader wide(dataset, options_on(Device{}, {.mixup = 0.8}, DType::f32));
  Loader narrow(dataset, options_on(Device{}, {.mixup = 0.8}, DType::bf16));
  CHECK(same_bits(narrow.next()->images, kernels::contiguous(wide.next()->images, DType::bf16)));
}

TEST_CASE("a device's loader continues where it is told to, and shares batches out") {
  NEEDS_DEVICE();
  const auto dataset = std::make_shared<Varied>(30);
  Loader here(dataset, options_on(Device{}, {.cutmix = 1.0}, DType::f32));
  Loader there(dataset, options_on(kDevice, {.cutmix = 1.0}, DType::f32));
  there.next();  // another is on its way, and is dropped
  for (Loader* loader : {&here, &there}) loader->seek({1, 2});
  check_same(here, there);
  for (int rank : {0, 1, 2}) {
    // Of 7 images three ranks have 3, 2 and 2; of the last two 1, 1 and none.
    LoaderOptions options = options_on(Device{}, {.mixup = 0.5}, DType::f32);
    options.micro_batches = options.ranks = 3;
    options.rank = rank;
    Loader share(dataset, options);
    options.device = kDevice;
    Loader moved(dataset, options);
    check_same(share, moved);
  }
}

TEST_CASE("what a worker throws over a batch comes when the batch is asked for") {
  NEEDS_DEVICE();
  const auto dataset = std::make_shared<Varied>(21);
  LoaderOptions options = options_on(kDevice, {}, DType::f32);
  options.shuffle = false;
  dataset->fails_at = 8;
  Loader loader(dataset, options);
  CHECK(loader.next()->index == 0);
  CHECK(error_of([&] { loader.next(); }) == "image 8 is broken");
  CHECK(loader.position() == LoaderPosition{0, 1});
  dataset->fails_at = -1;
  CHECK(loader.next()->index == 1);
}

TEST_CASE("a batch is one copy of bytes, from memory that is filled again") {
  NEEDS_DEVICE();
  DeviceFeed feed(kDevice, DType::bf16, {.size = 4});
  const ByteBatch first = feed.host_batch({.count = 2, .classes = 3, .erases = true});
  // 96 bytes of pixels, 16 of labels, 24 of soft labels, each padded to 256, and 32 of rectangles.
  CHECK(first.memory.nbytes() == 3 * 256 + 32);
  for (const Tensor& part : {first.pixels, first.labels, first.soft_labels, first.erased}) {
    CHECK(part.storage() == first.memory.storage());
  }
  std::memset(first.memory.raw(), 0, first.memory.nbytes());
  const DeviceFeed::UnderWay under_way = feed.begin(first);
  CHECK(under_way.batch.pixels.device() == kDevice);
  CHECK(feed.finish(under_way).images.dtype() == DType::bf16);
  synchronize(kDevice);
  CHECK(feed.host_batch({.count = 2, .classes = 3, .erases = true}).memory.raw() ==
        first.memory.raw());
}

TEST_CASE("a loader refuses dtypes that images cannot have") {
  const auto dataset = std::make_shared<Varied>(7);
  CHECK(error_of([&] { Loader(dataset, options_on(Device{}, {}, DType::i64)); }) ==
        "loader: images are f32, f16 or bf16, not i64");
}

}  // namespace
}  // namespace weft::data
