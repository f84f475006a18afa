#include "cli/step/step_bytes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "cli/step/outermost_ops.h"
#include "kernels/rehearsal/rehearsal.h"

namespace weft::cli {
namespace {

using kernels::Operand;

struct Kernel {
  std::string op;
  std::vector<Operand> operands;

  int64_t moved() const {
    int64_t bytes = 0;
    for (const Operand& operand : operands) bytes += operand.moved();
    return bytes;
  }
};

/// The kernels that one op launched, one pass of it: as `weft profile` tells them apart.
struct Window {
  std::string phase, op;
  size_t begin = 0, end = 0;  // of the recorder's kernels
};

/// The kernels of a step that is rehearsed while it lives.
class Recorder : public OutermostOps {
 public:
  Recorder() { set_op_hook(this); }
  ~Recorder() override { set_op_hook(nullptr); }

  void launched(std::string_view op, const std::vector<Operand>& operands) {
    if (!phase_.empty()) kernels_.push_back({std::string(op), operands});
  }
  /// From the first phase on there is something to record.
  void enter(const char* phase) {
    claim("");
    phase_ = phase;
  }
  /// Without an op each kernel is for itself.
  void claim(std::string_view op) override {
    while (claimed_ < kernels_.size()) {
      const size_t end = op.empty() ? claimed_ + 1 : kernels_.size();
      windows_.push_back(
          {phase_, op.empty() ? kernels_[claimed_].op : std::string(op), claimed_, end});
      claimed_ = end;
    }
  }

  const std::vector<Kernel>& kernels() const { return kernels_; }
  const std::vector<Window>& windows() const { return windows_; }

 private:
  std::vector<Kernel> kernels_;
  std::vector<Window> windows_;
  std::string phase_;
  size_t claimed_ = 0;
};

/// A part of a storage.
struct Region {
  std::weak_ptr<Storage> storage;
  int64_t offset, bytes;

  bool operator<(const Region& other) const {
    const std::owner_less<> before;
    if (before(storage, other.storage)) return true;
    if (before(other.storage, storage)) return false;
    return std::tie(offset, bytes) < std::tie(other.offset, other.bytes);
  }
};
Region region_of(const Operand& operand) {
  return {operand.storage, operand.offset, operand.bytes};
}

bool is_product(const std::string& op) {
  return op == "gemm" || op == "attention" || op == "conv2d";
}

}  // namespace

StepBytes count_bytes(const StepOptions& options) {
  Recorder recorder;
  const kernels::Rehearsal rehearsal(
      [&](std::string_view op, const std::vector<Operand>& operands) {
        recorder.launched(op, operands);
      });
  TrainingStep step(options);
  step.run();  // gradients and the optimizer's state are there from now on
  step.run([&](const char* phase) { recorder.enter(phase); });
  recorder.claim("");
  const std::vector<Kernel>& kernels = recorder.kernels();

  // Windows that a storage was seen in: the first, and whether there are others.
  std::map<std::weak_ptr<Storage>, std::pair<size_t, bool>, std::owner_less<>> seen;
  for (size_t w = 0; w < recorder.windows().size(); ++w) {
    for (size_t i = recorder.windows()[w].begin; i < recorder.windows()[w].end; ++i) {
      for (const Operand& operand : kernels[i].operands) {
        auto& [first, in_others] = seen.try_emplace(operand.storage, w, false).first->second;
        in_others = in_others || first != w;
      }
    }
  }

  StepBytes result;
  std::map<std::pair<std::string, std::string>, OpBytes> sums;
  for (const Window& window : recorder.windows()) {
    OpBytes& sum = sums[{window.phase, window.op}];
    sum.phase = window.phase, sum.op = window.op;
    ++sum.calls;
    std::set<Region> at_products;
    for (size_t i = window.begin; i < window.end; ++i) {
      const int64_t moved = kernels[i].moved();
      ++sum.kernels;
      sum.moved += moved;
      if (is_product(kernels[i].op)) {
        sum.least += moved;
        for (const Operand& operand : kernels[i].operands) at_products.insert(region_of(operand));
      } else if (window.phase != "update") {
        result.beside_products += moved;
      }
    }
    // Of a region that is read and written, both count.
    std::map<Region, int64_t> least;
    for (size_t i = window.begin; i < window.end; ++i) {
      std::map<Region, int64_t> of_kernel;
      for (const Operand& operand : kernels[i].operands) {
        const bool is_its_own = operand.storage.expired() && !seen.at(operand.storage).second;
        const Region region = region_of(operand);
        if (!is_its_own && !at_products.contains(region)) of_kernel[region] += operand.moved();
      }
      for (const auto& [region, bytes] : of_kernel) {
        least[region] = std::max(least[region], bytes);
      }
    }
    for (const auto& [region, bytes] : least) sum.least += bytes;
  }
  for (auto& [key, sum] : sums) {
    result.kernels += sum.kernels;
    result.moved += sum.moved;
    result.least += sum.least;
    result.ops.push_back(std::move(sum));
  }
  std::ranges::stable_sort(result.ops, std::ranges::greater(), &OpBytes::moved);
  return result;
}

}  // namespace weft::cli
