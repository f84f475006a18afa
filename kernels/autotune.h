// The fastest variant of an op for a problem, found by measuring: what WEFT_AUTOTUNE=1 asks
// dispatch for instead of the first row that fits.
//
// Each problem is measured once on each device. What won is kept in a file, by the device's name
// and driver version (a CPU's: its threads): $WEFT_AUTOTUNE_CACHE, else weft/autotune.json in
// $XDG_CACHE_HOME or ~/.cache. A file that cannot be read as one of these is left as it is, said
// once, and not used.
//
// Variants round differently, so another winner means other bits (docs/kernel-lab.md). Ops take
// part that have a tuning_key() and a written() (op.h).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace weft::kernels {

/// What there is to choose from.
struct Candidates {
  std::string_view op;
  std::string problem;  // all that the choice depends on, but for the device
  Device device;
  std::vector<std::string_view> variants;  // that fit, best first by the op's list
  std::vector<Tensor> written;             // by a run; put back as they were
  std::function<void(size_t)> run;         // submits that variant's work
};

/// All of an operand that the speed of a variant depends on: "a f32 [8, 16] 16 1; " with its
/// strides and, where its memory is not aligned to 16 bytes, by how much; nothing for an undefined
/// tensor.
std::string operand_key(std::string_view name, const Tensor& operand);

/// Whether variants are chosen by time.
bool autotunes();

/// The index of the variant to run. Measures them when nothing is known of the problem; not while a
/// CUDA graph is captured, and not within a measurement: then the first.
size_t choose_by_time(const Candidates& candidates);

/// Seconds that the device takes for the work that run submits to the current stream: between two
/// events on a GPU, real or emulated, by the clock on a CPU.
double time_run(Device device, const std::function<void()>& run);

/// Turns autotuning on, with that file for a cache (none: empty), for as long as it lives. For
/// tests; of one thread at a time.
class AutotuneScope {
 public:
  explicit AutotuneScope(std::filesystem::path cache);
  ~AutotuneScope();
  AutotuneScope(const AutotuneScope&) = delete;
  AutotuneScope& operator=(const AutotuneScope&) = delete;

 private:
  struct Tuner;
  friend bool autotunes();
  friend size_t choose_by_time(const Candidates& candidates);
  static std::shared_ptr<Tuner>& current();

  std::shared_ptr<Tuner> previous_;
};

}  // namespace weft::kernels
