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
  const char* theirs;  // in small letters, with _
  const char* ours;
  std::function<void(StrategyOptions&)> implies = [](StrategyOptions&) {};
};

void offloads(StrategyOptions& o) { o.cpu_offload = true; }
void finds_unused(StrategyOptions& o) { o.find_unused = true; }
void shards_gradients(StrategyOptions& o) { o.shard_grad_op = true; }

const std::vector<Alias>& aliases() {
  static const auto& list = *new std::vector<Alias>{
      {"no", "single"},
      {"single_device", "single"},
      {"multi_gpu", "ddp"},
      {"multi_cpu", "ddp"},
      {"ddp_spawn", "ddp"},
      {"ddp_find_unused_parameters_true", "ddp", finds_unused},
      {"ddp_find_unused_parameters_false", "ddp"},
      {"no_shard", "ddp"},
      {"fsdp_cpu_offload", "fsdp", offloads},
      {"full_shard", "fsdp"},
      {"shard_grad_op", "fsdp", shards_gradients},
      {"hybrid_shard", "hsdp"},
      {"megatron_lm", "tp"},
      {"deepspeed", "zero2"},
      {"deepspeed_stage_1", "zero1"},
      {"deepspeed_stage_2", "zero2"},
      {"deepspeed_stage_3", "zero3"},
      {"deepspeed_stage_3_offload", "zero3", offloads},
      {"zero_0", "ddp"},
      {"zero_1", "zero1"},
      {"zero_2", "zero2"},
      {"zero_3", "zero3"},
  };
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
  std::vector<std::string> all = ours;
  for (const Alias& a : aliases()) all.emplace_back(a.theirs);
  WEFT_FAIL("unknown strategy \"{}\"; expected {}{}", options.name, fmt::join(ours, ", "),
            io::did_you_mean(name, all));
}

}  // namespace weft::dist
