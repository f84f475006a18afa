// What the strategies' rows say of memory, traffic and time.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <sstream>

#include "dist/strategy/strategy_kind.h"
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
         static_cast<double>(find_strategy(strategy)
                                 .state_bytes(layout(750'000, 10'000), sharing_of(strategy, ranks))
                                 .total());
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
  CHECK(find_strategy("ddp").sent_bytes(model, sharing_of("ddp", 4)) == 2 * 3 * 4000 / 4 * 4);
  for (const char* narrow : {"bf16", "fp16"}) {
    const Sharing half = sharing_of({.name = "ddp", .compress_dtype = narrow}, 4);
    CHECK(find_strategy("ddp").sent_bytes(model, half) == 2 * 3 * 4000 / 4 * 2);
  }
  CHECK(find_strategy("zero2").sent_bytes(model, sharing_of("zero2", 4)) == 2 * 3 * 4000 / 4 * 4);
  // Four units forward, two of them again: the last two are still there.
  CHECK(unshard_order(model) == std::vector<int>{0, 1, 2, 3, 1, 0});
  CHECK(find_strategy("fsdp").sent_bytes(model, sharing_of("fsdp", 4)) == (6 + 4) * 3 * 250 * 4);
  // Three ranks pad each unit to 1002.
  CHECK(find_strategy("zero1").sent_bytes(model, sharing_of("zero1", 3)) == 2 * 4 * 2 * 334 * 4);
  // Inside of two groups of two, and across them.
  CHECK(find_strategy("hsdp").sent_bytes(model, sharing_of("hsdp", 4)) ==
        ((6 + 4) * 500 + 4 * 500) * 4);
  CHECK(find_strategy("single").sent_bytes(model, {}) == 0);
}

TEST_CASE("weights of products travel in 16 bits, each rank's part of them") {
  // Four units of 600 such elements and 400 others, in parts of 250: two narrow ones, one of 100
  // and 150, one wide.
  ModelLayout model = layout(1000, 4);
  model.unit_products.assign(4, 600);
  const StrategyOptions bf16{.name = "fsdp", .product_dtype = "bf16"};
  const std::vector<int64_t> gathered = {500, 500, 200 + 600, 1000};
  for (int rank = 0; rank < 4; ++rank) {
    const auto sent = [&](StrategyOptions options) {
      return find_strategy(options.name).sent_bytes(model, sharing_of(options, 4), {.rank = rank});
    };
    const int64_t reduced = 4 * 3 * 250 * 4;
    CHECK(sent(bf16) == 6 * 3 * gathered[rank] + reduced);
    CHECK(sent({.name = "zero2", .product_dtype = "bf16"}) == 4 * 3 * gathered[rank] + reduced);
    // Whole parameters narrow, or none; gradients narrow.
    CHECK(sent({.name = "fsdp", .param_dtype = "bf16", .product_dtype = "bf16"}) ==
          6 * 3 * 250 * 2 + reduced);
    CHECK(sent({.name = "fsdp", .param_dtype = "fp32", .product_dtype = "bf16"}) ==
          6 * 3 * 250 * 4 + reduced);
    CHECK(sent({.name = "fsdp", .reduce_dtype = "bf16", .product_dtype = "bf16"}) ==
          6 * 3 * gathered[rank] + reduced / 2);
  }
  // A model of weights alone: half.
  model.unit_products.assign(4, 1000);
  const StrategyKind& fsdp = find_strategy("fsdp");
  const auto unsharding = [&](const StrategyOptions& options) {
    return fsdp.sent_bytes(model, sharing_of(options, 4)) - 4 * 3 * 250 * 4;
  };
  CHECK(2 * unsharding(bf16) == unsharding({.name = "fsdp"}));
  CHECK(fsdp.state_bytes(model, sharing_of(bf16, 4)).total() <
        fsdp.state_bytes(model, sharing_of("fsdp", 4)).total());
  // zero2's part no longer lies in the whole, which is gathered.
  const StateBytes zero2 = find_strategy("zero2").state_bytes(
      model, sharing_of({.name = "zero2", .product_dtype = "bf16"}, 4));
  CHECK(zero2[MemoryKind::kParameters] == 1000 * 4);
  CHECK(zero2[MemoryKind::kGathered] == 4000 * 4 + 2 * (2000 + 500));
}

TEST_CASE("traffic of copies whose parts the ranks do not divide is that of each rank") {
  // Parts of 501 elements, reduced among two ranks as 251 and 250.
  const ModelLayout model = layout(1002, 1);
  const Sharing sharing = sharing_of("hsdp", 4);
  // One unit, unsharded once.
  const int64_t inside = 2 * 501;
  CHECK(find_strategy("hsdp").sent_bytes(model, sharing, {.rank = 0}) == 4 * (inside + 250 + 251));
  CHECK(sharing.replica_index(0) == 0);
  CHECK(sharing.replica_index(2) == 1);
  CHECK(find_strategy("hsdp").sent_bytes(model, sharing, {.rank = 2}) == 4 * (inside + 251 + 250));
  const ModelLayout odd = layout(7, 1);
  // Three copies of one part: 3, 3 and 1 elements.
  const Sharing three{.shard = 1, .replicas = 3};
  CHECK(find_strategy("hsdp").sent_bytes(odd, three, {.rank = 0}) == 4 * (3 + 1 + 2 * 3));
  CHECK(find_strategy("hsdp").sent_bytes(odd, three, {.rank = 2}) == 4 * (3 + 3 + 2 * 1));
}

TEST_CASE("tensor parallelism sends activations, on dealt-out tokens padded ones") {
  ModelLayout model = layout(1000, 2);
  model.cut_layers = 4, model.tokens = 5, model.width = 12;
  const StepShape step{.images = 6};
  const int64_t all = 6 * 5 * 12;
  const Sharing plain = sharing_of("tp", 4);
  CHECK(plain.tensor == 4);
  CHECK(find_strategy("tp").sent_bytes(model, plain, step) == 4 * 2 * 4 * (2 * 3 * all / 4));
  // Products' dtype is what travels.
  const Sharing narrow = sharing_of({.name = "tp", .product_dtype = "bf16"}, 4);
  CHECK(2 * find_strategy("tp").sent_bytes(model, narrow, step) ==
        find_strategy("tp").sent_bytes(model, plain, step));
  // Two tokens on each of four ranks, and two norms of 12 elements to be summed.
  const Sharing dealt = sharing_of({.name = "tp", .sequence_parallel = true}, 4);
  model.summed = {12, 12};
  CHECK(find_strategy("tp").sent_bytes(model, dealt, step) ==
        4 * ((5 * 4 + 2) * 3 * 6 * 2 * 12 + 2 * (2 * 3 * 12 / 4)));
  const Sharing head = sharing_of({.name = "tp", .parallel_head = true}, 4);
  model.head_width = 12;
  CHECK(find_strategy("tp").sent_bytes(model, head, step) -
            find_strategy("tp").sent_bytes(model, plain, step) ==
        4 * (2 * 3 * 6 * 12 / 4 + (6 - 2 + 3 * 2) + 2 * 3 * 12 / 4));
  // Inside of copies the buckets come on top, inside of shards the units.
  const Sharing copies = sharing_of({.name = "tp", .tensor_parallel = 2}, 4);
  CHECK(copies.replicas == 2);
  CHECK(find_strategy("tp").sent_bytes(model, copies, step) == 4 * (8 * all + 2 * 2000 / 2));
  const Sharing shards = sharing_of("fsdp+tp", 4);
  CHECK(shards.shard == 2);
  CHECK(find_strategy("fsdp+tp").sent_bytes(model, shards, step) -
            find_strategy("fsdp").sent_bytes(model, {.shard = 2}) ==
        4 * 8 * all);
}

TEST_CASE("a pipeline's stages send activations, gradients and what announces them") {
  ModelLayout first = layout(100, 2), last = layout(100, 1);
  first.given = last.taken = 60;
  const Sharing sharing = sharing_of({.name = "pipeline", .micro_batches = 3}, 2);
  CHECK(find_strategy("pipeline").sent_bytes(first, sharing, {.rank = 0, .images = 6}) ==
        4 * 6 * 60 + 3 * 13 * 8);
  CHECK(find_strategy("pipeline").sent_bytes(last, sharing, {.rank = 1, .images = 6}) ==
        4 * 6 * 60 + 8);
  const Sharing copies = sharing_of({.name = "pipeline", .pipeline_stages = 2}, 4);
  CHECK(copies.replicas == 2);
  CHECK(copies.micro_batches == 4);
  CHECK(find_strategy("pipeline").sent_bytes(last, copies, {.rank = 3, .images = 6}) ==
        4 * 6 * 60 + 8 + 4 * 100);
  CHECK(find_strategy("pipeline").state_bytes(first, copies).total() == 16 * 200);
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
  nn::ModelStructure structure(nn::wrap_modules<Block>());
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
  // Without biases and norms.
  CHECK(mine.unit_products == std::vector<int64_t>{(3 * 8 * 8 + 8 * 8 + 2 * 12 * 8) / 2});
  CHECK(mine.root_products == 8 * 5);
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

TEST_CASE("of replicas as threads the first keeps what one device alone keeps") {
  const ModelLayout model = layout(1000, 4);
  const Sharing sharing = sharing_of("dp", 3);
  CHECK(sharing.ranks() == 1);
  CHECK(find_strategy("dp").state_bytes(model, sharing).total() == 16 * 4000);
  CHECK(find_strategy("dp").sent_bytes(model, sharing) == 0);
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
  const StepShape buckets{.buckets = {.bytes = 4000, .first = 4000}};
  // ddp: one bucket per unit; the last one's reduction is seen.
  const Timeline ddp =
      find_strategy("ddp").timeline({{model, work}}, sharing_of("ddp", 2), fast, buckets);
  CHECK(ddp.computation == 12);
  CHECK(ddp.communication == 2);
  CHECK(ddp.end == Approx(12.5));
  CHECK(ddp.hidden_share(12.5) == Approx(1));
  CHECK(ddp.hidden_share(14) == Approx(0));
  // Compressed, a bucket is half as long on its way.
  const GroupSeconds by_bytes{.replicate = [](Collective, double bytes) { return bytes / 8000; }};
  const auto reducing = [&](const Sharing& sharing) {
    return find_strategy("ddp").timeline({{model, work}}, sharing, by_bytes, buckets).communication;
  };
  CHECK(reducing(sharing_of("ddp", 2)) == Approx(2));
  CHECK(reducing(sharing_of({.name = "ddp", .compress_dtype = "bf16"}, 2)) == Approx(1));
  // fsdp: the first unsharding and the last reduction are seen.
  const Timeline fsdp =
      find_strategy("fsdp").timeline({{model, work}}, sharing_of("fsdp", 2), fast);
  CHECK(fsdp.communication == Approx(6 * 0.5 + 4 * 0.5));
  CHECK(fsdp.end == Approx(13));
  // A network slower than the computation: it is what the step waits for.
  const GroupSeconds slow{constant(3), constant(3)};
  CHECK(find_strategy("ddp").timeline({{model, work}}, sharing_of("ddp", 2), slow, buckets).end ==
        Approx(4 + 2 + 4 * 3));
  // zero1 reduces behind backward, and unshards behind the optimizer: nothing is hidden.
  const Timeline zero1 =
      find_strategy("zero1").timeline({{model, work}}, sharing_of("zero1", 2), fast);
  CHECK(zero1.end == Approx(zero1.serial()));
  CHECK(zero1.hidden_share(zero1.end) == 1);
  std::set<std::string> lanes;
  for (const Timeline::Span& span : fsdp.spans) lanes.insert(span.lane);
  CHECK(fsdp.spans.size() == 8 + 10);
  CHECK(lanes == std::set<std::string>{"computation", "reduce", "unshard"});
  CHECK_THROWS_WITH(find_strategy("fastest"), Contains("unknown strategy \"fastest\""));
}

TEST_CASE("a cut layer waits for its sums, but not for what travels beside a weight's gradient") {
  ModelLayout model = layout(1000, 4);
  model.cut_layers = 8, model.tokens = 4, model.width = 10;
  const StepWork work{.units = std::vector<StepWork::Pass>(4, {6, 12})};
  GroupSeconds seconds;
  seconds.tensor = [](Collective, double bytes) { return bytes / 320; };  // 0.5 s of 4 x 10 floats
  const Timeline plain =
      find_strategy("tp").timeline({{model, work}}, sharing_of("tp", 2), seconds);
  CHECK(plain.computation == Approx(72));
  CHECK(plain.communication == Approx(4 * 2 * 2 * 0.5));
  // Two sums of half a second wait in each unit's forward; those of backward travel beside 7/24 of
  // 12 s.
  CHECK(plain.end == Approx(72 + 4 * 1));
  const Sharing dealt = sharing_of({.name = "tp", .sequence_parallel = true}, 2);
  // Two collectives forward, and in backward the one of what was scattered.
  CHECK(find_strategy("tp").timeline({{model, work}}, dealt, seconds).end == Approx(72 + 4 * 3));
}

TEST_CASE("a pipeline waits for what fills and empties it") {
  ModelLayout stage;
  stage.parameters = 10, stage.given = 100;
  const std::vector<RankWork> stages(3, {stage, {.before = {1, 2}}});
  GroupSeconds seconds;
  seconds.message = [](double) { return 0.0; };
  const StrategyKind& pipeline = find_strategy("pipeline");
  for (Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
    const Sharing three =
        sharing_of({.name = "pipeline", .schedule = schedule, .micro_batches = 6}, 3);
    const Timeline timeline = pipeline.timeline(stages, three, seconds);
    CHECK(timeline.computation == 18);
    CHECK(timeline.end == Approx((6 + 3 - 1) * 3));
    CHECK(timeline.spans.size() == 2 * 3 * 6);
  }
  // Alone nothing waits; with copies a sum follows.
  const Sharing copies{.replicas = 2, .stages = 1, .micro_batches = 6};
  seconds.replicate = [](Collective, double bytes) { return bytes; };
  CHECK(pipeline.timeline({stages[0]}, copies, seconds).end == Approx(18 + 40));
  // Slow links stretch what fills and empties it: header and activation there, a gradient back.
  seconds.message = [](double) { return 0.25; };
  const Sharing two =
      sharing_of({.name = "pipeline", .schedule = Schedule::kGpipe, .micro_batches = 1}, 2);
  CHECK(pipeline.timeline({stages[0], stages[1]}, two, seconds).end == Approx(6 + 3 * 0.25));
  // A micro-batch's activation: half of six images' in elements of four bytes.
  seconds.message = [](double bytes) { return bytes == 3 * 100 * 4 ? 5.0 : 0.0; };
  const Sharing halves = sharing_of({.name = "pipeline", .micro_batches = 2}, 2);
  CHECK(pipeline.timeline({stages[0], stages[1]}, halves, seconds, {.images = 6}).communication ==
        Approx(2 * 5));
}

TEST_CASE("collectives on hosts take their exchanges and their bytes") {
  const CollectiveSeconds seconds = host_collective_seconds(4, 0.001, 1e6, 1000);
  CHECK(seconds(Collective::kAllGather, 4000) == Approx(0.001 + 0.003));
  CHECK(seconds(Collective::kReduceScatter, 8000) == Approx(2 * 0.001 + 0.006));
  CHECK(seconds(Collective::kAllReduce, 8000) == Approx(3 * 0.001 + 0.012));
}

TEST_CASE("the table of docs/sharding.md is that of the rows") {
  std::stringstream text;
  text << std::ifstream("docs/sharding.md").rdbuf();
  std::string table = "| strategy | each rank keeps | and sends in a step |\n|---|---|---|\n";
  for (const auto& kind : strategies()) {
    table += fmt::format("| `{}` | {} | {} |\n", kind->name, kind->state_formula(),
                         kind->sent_formula());
  }
  CHECK_THAT(text.str(), Contains(table));
}
