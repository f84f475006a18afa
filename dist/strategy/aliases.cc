#include "dist/strategy/aliases.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "dist/strategy/strategy_kind.h"
#include "io/nearest.h"

namespace weft::dist {
namespace {

struct Alias {
  std::string theirs;  // in small letters, with _
  const char* ours;
  std::function<void(StrategyOptions&)> implies = [](StrategyOptions&) {};
};

void offloads(StrategyOptions& o) { o.cpu_offload = true; }
void offloads_optimizer(StrategyOptions& o) { o.offload_optimizer = true; }
void finds_unused(StrategyOptions& o) { o.find_unused = true; }
void shards_gradients(StrategyOptions& o) { o.shard_grad_op = true; }

const std::vector<Alias>& aliases() {
  static const auto& list = *[] {
    auto* all = new std::vector<Alias>{
        {"no", "single"},
        {"single_device", "single"},
        {"multi_gpu", "ddp"},
        {"multi_cpu", "ddp"},
        {"no_shard", "ddp"},
        {"fsdp_cpu_offload", "fsdp", offloads},
        {"full_shard", "fsdp"},
        {"shard_grad_op", "fsdp", shards_gradients},
        {"hybrid_shard", "hsdp"},
        {"hybrid_shard_zero2", "hsdp", shards_gradients},
        {"megatron_lm", "tp"},
        {"deepspeed", "zero2"},
        {"deepspeed_stage_1", "zero1"},
        {"deepspeed_stage_1_offload", "zero1", offloads_optimizer},
        {"deepspeed_stage_2", "zero2"},
        {"deepspeed_stage_2_offload", "zero2", offloads_optimizer},
        {"deepspeed_stage_3", "zero3"},
        {"deepspeed_stage_3_offload", "zero3", offloads},
        {"zero_0", "ddp"},
        {"zero_1", "zero1"},
        {"zero_2", "zero2"},
        {"zero_3", "zero3"},
    };
    // How processes begin, which is weft launch's part.
    for (const std::string start : {"ddp", "ddp_spawn", "ddp_fork", "ddp_notebook"}) {
      if (start != "ddp") all->push_back({start, "ddp"});
      all->push_back({start + "_find_unused_parameters_true", "ddp", finds_unused});
      all->push_back({start + "_find_unused_parameters_false", "ddp"});
    }
    return all;
  }();
  return list;
}

/// In small letters, with _.
std::string plain(std::string name) {
  for (char& c : name) {
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return name;
}

}  // namespace

std::string state_dict_type_here(const std::string& name) {
  std::string type = plain(name);
  if (type.ends_with("_state_dict")) type.resize(type.size() - std::strlen("_state_dict"));
  WEFT_CHECK(type == "full" || type == "sharded",
             "state-dict-type: expected full or sharded, got \"{}\"", name);
  return type;
}

StrategyOptions named_here(const StrategyOptions& options) {
  const std::string name = plain(options.name);
  StrategyOptions result = options;
  result.name = name;
  const std::vector<std::string> ours = strategy_names();
  if (name == "auto" || std::ranges::find(ours, name) != ours.end()) return result;
  const auto alias = std::ranges::find(aliases(), name, &Alias::theirs);
  if (alias != aliases().end()) {
    result.name = alias->ours;
    alias->implies(result);
    return result;
  }
  WEFT_CHECK(name != "deepspeed_stage_3_offload_nvme",
             "strategy \"{}\": there is no offloading to NVMe; expected deepspeed_stage_3_offload, "
             "to the CPU's memory",
             options.name);
  std::vector<std::string> all = ours;
  for (const Alias& a : aliases()) all.emplace_back(a.theirs);
  WEFT_FAIL("unknown strategy \"{}\"; expected {}{}", options.name, fmt::join(ours, ", "),
            io::did_you_mean(name, all));
}

}  // namespace weft::dist
