#include "core/view.h"

#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "core/allocator.h"

namespace weft {
namespace {

using Values = std::vector<double>;

/// 0, 1, 2, ... in row-major order.
Tensor iota(const Shape& shape) {
  std::vector<int32_t> values(numel(shape));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::from(values, shape);
}

/// The view shows these values under this shape, and lies in x's memory.
void check_view(const Tensor& view, const Tensor& x, const Shape& shape, const Values& values) {
  CHECK(view.storage() == x.storage());
  CHECK(view.dtype() == x.dtype());
  CHECK(view.shape() == shape);
  CHECK(view.to_vector() == values);
  CHECK_FALSE(view.is_same(x));
}

TEST_CASE("slices take every step-th element and clamp as Python does") {
  const Tensor x = iota({2, 5});
  check_view(view::slice(x, 1, 1, 4), x, {2, 3}, {1, 2, 3, 6, 7, 8});
  check_view(view::slice(x, 1, 0, 5, 2), x, {2, 3}, {0, 2, 4, 5, 7, 9});
  check_view(view::slice(x, -1, -2, 100), x, {2, 2}, {3, 4, 8, 9});
  check_view(view::slice(x, 0, 1, 1), x, {0, 5}, {});
  check_view(view::slice(x, 0, 2, 1), x, {0, 5}, {});
  check_view(view::slice(view::slice(x, 1, 1, 5, 2), 1, 1, 2), x, {2, 1}, {3, 8});
  CHECK_THROWS_WITH(view::slice(x, 1, 0, 5, 0), "slice: step must be positive, got 0");
  CHECK_THROWS_WITH(view::slice(x, 2, 0, 1),
                    "slice: dimension 2 is out of range for a tensor of 2 dimensions");
}

TEST_CASE("narrow and select keep to the dimension") {
  const Tensor x = iota({2, 3});
  check_view(view::narrow(x, 1, 1, 2), x, {2, 2}, {1, 2, 4, 5});
  check_view(view::narrow(x, 0, 2, 0), x, {0, 3}, {});
  check_view(view::select(x, 0, -1), x, {3}, {3, 4, 5});
  check_view(view::select(view::select(x, 0, 1), 0, 2), x, {}, {5});
  CHECK_THROWS_WITH(view::narrow(x, 1, 2, 2),
                    "narrow: [2, 4) lies outside dimension 1 of i32 [2, 3] on cpu");
  CHECK_THROWS_WITH(view::select(x, 0, 2),
                    "select: index 2 is outside dimension 0 of i32 [2, 3] on cpu");
}

TEST_CASE("transpose and permute reorder dimensions") {
  const Tensor x = iota({2, 3});
  check_view(view::transpose(x, 0, -1), x, {3, 2}, {0, 3, 1, 4, 2, 5});
  const Tensor y = iota({2, 1, 3});
  check_view(view::permute(y, {2, 0, 1}), y, {3, 2, 1}, {0, 3, 1, 4, 2, 5});
  check_view(view::permute(y, {-1, 1, 0}), y, {3, 1, 2}, {0, 3, 1, 4, 2, 5});
  CHECK_THROWS_WITH(view::permute(x, {0, -2}), "permute: order [0, -2] names dimension 0 twice");
  CHECK_THROWS_WITH(view::permute(x, {0}),
                    "permute: order [0] does not have the 2 dimensions of i32 [2, 3] on cpu");
}

TEST_CASE("reshape follows the strides or refuses") {
  const Tensor x = iota({2, 3, 4});
  check_view(view::reshape(x, {6, -1}), x, {6, 4}, x.to_vector());
  check_view(view::reshape(x, {24}), x, {24}, x.to_vector());
  const Tensor one = iota({1});
  check_view(view::reshape(one, {}), one, {}, {0});
  // A transposed pair splits where its runs do.
  const Tensor turned = view::transpose(x, 0, 2);  // [4, 3, 2] with strides 1, 4, 12
  check_view(view::reshape(turned, {2, 2, 3, 1, 2}), x, {2, 2, 3, 1, 2}, turned.to_vector());
  CHECK_FALSE(view::try_reshape(turned, {12, 2}));
  CHECK_THROWS_WITH(view::reshape(turned, {24}),
                    "reshape: i32 [4, 3, 2] on cpu with strides [1, 4, 12] cannot become [24] "
                    "without a copy");
  // Gaps between rows: within a row only; sizes of 1 do not matter.
  const Tensor gaps = view::narrow(x, 2, 0, 2);
  check_view(view::reshape(gaps, {6, 1, 2}), x, {6, 1, 2}, gaps.to_vector());
  CHECK_FALSE(view::try_reshape(gaps, {12}));
  const Tensor repeated = view::expand(iota({2, 1}), {2, 3});
  CHECK_FALSE(view::try_reshape(repeated, {6}));
  CHECK(view::reshape(Tensor::empty({0, 3}), {3, 0, 5}).numel() == 0);

  CHECK_THROWS_WITH(view::reshape(x, {5, -1}), "reshape: 24 elements do not fit shape [5, -1]");
  CHECK_THROWS_WITH(view::reshape(x, {-1, -1}),
                    "reshape: at most one size may be -1, got [-1, -1]");
  CHECK_THROWS_WITH(view::reshape(x, {-2, -12}),
                    "reshape: sizes must not be negative, got [-2, -12]");
  CHECK_THROWS_WITH(view::reshape(Tensor::empty({0}), {0, -1}),
                    "reshape: 0 elements do not fit shape [0, -1]");
}

TEST_CASE("every reshape of a permuted tensor shows its elements in order") {
  const Tensor x = iota({2, 3, 4, 5});
  int views = 0;
  for (const Shape& order : {Shape{0, 1, 2, 3}, {1, 0, 2, 3}, {0, 1, 3, 2}, {2, 3, 0, 1}}) {
    const Tensor permuted = view::permute(x, order);
    for (const Shape& shape : {Shape{120},
                               {6, 20},
                               {20, 6},
                               {2, 3, 20},
                               {6, 4, 5},
                               {4, 5, 6},
                               {3, 2, 2, 2, 5},
                               {1, 20, 1, 6}}) {
      const auto reshaped = view::try_reshape(permuted, shape);
      if (!reshaped) continue;
      ++views;
      check_view(*reshaped, x, shape, permuted.to_vector());
    }
  }
  CHECK(views >= 12);
}

TEST_CASE("expand repeats without memory") {
  const Tensor x = iota({3, 1});
  const Tensor y = view::expand(x, {2, -1, 2});
  check_view(y, x, {2, 3, 2}, {0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2});
  CHECK(y.strides() == Strides{0, 1, 0});
  const Tensor scalar = iota({});
  check_view(view::expand(scalar, {2}), scalar, {2}, {0, 0});
  CHECK_THROWS_WITH(view::expand(x, {3}), "expand: i32 [3, 1] on cpu has more dimensions than [3]");
  CHECK_THROWS_WITH(view::expand(x, {2, 4}), "expand: i32 [3, 1] on cpu does not expand to [2, 4]");
  CHECK_THROWS_WITH(view::expand(x, {-1, 3, 1}),
                    "expand: a new dimension needs a size, got [-1, 3, 1]");
}

TEST_CASE("squeeze and unsqueeze move sizes of 1") {
  const Tensor x = iota({1, 3, 1});
  check_view(view::squeeze(x), x, {3}, {0, 1, 2});
  check_view(view::squeeze(x, 0), x, {3, 1}, {0, 1, 2});
  check_view(view::squeeze(x, 1), x, {1, 3, 1}, {0, 1, 2});
  check_view(view::unsqueeze(x, -1), x, {1, 3, 1, 1}, {0, 1, 2});
  check_view(view::unsqueeze(x, 1), x, {1, 1, 3, 1}, {0, 1, 2});
  CHECK(view::unsqueeze(x, 0).is_contiguous());
  CHECK_THROWS_WITH(view::unsqueeze(x, 4),
                    "unsqueeze: dimension 4 is out of range for a tensor of 4 dimensions");
}

TEST_CASE("writing through a view changes the tensor") {
  const Tensor x = iota({2, 3});
  *view::select(view::select(x, 0, 1), 0, 2).data<int32_t>() = 50;
  CHECK(x.to_vector() == Values{0, 1, 2, 3, 4, 50});
  const uint64_t version = x.version();
  view::transpose(x, 0, 1).bump_version();
  CHECK(x.version() == version + 1);
}

TEST_CASE("a tensor of more bytes than 2^63 - 1 is refused by its dtype and shape") {
  constexpr int64_t kBig = int64_t{1} << 62;
  CHECK_THROWS_WITH(Tensor::empty({kBig + 1}, DType::f32),
                    "f32 [4611686018427387905] would take more than 2^63 - 1 bytes");
  CHECK_THROWS_WITH(Tensor::zeros({kBig, 4}, DType::u8),
                    "u8 [4611686018427387904, 4] would take more than 2^63 - 1 bytes");
  CHECK_THROWS_WITH(Tensor::empty({kBig, 0}, DType::f64),
                    "f64 [4611686018427387904, 0] would take more than 2^63 - 1 bytes");
  CHECK_THROWS_WITH(Tensor::empty({2, -1}), "a tensor's sizes must not be negative, got [2, -1]");
  CHECK(nbytes({3, 5}, DType::bf16) == 30);
  const Tensor one = iota({1, 1});
  CHECK_THROWS_WITH(view::expand(one, {kBig, 4}),
                    "i32 [4611686018427387904, 4] would take more than 2^63 - 1 bytes");
  CHECK_THROWS_WITH(
      view::reshape(one, {kBig, 4, -1}),
      "the sizes of shape [4611686018427387904, 4, 1] multiply to more than 2^63 - 1");
  CHECK_THROWS_WITH(allocator(Device{}).allocate(~size_t{0}),
                    "out of memory: requested 18446744073709551615 bytes");
}

TEST_CASE("a view lies within its storage") {
  const Tensor x = iota({2, 3});
  const auto at = [&](const Shape& shape, const Strides& strides, int64_t offset) {
    return Tensor::view_of(x.storage(), shape, strides, offset, x.dtype());
  };
  CHECK(at({2, 3}, {-3, 1}, 3).to_vector() == Values{3, 4, 5, 0, 1, 2});
  CHECK(at({0}, {7}, 100).numel() == 0);
  CHECK_THROWS_WITH(
      at({2, 3}, {3, 1}, 1),
      "Tensor::view_of: i32 [2, 3] with strides [3, 1] from element 1 on does not lie "
      "within a storage of 24 bytes");
  CHECK_THROWS_AS(at({7}, {1}, 0), Error);
  CHECK_THROWS_AS(at({2}, {6}, 0), Error);
  CHECK_THROWS_AS(at({1}, {1}, -1), Error);
  CHECK_THROWS_AS(at({2}, {-1}, 0), Error);
  CHECK_THROWS_AS(at({1}, {1}, std::numeric_limits<int64_t>::max()), Error);
  CHECK_THROWS_AS(Tensor::view_of(x.storage(), {6}, {1}, 0, DType::f64), Error);
}

TEST_CASE("steps and lengths near 2^63") {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const Tensor x = iota({2, 3});
  CHECK(view::slice(x, 1, 0, 3, kMost).to_vector() == Values{0, 3});
  CHECK(view::slice(x, 1, -kMost, kMost, 2).to_vector() == Values{0, 2, 3, 5});
  CHECK_THROWS_WITH(
      view::narrow(x, 1, 2, kMost),
      "narrow: [2, 9223372036854775807) lies outside dimension 1 of i32 [2, 3] on cpu");
}

TEST_CASE("overlaps of a tensor with itself and with another are found exactly") {
  const Tensor x = iota({4, 6});
  CHECK_FALSE(view::overlaps_itself(x));
  CHECK_FALSE(view::overlaps_itself(view::transpose(view::slice(x, 1, 0, 6, 2), 0, 1)));
  CHECK(view::overlaps_itself(view::expand(view::narrow(x, 0, 0, 1), {2, 6})));
  CHECK_FALSE(view::overlaps_itself(view::expand(iota({1}), {1, 1})));
  CHECK(view::overlaps_itself(Tensor::view_of(x.storage(), {3, 2}, {1, 1}, 0, x.dtype())));

  const Tensor left = view::narrow(x, 1, 0, 3), right = view::narrow(x, 1, 3, 3);
  CHECK_FALSE(view::share_elements(left, right));
  CHECK(view::share_elements(left, view::narrow(x, 1, 2, 3)));
  CHECK_FALSE(view::share_elements(view::slice(x, 1, 0, 6, 2), view::slice(x, 1, 1, 6, 2)));
  CHECK(view::share_elements(view::select(x, 0, 3), view::select(x, 1, 5)));
  CHECK_FALSE(view::share_elements(view::narrow(x, 0, 0, 2), view::narrow(x, 0, 2, 2)));
  CHECK_FALSE(view::share_elements(x, iota({4, 6})));
  CHECK_FALSE(view::share_elements(x, view::narrow(x, 0, 1, 0)));
}

TEST_CASE("memory that comes and goes is brought back by a touch") {
  Storage* self = nullptr;
  int touches = 0;
  const auto storage = std::make_shared<Storage>(4 * sizeof(float), Device{}, [&] {
    ++touches;
    const Tensor content = Tensor::full({4}, 7);
    self->take(*content.storage());
  });
  self = storage.get();
  const Tensor x = Tensor::view_of(storage, {4}, {1}, 0, DType::f32);
  CHECK(!storage->is_resident());
  CHECK(x.data<float>()[0] == 7);
  CHECK(x.data<float>()[0] == 7);
  CHECK(touches == 1);
  const size_t live = allocator(Device{}).stats().live;
  storage->free();
  CHECK(allocator(Device{}).stats().live == live - 16);
  CHECK(!storage->is_resident());
  CHECK(x.to_vector()[0] == 7);
  CHECK(touches == 2);
}

}  // namespace
}  // namespace weft
