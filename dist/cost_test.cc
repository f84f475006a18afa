#include "dist/cost.h"

#include <catch2/catch.hpp>

#include "dist/step_time.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

/// `units` equal units and a root on both sides.
ModelLayout layout(int64_t unit, int units, int64_t before = 0, int64_t behind = 0) {
  ModelLayout result;
  result.units.assign(units, unit);
  result.root_before = before, result.root_behind = behind;
  if (before > 0) result.sizes.push_back(before);
  result.sizes.insert(result.sizes.end(), units, unit);
  if (behind > 0) result.sizes.push_back(behind);
  for (int64_t n : result.sizes) {
    result.parameters += n;
    result.largest_parameter = std::max(result.largest_parameter, n);
  }
  return result;
}

double gigabytes(const std::string& strategy, int ranks) {
  // Many small units, so that what is on its way does not count beside P.
  return 1e-9 *
         static_cast<double>(
             state_bytes(strategy, layout(750'000, 10'000), sharing_of(strategy, ranks)).total());
}

}  // namespace

TEST_CASE("terms in P are those of the ZeRO paper") {
  // 7.5 billion parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB with 16-bit weights; with f32
  // everywhere 120, 61.9, 31.4 and 1.9.
  CHECK(gigabytes("ddp", 64) == Approx(120).epsilon(0.001));
  CHECK(gigabytes("zero1", 64) == Approx((8 + 8 / 64.0) * 7.5).epsilon(0.001));
  CHECK(gigabytes("zero2", 64) == Approx((4 + 12 / 64.0) * 7.5).epsilon(0.001));
  CHECK(gigabytes("zero3", 64) == Approx(1.9).epsilon(0.02));
  CHECK(gigabytes("single", 1) == Approx(120).epsilon(0.001));
}

TEST_CASE("traffic is that of rings over padded sizes") {
  const ModelLayout model = layout(1000, 4);
  CHECK(sent_bytes("ddp", model, sharing_of("ddp", 4)) == 2 * 3 * 4000 / 4 * 4);
  CHECK(sent_bytes("zero2", model, sharing_of("zero2", 4)) == 2 * 3 * 4000 / 4 * 4);
  // Four units forward, two of them again: the last two are still there.
  CHECK(gather_order(model) == std::vector<int>{0, 1, 2, 3, 1, 0});
  CHECK(sent_bytes("fsdp", model, sharing_of("fsdp", 4)) == (6 + 4) * 3 * 250 * 4);
  // Three ranks pad each unit to 1002.
  CHECK(sent_bytes("zero1", model, sharing_of("zero1", 3)) == 2 * 4 * 2 * 334 * 4);
  // Inside of two groups of two, and across them.
  CHECK(sent_bytes("hsdp", model, sharing_of("hsdp", 4)) == ((6 + 4) * 500 + 4 * 500) * 4);
  CHECK(sent_bytes("single", model, {}) == 0);
}

TEST_CASE("buckets are filled from behind") {
  const ModelLayout model = layout(100, 5, 30, 50);
  CHECK(bucket_elements(model, 2, {.bytes = 800, .first = 100}) ==
        std::vector<int64_t>{50, 200, 200, 130});
  CHECK(bucket_elements(model, 3, {.bytes = 1 << 20, .first = 1 << 20}) ==
        std::vector<int64_t>{582});
}

TEST_CASE("a step's timeline hides what its schedule allows") {
  const ModelLayout model = layout(1000, 4);
  StepWork work{.units = std::vector<StepWork::Pass>(4, {1, 2})};
  const auto constant = [](double seconds) {
    return [seconds](Collective, double) { return seconds; };
  };
  const GroupSeconds fast{constant(0.5), constant(0.5)};
  // ddp: one bucket per unit; the last one's reduction is seen.
  const Timeline ddp =
      step_timeline("ddp", model, sharing_of("ddp", 2), work, fast, {.bytes = 4000, .first = 4000});
  CHECK(ddp.computation == 12);
  CHECK(ddp.communication == 2);
  CHECK(ddp.end == Approx(12.5));
  CHECK(ddp.hidden_share(12.5) == Approx(1));
  CHECK(ddp.hidden_share(14) == Approx(0));
  // fsdp: the first gathering and the last reduction are seen.
  const Timeline fsdp = step_timeline("fsdp", model, sharing_of("fsdp", 2), work, fast);
  CHECK(fsdp.communication == Approx(6 * 0.5 + 4 * 0.5));
  CHECK(fsdp.end == Approx(13));
  // A network slower than the computation: it is what the step waits for.
  const GroupSeconds slow{constant(3), constant(3)};
  CHECK(
      step_timeline("ddp", model, sharing_of("ddp", 2), work, slow, {.bytes = 4000, .first = 4000})
          .end == Approx(4 + 2 + 4 * 3));
  // zero1 reduces behind backward, and gathers behind the optimizer: nothing is hidden.
  const Timeline zero1 = step_timeline("zero1", model, sharing_of("zero1", 2), work, fast);
  CHECK(zero1.end == Approx(zero1.serial()));
  CHECK(zero1.hidden_share(zero1.end) == 1);
  const nlohmann::json events = trace_events(fsdp, 0);
  CHECK(events.size() == 8 + 10 + 3);  // spans, and the names of three lanes
  CHECK_THROWS_WITH(step_timeline("fastest", model, {}, work, fast),
                    Contains("no formula for strategy \"fastest\""));
}

TEST_CASE("collectives on hosts take their exchanges and their bytes") {
  const CollectiveSeconds seconds = host_collective_seconds(4, 0.001, 1e6, 1000);
  CHECK(seconds(Collective::kAllGather, 4000) == Approx(0.001 + 0.003));
  CHECK(seconds(Collective::kReduceScatter, 8000) == Approx(2 * 0.001 + 0.006));
  CHECK(seconds(Collective::kAllReduce, 8000) == Approx(3 * 0.001 + 0.012));
}
