#include "kernels/device/library.h"

#include <catch2/catch.hpp>

#include "core/error.h"

using namespace weft::kernels;

TEST_CASE("A library is opened by name and its functions found") {
  const Library math("libm.so.6");
  REQUIRE(math.is_open());
  CHECK(math.function<double (*)(double)>("fabs")(-27) == 27);
  CHECK_THROWS_WITH(math.function<void (*)()>("no_such_function"),
                    "libm.so.6 has no function no_such_function: another version is needed");
}

TEST_CASE("A library that is missing says so when it is needed") {
  const Library missing("libno_such_library.so.1");
  CHECK_FALSE(missing.is_open());
  CHECK_THROWS_WITH(missing.function<void (*)()>("f"),
                    Catch::StartsWith("libno_such_library.so.1 is not available: "));
}
