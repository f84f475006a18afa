#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/op.h"
#include "kernels/profile.h"

using namespace weft;
using namespace weft::kernels;

namespace {

/// A problem that calls itself `calls` times and then throws.
struct Failing {
  int calls = 0;
  DType dtype() const { return DType::f32; }
  Device device() const { return {DeviceType::cpu, 1}; }
  std::string describe() const { return fmt::format("failing({})", calls); }
};

const Op<Failing>& failing_op();

void failing_cpu_calls(const Failing& problem) {
  if (problem.calls == 0) WEFT_FAIL("failing: as it should");
  dispatch(failing_op(), Failing{problem.calls - 1});
}

const Op<Failing>& failing_op() {
  static constexpr Variant<Failing> kVariants[] = {
      {"failing_cpu_calls", DeviceType::cpu, kAnyType, fits_any, failing_cpu_calls}};
  static constexpr Op<Failing> kOp = {"failing", kVariants};
  return kOp;
}

struct Spans : LaunchHook {
  Spans() { set_launch_hook(this); }
  ~Spans() override { set_launch_hook(nullptr); }
  void begin(std::string_view op, std::string_view variant, Device device,
             const std::string& problem) override {
    begun.push_back(fmt::format("{} {} {} {}", op, variant, device, problem));
    ++open;
  }
  void end() noexcept override { --open; }
  std::vector<std::string> begun;
  int open = 0;
};

}  // namespace

TEST_CASE("A kernel that throws ends its span and those of its callers") {
  Spans spans;
  CHECK_THROWS_WITH(dispatch(failing_op(), {2}), Catch::Contains("as it should"));
  CHECK(spans.open == 0);
  CHECK(spans.begun == std::vector<std::string>{"failing failing_cpu_calls cpu:1 failing(2)",
                                                "failing failing_cpu_calls cpu:1 failing(1)",
                                                "failing failing_cpu_calls cpu:1 failing(0)"});
}

TEST_CASE("What is to come before kernels comes once before a kernel that calls others") {
  int calls = 0;
  std::optional<BeforeKernels> before([&] { ++calls; });
  for (int i = 1; i <= 2; ++i) {
    CHECK_THROWS_AS(dispatch(failing_op(), {2}), Error);
    CHECK(calls == i);
    CHECK(!before->in_kernel());
  }
  std::thread([&] {
    CHECK(!before->is_of_this_thread());
    CHECK_THROWS_AS(dispatch(failing_op(), {0}), Error);
  }).join();
  CHECK(calls == 2);
  before.reset();
  CHECK_THROWS_AS(dispatch(failing_op(), {0}), Error);
  CHECK(calls == 2);
}

TEST_CASE("A profile goes on after a kernel that threw") {
  Profile profile;
  for (int i = 0; i < 2; ++i) CHECK_THROWS_AS(dispatch(failing_op(), {1}), Error);
  REQUIRE(profile.launches().size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(profile.launches()[i].depth == static_cast<int>(i % 2));
    CHECK(profile.launches()[i].seconds > 0);
  }
}
