#include <catch2/catch.hpp>

#include "kernels/index/index.h"

namespace weft::kernels {
namespace {

TEST_CASE("an index outside its axis is named with its position and the size") {
  const Tensor x = Tensor::zeros({4, 3});
  Tensor y = Tensor::full({2, 3}, 7);
  IndexProblem p{.kind = IndexKind::kGather, .x = x, .y = y, .axis = 0};
  p.index = Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 4, 0}, {2, 3});
  CHECK_THROWS_WITH(index(p),
                    "gather: index 4 at position [1, 1] is outside dimension 0 of size 4 of f32 "
                    "[4, 3] on cpu");
  p.kind = IndexKind::kSelect;
  p.index = Tensor::from(std::vector<int32_t>{0, -1}, {2});
  CHECK_THROWS_WITH(index(p),
                    "index_select: index -1 at position [1] is outside dimension 0 of size 4 of "
                    "f32 [4, 3] on cpu");
  p.wrap_negative = true;
  p.index = Tensor::from(std::vector<int32_t>{0, -5}, {2});
  CHECK_THROWS_WITH(index(p), Catch::Contains("index -5 at position [1]"));
  // Nothing was written before the check.
  CHECK(y.to_vector() == std::vector<double>(6, 7.0));
}

TEST_CASE("adding refuses an index outside the destination") {
  const Tensor y = Tensor::full({4}, 1);
  IndexProblem p{.kind = IndexKind::kAdd, .x = Tensor::full({3}, 1), .y = y, .axis = 0};
  p.index = Tensor::from(std::vector<int64_t>{1, 1, 4}, {3});
  CHECK_THROWS_WITH(index(p), Catch::Contains("index_add: index 4 at position [2]"));
  CHECK(y.to_vector() == std::vector<double>(4, 1.0));
}

TEST_CASE("dtypes that cannot be added are refused by name") {
  const Tensor y = Tensor::zeros({4}, DType::u8);
  const IndexProblem p{
      .kind = IndexKind::kAdd, .x = y, .index = Tensor::zeros({4}, DType::i64), .y = y, .axis = 0};
  CHECK_THROWS_WITH(index(p), Catch::Contains("index_add(x u8 [4] on cpu"));
}

}  // namespace
}  // namespace weft::kernels
