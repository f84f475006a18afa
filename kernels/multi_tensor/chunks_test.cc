#include "kernels/multi_tensor/chunks.h"

#include <catch2/catch.hpp>

#include "core/view.h"

namespace weft::kernels {
namespace {

TEST_CASE("chunks cover every element once, in order") {
  const std::vector<Tensor> tensors = {Tensor::empty({3}), Tensor::empty({0}),
                                       Tensor::empty({2 * kChunkElements + 1}),
                                       Tensor::empty({kChunkElements})};
  const std::vector<TensorChunk> chunks = tensor_chunks(tensors);
  const int64_t expected[][3] = {{0, 0, 3},
                                 {2, 0, kChunkElements},
                                 {2, kChunkElements, 2 * kChunkElements},
                                 {2, 2 * kChunkElements, 2 * kChunkElements + 1},
                                 {3, 0, kChunkElements}};
  REQUIRE(chunks.size() == 5);
  for (size_t i = 0; i < chunks.size(); ++i) {
    CHECK(chunks[i].tensor == expected[i][0]);
    CHECK(chunks[i].begin == expected[i][1]);
    CHECK(chunks[i].end == expected[i][2]);
  }
  CHECK(chunk_tasks(chunks) == std::vector<int64_t>{0, 1, 2, 3, 4, 5});
  CHECK(tensor_chunks({}).empty());
  CHECK(chunk_tasks({}) == std::vector<int64_t>{0});
}

TEST_CASE("small tensors share a task") {
  const std::vector<Tensor> tensors(100, Tensor::empty({1000}));
  const std::vector<TensorChunk> chunks = tensor_chunks(tensors);
  CHECK(chunk_tasks(chunks) == std::vector<int64_t>{0, 32, 64, 96, 100});
}

TEST_CASE("contiguous_list copies only what is strided") {
  const Tensor x = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const std::vector<Tensor> list = {x, view::transpose(x, 0, 1)};
  const std::vector<Tensor> result = contiguous_list(list);
  CHECK(result[0].raw() == x.raw());
  CHECK(result[1].is_contiguous());
  CHECK(result[1].to_vector() == std::vector<double>{1, 4, 2, 5, 3, 6});
}

TEST_CASE("lists that do not match are an internal error") {
  const std::vector<Tensor> one = {Tensor::empty({2, 3})};
  CHECK_NOTHROW(assert_matching(one, one));
  CHECK_THROWS_AS(assert_matching(one, {}), InternalError);
  CHECK_THROWS_AS(assert_matching(one, std::vector<Tensor>{Tensor::empty({3, 2})}), InternalError);
  CHECK_THROWS_AS(
      assert_matching(one, std::vector<Tensor>{view::transpose(Tensor::empty({3, 2}), 0, 1)}),
      InternalError);
}

}  // namespace
}  // namespace weft::kernels
