#include "core/shape.h"

#include <catch2/catch.hpp>

namespace weft {
namespace {

TEST_CASE("a shape grows and shrinks in place") {
  Shape shape = {2, 3};
  shape.push_back(5);
  shape.insert(0, 7);
  CHECK(shape == Shape{7, 2, 3, 5});
  shape.erase(2);
  CHECK(shape == Shape{7, 2, 5});
  CHECK(shape.front() == 7);
  CHECK(shape.back() == 5);
  CHECK(Shape::filled(3, 4) == Shape{4, 4, 4});
  CHECK(Shape(std::vector<int64_t>{1, 2}) == Shape{1, 2});
  CHECK_FALSE(Shape{1} == Shape{1, 1});
}

TEST_CASE("a ninth dimension is refused") {
  CHECK_THROWS_WITH(Shape({1, 2, 3, 4, 5, 6, 7, 8, 9}), "a tensor has at most 8 dimensions, got 9");
  Shape eight = Shape::filled(8, 1);
  CHECK_THROWS_WITH(eight.push_back(1), "a tensor has at most 8 dimensions");
}

TEST_CASE("sizes multiply and strides are row-major") {
  CHECK(numel({}) == 1);
  CHECK(numel({2, 3, 4}) == 24);
  CHECK(numel({2, 0, 4}) == 0);
  CHECK(contiguous_strides({2, 3, 4}) == Strides{12, 4, 1});
  CHECK(contiguous_strides({}) == Strides{});
  CHECK(contiguous_strides({2, 0, 3}) == Strides{3, 3, 1});
}

TEST_CASE(
    "products of sizes that do not fit 63 bits are refused, whatever the order of the sizes") {
  constexpr int64_t kBig = int64_t{1} << 62;
  CHECK(numel({kBig, 1}) == kBig);
  CHECK_THROWS_WITH(numel({kBig, 2}),
                    "the sizes of shape [4611686018427387904, 2] multiply to more "
                    "than 2^63 - 1");
  CHECK_THROWS_AS(numel({0, kBig, 2}), Error);
  CHECK_THROWS_AS(numel({kBig, 2, 0}), Error);
  CHECK_THROWS_AS(contiguous_strides({kBig, kBig}), Error);
  CHECK_FALSE(try_numel({kBig, 4}).has_value());
}

TEST_CASE("strides span memory below and above the first element") {
  const Span span = span_of({2, 3, 1}, {-3, 1, 100});
  CHECK(span.first == -3);
  CHECK(span.size == 6);
  CHECK(span_of({0, 3}, {1, 1}).size == 0);
  CHECK(span_of({}, {}).size == 1);
  constexpr int64_t kBig = int64_t{1} << 62;
  CHECK_THROWS_WITH(
      span_of({3, 2}, {kBig, 1}),
      "strides [4611686018427387904, 1] of shape [3, 2] reach beyond 2^63 - 1 elements");
  CHECK_THROWS_AS(span_of({2, 2}, {kBig, -kBig}), Error);
}

TEST_CASE("shapes broadcast from the right") {
  CHECK(broadcast_shapes({5, 1, 4}, {3, 1}, "add") == Shape{5, 3, 4});
  CHECK(broadcast_shapes({}, {2, 3}, "add") == Shape{2, 3});
  CHECK(broadcast_shapes({1}, {0}, "add") == Shape{0});
  CHECK_THROWS_WITH(broadcast_shapes({2, 3}, {4, 3}, "add"),
                    "add: shapes [2, 3] and [4, 3] do not broadcast");
  CHECK_THROWS_AS(broadcast_shapes({0}, {2}, "add"), Error);
}

TEST_CASE("dimensions count from either end") {
  CHECK(wrap_dim(-1, 3, "sum") == 2);
  CHECK(wrap_dim(0, 3, "sum") == 0);
  CHECK_THROWS_WITH(wrap_dim(3, 3, "sum"),
                    "sum: dimension 3 is out of range for a tensor of 3 dimensions");
  CHECK_THROWS_WITH(wrap_dim(-4, 3, "sum"),
                    "sum: dimension -4 is out of range for a tensor of 3 dimensions");
}

TEST_CASE("shapes print as lists") {
  CHECK(to_string({}) == "[]");
  CHECK(fmt::format("{}", Shape{2, 3}) == "[2, 3]");
}

}  // namespace
}  // namespace weft
