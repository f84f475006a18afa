// Strategies on NCCL's own sums, of its stand-in (dist/comm/device/testing/nccl_stand_in.h), beside
// the exact ones: the same training but for roundings, and fewer launches.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "dist/comm/device/nccl.h"
#include "dist/comm/device/testing/nccl_stand_in.h"
#include "dist/strategy/testing/oracle_training.h"
#include "kernels/testing/emulation.h"

using namespace weft;
using namespace weft::dist;

namespace {

struct Case {
  StrategyOptions options;
  int ranks;
};

MakeStrategy maker(const Case& c) {
  return [c](const CommunicatorPtr& world) { return make_strategy(c.options, world); };
}

OracleSetting on_nccl(Collectives collectives, int steps) {
  return {.is_transformer = true,
          .rows = 4,
          .steps = steps,
          .on_device = true,
          .communicator = [collectives](const CommunicatorPtr& host, Device device) {
            return make_nccl_communicator(host, device,
                                          {.collectives = collectives, .api = &nccl_stand_in()});
          }};
}

/// Of a rank in a step, on average: NCCL's launches, the bytes that went to others, and calls on
/// memory that is not registered.
struct PerStep {
  double launches, sent, unregistered;
};
PerStep count(const Case& c, Collectives collectives) {
  // The second step: DDP's buckets and FSDP's order of units are settled after the first.
  const auto total = [&](int steps) {
    reset_nccl_stand_in_counts();
    train_oracle_ranks(on_nccl(collectives, steps), maker(c), c.ranks);
    return nccl_stand_in_counts();
  };
  const NcclCounts one = total(1), two = total(2);
  const auto of_rank = [&](int64_t NcclCounts::*field) {
    return static_cast<double>(two.*field - one.*field) / c.ranks;
  };
  return {of_rank(&NcclCounts::launches), of_rank(&NcclCounts::sent),
          of_rank(&NcclCounts::unregistered)};
}

std::string docs() {
  std::ifstream file("docs/sharding.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("every strategy on NCCL's sums equals one rank in f64") {
  kernels::watch_accesses(false);
  const OracleSetting setting = on_nccl(Collectives::kNccl, 2);
  const OracleResult one = train_oracle_alone(setting);
  for (const Case& c : std::vector<Case>{{{.name = "ddp"}, 3},
                                         {{.name = "zero2"}, 2},
                                         {{.name = "fsdp"}, 3},
                                         {{.name = "hsdp"}, 4},
                                         {{.name = "tp"}, 2},
                                         {{.name = "fsdp+tp"}, 4},
                                         {{.name = "pipeline"}, 3}}) {
    INFO(c.options.name << " on " << c.ranks);
    const OracleResult many = train_oracle_ranks(setting, maker(c), c.ranks)[0];
    CHECK(difference(many.parameters, one.parameters) < 1e-10);
    for (int step = 0; step < setting.steps; ++step) {
      CHECK(std::abs(many.losses[step] - one.losses[step]) < 1e-10);
      CHECK(std::abs(many.norms[step] - one.norms[step]) < 1e-10);
    }
  }
}

TEST_CASE("DDP's buckets and FSDP's units are memory that NCCL registered") {
  kernels::watch_accesses(false);
  for (const Case& c :
       std::vector<Case>{{{.name = "ddp"}, 2}, {{.name = "zero2"}, 2}, {{.name = "fsdp"}, 2}}) {
    INFO(c.options.name);
    CHECK(count(c, Collectives::kNccl).unregistered == 0);
    CHECK(nccl_stand_in_counts().registered == 0);  // the communicators have gone
  }
}

TEST_CASE("launches and bytes of a step are those of docs/sharding.md") {
  kernels::watch_accesses(false);
  const std::string text = docs();
  for (const Case& c : std::vector<Case>{{{.name = "ddp"}, 4},
                                         {{.name = "zero2"}, 4},
                                         {{.name = "fsdp"}, 4},
                                         {{.name = "hsdp"}, 4},
                                         {{.name = "tp"}, 4},
                                         {{.name = "fsdp+tp"}, 4},
                                         {{.name = "pipeline"}, 4}}) {
    const PerStep nccl = count(c, Collectives::kNccl), exact = count(c, Collectives::kExact);
    const std::string row = fmt::format("| `{}` | {:g} | {:g} | {:g} | {:g} |", c.options.name,
                                        nccl.launches, nccl.sent, exact.launches, exact.sent);
    INFO("expected in docs/sharding.md: " << row);
    CHECK(text.find(row) != std::string::npos);
  }
}
