#include "optim/registry.h"

#include <fmt/ranges.h>

#include "io/nearest.h"

namespace weft::optim {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Optimizer> (*make)(const ParameterGroups& groups);
};

constexpr Entry kEntries[] = {
#define WEFT_OPTIMIZER(name) {#name, make_##name},
#include "optim/optimizers.inc"
#undef WEFT_OPTIMIZER
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, ParameterGroups groups,
                                          const Options& options) {
  for (ParameterGroup& group : groups) group.options.insert(options.begin(), options.end());
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.make(groups);
  }
  const std::vector<std::string> known = optimizer_names();
  WEFT_FAIL("unknown optimizer \"{}\"; known are {}{}", name, fmt::join(known, ", "),
            io::did_you_mean(name, known));
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

Options optimizer_options(const std::string& name) {
  return make_optimizer(name, Tensors())->defaults();
}

int64_t state_tensors(const std::string& name, const Options& options) {
  return make_optimizer(name, Tensors(), options)->state_tensors();
}

}  // namespace weft::optim
