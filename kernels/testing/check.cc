#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "kernels/testing/emulation.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {
namespace {

std::vector<unsigned char> bits_of(const std::vector<Tensor>& outputs) {
  std::vector<unsigned char> bits;
  for (const Tensor& output : outputs) {
    const size_t size = output.itemsize();
    if (output.is_contiguous()) {
      const auto* first = static_cast<const unsigned char*>(output.raw());
      bits.insert(bits.end(), first, first + output.nbytes());
      continue;
    }
    for_each_offset(output.shape(), output.strides(), [&](int64_t i) {
      const auto* first = static_cast<const unsigned char*>(output.raw()) + i * size;
      bits.insert(bits.end(), first, first + size);
    });
  }
  return bits;
}

/// The outputs' memory, guard words and all, as it was before a run.
class Memory {
 public:
  explicit Memory(const std::vector<Tensor>& outputs) : outputs_(outputs) {
    for (const Tensor& output : outputs) {
      const auto* first = static_cast<const unsigned char*>(output.storage()->data());
      bytes_.emplace_back(first, first + output.storage()->bytes());
    }
  }
  void restore() const {
    for (size_t k = 0; k < outputs_.size(); ++k) {
      std::ranges::copy(bytes_[k], static_cast<unsigned char*>(outputs_[k].storage()->data()));
    }
  }

 private:
  std::vector<Tensor> outputs_;
  std::vector<std::vector<unsigned char>> bytes_;
};

void compare(const std::vector<Tensor>& outputs, const std::vector<Expected>& expected,
             DeviceType device, CheckResult& result) {
  if (outputs.size() != expected.size()) {
    result.failure =
        fmt::format("{} outputs, but the reference has {}", outputs.size(), expected.size());
    return;
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    const std::vector<double> values = outputs[k].to_vector();
    const Expected& want = expected[k];
    const std::vector<double>& bounds =
        device == DeviceType::cpu || want.device_bounds.empty() ? want.bounds : want.device_bounds;
    WEFT_ASSERT(values.size() == want.values.size() && values.size() == bounds.size());
    size_t wrong = 0, worst = 0;
    double worst_excess = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const bool equal =
          values[i] == want.values[i] || (std::isnan(values[i]) && std::isnan(want.values[i]));
      const double error = equal ? 0 : std::abs(values[i] - want.values[i]);
      if (std::isfinite(error)) {
        result.max_error = std::max(result.max_error, error);
        if (error > 0) result.bound_used = std::max(result.bound_used, error / bounds[i]);
      }
      if (error <= bounds[i]) continue;
      ++wrong;
      const double excess = std::isfinite(error) ? error - bounds[i] : INFINITY;
      if (wrong == 1 || excess > worst_excess) {
        worst_excess = excess;
        worst = i;
      }
    }
    if (wrong > 0) {
      result.failure = fmt::format(
          "output {} {}: {} of {} elements out of bounds; worst at {}: got {:.9g}, expected {:.9g} "
          "+- {:.3g}",
          k, describe(outputs[k]), wrong, values.size(), worst, values[worst], want.values[worst],
          bounds[worst]);
      return;
    }
  }
}

}  // namespace

CheckResult check_case(const OpTable& table, const CaseEntry& entry, const std::string& variant,
                       const std::vector<Expected>& expected) {
  CheckResult result;
  const int threads = num_threads();
  std::vector<int> runs = {threads, threads};
  const auto row = std::ranges::find(table.variants, variant, &OpTable::Row::name);
  const DeviceType device = row == table.variants.end() ? DeviceType::cpu : row->device;
  if (device == DeviceType::cpu) {
    runs.insert(runs.end(), {1, 2, 3, 8});
  }
  // Drawing the operands takes longer than the runs: that is done once.
  Inputs in(entry.seed);
  const auto run = entry.make(in);
  const Memory before(in.outputs());
  std::vector<unsigned char> first_bits;
  for (size_t i = 0; i < runs.size(); ++i) {
    const int run_threads = runs[i];
    if (i > 0) before.restore();
    set_num_threads(run_threads);
    use_schedule(static_cast<int>(i));
    Ran ran = Ran::kDoesNotFit;
    try {
      ran = run(variant);
    } catch (const std::exception& error) {
      result.failure = fmt::format("threw: {}", error.what());
    }
    set_num_threads(threads);
    if (!result.failure.empty()) return result;
    if (ran != Ran::kYes) {
      result.ran = ran;
      return result;
    }
    if (!in.guards_are_intact()) {
      result.failure = "wrote outside its outputs";
      return result;
    }
    std::vector<unsigned char> bits = bits_of(in.outputs());
    if (result.ran != Ran::kYes) {
      result.ran = Ran::kYes;
      first_bits = std::move(bits);
      compare(in.outputs(), expected, device, result);
      if (!result.failure.empty()) return result;
    } else if (bits != first_bits) {
      result.failure = fmt::format("other bits with {} threads than with {}", run_threads, threads);
      return result;
    }
  }
  return result;
}

}  // namespace weft::kernels
