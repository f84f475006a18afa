#include "optim/schedule.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "optim/sgd.h"

namespace weft::optim {
namespace {

void check_values(const Schedule& schedule, const std::vector<double>& expected) {
  for (size_t step = 0; step < expected.size(); ++step) {
    CAPTURE(step);
    CHECK(schedule(step) == Approx(expected[step]).epsilon(1e-13).margin(1e-15));
  }
}

// The learning rates of PyTorch 1.13's schedulers over a base of 1.
TEST_CASE("schedules equal PyTorch's numbers") {
  check_values(constant(), {1, 1, 1});
  check_values(linear(4, 0.25, 1), {0.25, 0.4375, 0.625, 0.8125, 1, 1, 1});
  check_values(linear_warmup(4, 0.25), {0.25, 0.4375, 0.625, 0.8125, 1, 1, 1});
  check_values(cosine(5, 0.1), {1.0, 0.9140576474687263, 0.6890576474687263, 0.41094235253127365,
                                0.1859423525312737, 0.1, 0.1});
  check_values(exponential(0.9), {1.0, 0.9, 0.81, 0.7290000000000001});
  check_values(staircase(2, 0.1), {1, 1, 0.1, 0.1, 0.01, 0.01});
  check_values(one_cycle(10),
               {0.04, 0.52, 1.0, 0.9504846320134737, 0.8117456539497631, 0.6112620219362893,
                0.38874197806371075, 0.18825834605023697, 0.049519367986526286, 4e-06, 4e-06});
  check_values(
      one_cycle(
          10, {.warmup_fraction = 0.4, .div_factor = 10, .final_div_factor = 100, .linear = true}),
      {0.1, 0.4, 0.7, 1.0, 0.8335, 0.667, 0.5005, 0.334, 0.1675, 0.001});
  check_values(sequential({linear_warmup(3, 0.1), cosine(4)}, {3}),
               {0.1, 0.4, 0.7, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627, 0.0});
  check_values(per_epoch(exponential(0.5), 3), {1, 1, 1, 0.5, 0.5, 0.5, 0.25});
}

TEST_CASE("arguments of schedules are checked") {
  CHECK_THROWS_WITH(linear(0, 0, 1), "linear: the number of steps must be positive, got 0");
  CHECK_THROWS_WITH(exponential(0), "exponential: gamma must be positive, got 0");
  CHECK_THROWS_WITH(one_cycle(10, {.warmup_fraction = 2}),
                    "one_cycle: the warm-up fraction must lie in [0, 1], got 2");
  CHECK_THROWS_WITH(sequential({constant()}, {3}),
                    "sequential: 1 schedules need one milestone less, got 1");
  CHECK_THROWS_WITH(sequential({constant(), constant(), constant()}, {3, 2}),
                    "sequential: the milestones must not decrease");
}

SGD two_groups() {
  static Tensor a = Tensor::zeros({1}).set_requires_grad(true);
  static Tensor b = Tensor::zeros({1}).set_requires_grad(true);
  return SGD({{.parameters = {{"a", a}}}, {.parameters = {{"b", b}}, .options = {{"lr", 0.1}}}},
             {.lr = 2});
}

TEST_CASE("a Scheduler drives every group from its own base, and resumes") {
  SGD optimizer = two_groups();
  Scheduler scheduler(optimizer, linear(4, 1, 0));
  CHECK(optimizer.groups()[0]["lr"] == 2);
  scheduler.step();
  CHECK(optimizer.groups()[0]["lr"] == 1.5);
  CHECK(optimizer.groups()[1]["lr"] == 0.1 * 0.75);

  SGD resumed = two_groups();
  Scheduler again(resumed, linear(4, 1, 0));
  again.load_state_dict(nlohmann::json::parse(scheduler.state_dict().dump()));
  CHECK(again.step_count() == 1);
  CHECK(resumed.groups()[1]["lr"] == 0.1 * 0.75);
  again.step();
  scheduler.step();
  CHECK(resumed.lr() == optimizer.lr());

  CHECK_THROWS_WITH(again.load_state_dict({{"step", 1}}),
                    Catch::Contains("Scheduler: malformed state"));
  CHECK_THROWS_WITH(again.load_state_dict({{"step", 1}, {"base_lr", {1.0}}}),
                    "Scheduler: the state is of step 1 and 1 parameter groups, expected 2 groups");
}

}  // namespace
}  // namespace weft::optim
