#include "dist/comm/processes/slurm.h"

#include <algorithm>
#include <initializer_list>
#include <sstream>

#include "core/error.h"

namespace weft::dist {
namespace {

/// The first of these that is set; null: none is.
const char* set_one(std::initializer_list<const char*> names) {
  const auto found = std::ranges::find_if(names, variable);
  return found == names.end() ? nullptr : *found;
}

const char* tasks_variable() { return set_one({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}); }

long long number_of(const char* name) {
  const char* const text = variable(name);
  return text ? std::atoll(text) : 0;
}

}  // namespace

bool is_slurm_rank() {
  constexpr long long kFirstWithoutTasks = 0xfffffff0;  // Slurm's SLURM_MAX_NORMAL_STEP_ID
  return variable("SLURM_PROCID") && variable("SLURM_STEP_ID") &&
         number_of("SLURM_STEP_ID") < kFirstWithoutTasks && tasks_variable() &&
         number_of(tasks_variable()) > 1;
}

RankPlace slurm_place() {
  RankPlace place;
  place.size = variable_number(tasks_variable(), 2, kMostRanks);
  place.rank = variable_number("SLURM_PROCID", 0, place.size - 1);
  if (const std::optional<int> local_size = slurm_local_size()) {
    place.local_size = *local_size;
  } else {
    const char* const nodes = set_one({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"});
    WEFT_CHECK(!nodes || number_of(nodes) == 1,
               "SLURM_PROCID is set, but SLURM_STEP_TASKS_PER_NODE is not");
    place.local_size = place.size;
  }
  place.local_rank = variable_number("SLURM_LOCALID", 0, place.local_size - 1);
  return place;
}

std::optional<int> slurm_local_size() {
  const char* name = "SLURM_STEP_TASKS_PER_NODE";
  if (!variable(name)) {
    name = "SLURM_TASKS_PER_NODE";
    if (!is_slurm_rank() || !variable(name)) return {};
  }
  const std::vector<int> counts = parse_tasks_per_node(variable(name));
  const int nodes = static_cast<int>(counts.size());
  return counts[nodes == 1 ? 0 : variable_number("SLURM_NODEID", 0, nodes - 1)];
}

std::string slurm_first_host() {
  const char* const name = set_one({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
  return name ? first_of_hosts(variable(name)) : "";
}

int slurm_port() {
  // Below those that Linux gives to connections. Neighbouring jobs and steps are far apart.
  constexpr long long kFirst = 15000, kCount = 15000, kStepsApart = 7919;
  const long long step = number_of("SLURM_JOB_ID") + kStepsApart * number_of("SLURM_STEP_ID");
  return static_cast<int>(kFirst + step % kCount);
}

std::vector<int> parse_tasks_per_node(const std::string& text) {
  std::vector<int> counts;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int tasks = 0, nodes = 1;
    size_t end = 0;
    std::sscanf(part.c_str(), "%6d%zn(x%6d)%zn", &tasks, &end, &nodes, &end);
    WEFT_CHECK(end == part.size() && tasks > 0 && nodes > 0,
               "Slurm's tasks per node: expected counts as in \"2(x3),1\", got \"{}\"", text);
    counts.insert(counts.end(), nodes, tasks);
  }
  WEFT_CHECK(!counts.empty(), "Slurm's tasks per node: expected counts, got none");
  return counts;
}

std::string first_of_hosts(const std::string& list) {
  std::string host;
  bool is_inside = false, is_taken = false;  // brackets, of which the first number is taken
  for (const char c : list) {
    if (c == ',' && !is_inside) break;
    if (c == '[' || c == ']') {
      is_inside = c == '[';
      is_taken = false;
      continue;
    }
    is_taken = is_taken || (is_inside && (c == ',' || c == '-'));
    if (!is_taken) host += c;
  }
  return host;
}

}  // namespace weft::dist
