#include <catch2/catch.hpp>

#include "kernels/batch_norm/batch_norm.h"

namespace weft::kernels {
namespace {

TEST_CASE("running statistics blend in the batch's mean and unbiased variance") {
  const Tensor mean = Tensor::from(std::vector<float>{1, -2}, {2});
  const Tensor variance = Tensor::from(std::vector<float>{3, 6}, {2});
  const Tensor running_mean = Tensor::from(std::vector<float>{0, 2}, {2});
  const Tensor running_variance = Tensor::from(std::vector<float>{1, 4}, {2});
  // M = 4: the unbiased variances are 4 and 8. Every number is exact in f32.
  update_running_statistics(mean, variance, 4, 0.25, running_mean, running_variance);
  CHECK(running_mean.to_vector() == std::vector<double>{0.25, 1});
  CHECK(running_variance.to_vector() == std::vector<double>{1.75, 5});
  CHECK(running_mean.version() == 1);
  CHECK(running_variance.version() == 1);
}

}  // namespace
}  // namespace weft::kernels
