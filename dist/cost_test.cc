#include "dist/cost.h"

#include <catch2/catch.hpp>

#include "dist/step_time.h"
#include "nn/nn.h"

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

TEST_CASE("traffic of copies whose parts the ranks do not divide is that of each rank") {
  // Parts of 501 elements, reduced among two ranks as 251 and 250.
  const ModelLayout model = layout(1002, 1);
  const Sharing sharing = sharing_of("hsdp", 4);
  // One unit, gathered once.
  const int64_t inside = 2 * 501;
  CHECK(sent_bytes("hsdp", model, sharing, {.rank = 0}) == 4 * (inside + 250 + 251));
  CHECK(sharing.replica_index(0) == 0);
  CHECK(sharing.replica_index(2) == 1);
  CHECK(sent_bytes("hsdp", model, sharing, {.rank = 2}) == 4 * (inside + 251 + 250));
  const ModelLayout odd = layout(7, 1);
  // Three copies of one part: 3, 3 and 1 elements.
  const Sharing three{.shard = 1, .replicas = 3};
  CHECK(sent_bytes("hsdp", odd, three, {.rank = 0}) == 4 * (3 + 1 + 2 * 3));
  CHECK(sent_bytes("hsdp", odd, three, {.rank = 2}) == 4 * (3 + 3 + 2 * 1));
}

TEST_CASE("tensor parallelism sends activations, on dealt-out tokens padded ones") {
  ModelLayout model = layout(1000, 2);
  model.cut_layers = 4, model.tokens = 5, model.width = 12;
  const StepShape step{.images = 6};
  const int64_t all = 6 * 5 * 12;
  const Sharing plain = sharing_of("tp", 4);
  CHECK(plain.tensor == 4);
  CHECK(sent_bytes("tp", model, plain, step) == 4 * 2 * 4 * (2 * 3 * all / 4));
  // Two tokens on each of four ranks, and two norms of 12 elements to be summed.
  const Sharing dealt = sharing_of({.name = "tp", .sequence_parallel = true}, 4);
  model.summed = {12, 12};
  CHECK(sent_bytes("tp", model, dealt, step) ==
        4 * ((5 * 4 + 2) * 3 * 6 * 2 * 12 + 2 * (2 * 3 * 12 / 4)));
  const Sharing head = sharing_of({.name = "tp", .parallel_head = true}, 4);
  model.head_width = 12;
  CHECK(sent_bytes("tp", model, head, step) - sent_bytes("tp", model, plain, step) ==
        4 * (2 * 3 * 6 * 12 / 4 + (6 - 2 + 3 * 2) + 2 * 3 * 12 / 4));
  // Inside of copies the buckets come on top, inside of shards the units.
  const Sharing copies = sharing_of({.name = "tp", .tensor_parallel = 2}, 4);
  CHECK(copies.replicas == 2);
  CHECK(sent_bytes("tp", model, copies, step) == 4 * (8 * all + 2 * 2000 / 2));
  const Sharing shards = sharing_of("fsdp+tp", 4);
  CHECK(shards.shard == 2);
  CHECK(sent_bytes("fsdp+tp", model, shards, step) - sent_bytes("fsdp", model, {.shard = 2}) ==
        4 * 8 * all);
}

TEST_CASE("a pipeline's stages send activations, gradients and what announces them") {
  ModelLayout first = layout(100, 2), last = layout(100, 1);
  first.given = last.taken = 60;
  const Sharing sharing = sharing_of({.name = "pipeline", .micro_batches = 3}, 2);
  CHECK(sent_bytes("pipeline", first, sharing, {.rank = 0, .images = 6}) ==
        4 * 6 * 60 + 3 * 13 * 8);
  CHECK(sent_bytes("pipeline", last, sharing, {.rank = 1, .images = 6}) == 4 * 6 * 60);
  const Sharing copies = sharing_of({.name = "pipeline", .pipeline_stages = 2}, 4);
  CHECK(copies.replicas == 2);
  CHECK(copies.micro_batches == 4);
  CHECK(sent_bytes("pipeline", last, copies, {.rank = 3, .images = 6}) == 4 * 6 * 60 + 4 * 100);
  CHECK(state_bytes("pipeline", first, copies).total() == 16 * 200);
}

TEST_CASE("a rank's layout is that of its parts of the cut layers, or of its stage") {
  struct Block : nn::Module {
    Block()
        : attention(add<nn::MultiheadAttention>("attention", 8, 4)),
          fc1(add<nn::Linear>("fc1", 8, 12)),
          fc2(add<nn::Linear>("fc2", 12, 8)) {}
    nn::MultiheadAttention& attention;
    nn::Linear &fc1, &fc2;
  };
  struct Net : nn::Module {
    Net() : norm(add<nn::LayerNorm>("norm", 8)), block(add<Block>("block")) {
      head = &add<nn::Linear>("head", 8, 5);
    }
    nn::LayerNorm& norm;
    Block& block;
    nn::Linear* head = nullptr;
  } net;
  ModelStructure structure(wrap_modules<Block>());
  structure.mlps = {{&net.block.fc1, &net.block.fc2}};
  structure.tokens = {.begin = &net.norm, .end = &net, .between = {&net.norm, &net.block}};
  structure.head = net.head;
  structure.segments = {{"a", {}, {"norm", "block"}}, {"b", {}, {"head"}}};
  const int64_t cut = 3 * 8 * 8 + 3 * 8 + 8 * 8 + 12 * 8 + 12 + 8 * 12, whole = 16 + 8 + 8 + 45;
  CHECK(layout_of(net, structure).parameters == cut + whole);
  const Sharing two = sharing_of("tp", 2);
  ModelLayout mine = layout_of(net, structure, two);
  CHECK(mine.parameters == cut / 2 + whole);
  CHECK(mine.units == std::vector<int64_t>{cut / 2 + 16});
  CHECK(mine.root_before == 16);
  CHECK(mine.cut_layers == 2);
  CHECK(mine.width == 8);
  // Five classes: three and two.
  const Sharing head =
      sharing_of({.name = "tp", .sequence_parallel = true, .parallel_head = true}, 2);
  CHECK(layout_of(net, structure, head, 0).root_behind == 27);
  CHECK(layout_of(net, structure, head, 1).root_behind == 18);
  CHECK(layout_of(net, structure, head).summed == std::vector<int64_t>{8, 8, 8, 8});
  const Sharing stages = sharing_of("pipeline", 2);
  CHECK(layout_of(net, structure, stages, 0).parameters == cut + 32);
  CHECK(layout_of(net, structure, stages, 1).parameters == 45);
  CHECK_THROWS_WITH(layout_of(net, structure, sharing_of("tp", 3)),
                    Contains("3 ranks do not divide 4 heads"));
  CHECK_THROWS_WITH(layout_of(net, structure, sharing_of("pipeline", 3)),
                    Contains("3 stages cannot be made of 2 segments"));
}

TEST_CASE("replicas as threads keep their gradients together") {
  const ModelLayout model = layout(1000, 4);
  const Sharing sharing = sharing_of("dp", 3);
  CHECK(sharing.ranks() == 1);
  CHECK(state_bytes("dp", model, sharing).total() == (12 + 4 * 3) * 4000);
  CHECK(sent_bytes("dp", model, sharing) == 0);
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

TEST_CASE("a cut layer waits for its sums, but not for what travels beside a weight's gradient") {
  ModelLayout model = layout(1000, 4);
  model.cut_layers = 8, model.tokens = 4, model.width = 10;
  const StepWork work{.units = std::vector<StepWork::Pass>(4, {6, 12})};
  GroupSeconds seconds;
  seconds.tensor = [](Collective, double bytes) { return bytes / 320; };  // 0.5 s of 4 x 10 floats
  const Timeline plain = step_timeline("tp", model, sharing_of("tp", 2), work, seconds);
  CHECK(plain.computation == Approx(72));
  CHECK(plain.communication == Approx(4 * 2 * 2 * 0.5));
  // Two sums of half a second wait in each unit's forward; those of backward travel beside 7/24 of
  // 12 s.
  CHECK(plain.end == Approx(72 + 4 * 1));
  const Sharing dealt = sharing_of({.name = "tp", .sequence_parallel = true}, 2);
  // Two collectives forward, and in backward the one of what was scattered.
  CHECK(step_timeline("tp", model, dealt, work, seconds).end == Approx(72 + 4 * 3));
}

TEST_CASE("a pipeline waits for what fills and empties it") {
  const std::vector<StageWork> stages(3, {.pass = {1, 2}, .given = 100, .parameters = 10});
  GroupSeconds seconds;
  seconds.message = [](double) { return 0.0; };
  Sharing sharing = sharing_of({.name = "pipeline", .micro_batches = 6}, 3);
  for (Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
    const Timeline timeline = pipeline_timeline(stages, sharing, schedule, seconds);
    CHECK(timeline.computation == 18);
    CHECK(timeline.end == Approx((6 + 3 - 1) * 3));
    CHECK(timeline.spans.size() == 2 * 3 * 6);
  }
  // Alone nothing waits; with copies a sum follows.
  sharing = {.replicas = 2, .stages = 1, .micro_batches = 6};
  seconds.replicate = [](Collective, double bytes) { return bytes; };
  CHECK(pipeline_timeline({stages[0]}, sharing, Schedule::k1F1B, seconds).end == Approx(18 + 40));
  // Slow links stretch what fills and empties it: header and activation there, a gradient back.
  seconds.message = [](double) { return 0.25; };
  sharing = sharing_of({.name = "pipeline", .micro_batches = 1}, 2);
  CHECK(pipeline_timeline({stages[0], stages[1]}, sharing, Schedule::kGpipe, seconds).end ==
        Approx(6 + 3 * 0.25));
}

TEST_CASE("collectives on hosts take their exchanges and their bytes") {
  const CollectiveSeconds seconds = host_collective_seconds(4, 0.001, 1e6, 1000);
  CHECK(seconds(Collective::kAllGather, 4000) == Approx(0.001 + 0.003));
  CHECK(seconds(Collective::kReduceScatter, 8000) == Approx(2 * 0.001 + 0.006));
  CHECK(seconds(Collective::kAllReduce, 8000) == Approx(3 * 0.001 + 0.012));
}
