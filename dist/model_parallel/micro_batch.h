// What a step consists of: passes forward and back whose gradients add up, and the order in which
// a pipeline's stages take them (pipeline.h says what each keeps).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace weft::dist {

struct MicroBatch {
  Tensor input;
  /// What is to be differentiated of the model's output on it: weighted, scaled.
  std::function<Tensor(const Tensor& output)> loss;
};

/// A step's micro-batches; number i is asked for once, just before its forward, in order. It may
/// set this thread's generator() to where the forward is to draw from.
struct MicroBatches {
  int64_t count = 0;
  std::function<MicroBatch(int64_t i)> at;
  /// True: gradients stay on their rank until the last backward, and add up. False: they are
  /// reduced after each, and after_each() takes them away.
  bool accumulates = true;
  std::function<void()> after_each;
};

/// kUsual, where nobody has said: 1F1B, but a plain loop's GPipe is no error.
enum class Schedule : uint8_t { kUsual, kGpipe, k1F1B };

/// "gpipe", "1f1b", also of kUsual; the other way round throws Error for an unknown name.
std::string_view name(Schedule schedule);
Schedule parse_schedule(const std::string& name);

}  // namespace weft::dist
