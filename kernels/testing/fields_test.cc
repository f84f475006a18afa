#include "kernels/testing/fields.h"

#include <catch2/catch.hpp>

#include "kernels/adam/adam.h"
#include "kernels/conv2d/conv2d.h"

namespace weft::kernels {
namespace {

TEST_CASE("the fields of a struct are counted and visited in order") {
  struct Mixed {
    int a = 1;
    std::array<int64_t, 2> pair = {2, 3};
    std::string text = "four";
    bool last = true;
  };
  STATIC_REQUIRE(fields::count<Mixed>() == 4);
  Mixed mixed;
  std::string seen;
  for_each_field(mixed, [&](auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, std::string>) {
      seen += field;
    } else if constexpr (std::is_integral_v<Field>) {
      seen += std::to_string(field);
    } else {
      seen += std::to_string(field[1]);
    }
  });
  CHECK(seen == "13four1");
}

TEST_CASE("all tensors of a problem are found, those in lists too") {
  const Tensor x = Tensor::zeros({3});
  AdamProblem adam{.parameters = {x, x}, .gradients = {x, x}, .m = {x, x}, .v = {x, x}};
  int count = 0;
  for_each_tensor(adam, [&](Tensor& tensor) { count += tensor.defined(); });
  CHECK(count == 8);
  STATIC_REQUIRE(fields::count<Conv2dProblem>() == 13);
  Conv2dProblem conv{.x = x, .w = x, .y = x, .groups = 2};
  int defined = 0, absent = 0;
  for_each_tensor(conv, [&](Tensor& tensor) { ++(tensor.defined() ? defined : absent); });
  CHECK(defined == 3);
  CHECK(absent == 5);
}

}  // namespace
}  // namespace weft::kernels
