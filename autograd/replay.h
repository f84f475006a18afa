// What a function has to find again when a backward pass runs it a second time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "autograd/autocast.h"
#include "autograd/fp8.h"
#include "autograd/random.h"

namespace weft {

/// Numbers of this thread that others than autograd have to find again, each by whose it is.
inline std::map<const void*, int64_t>& replayed_numbers() {
  thread_local std::map<const void*, int64_t> instance;
  return instance;
}

/// What this thread's checkpoints call with what they compute again, before its gradients: for who
/// looks over the graph of a model, where a checkpoint hides a part until then. May be empty.
inline std::function<void(const Tensor&)>& recomputed_check() {
  thread_local std::function<void(const Tensor&)> instance;
  return instance;
}

/// The random generator's position, the autocast, the fp8, the replayed_numbers() and the
/// recomputed_check() of the time when it was made.
class Replay {
 public:
  /// f() under them; the generator and the numbers are left as they were.
  template <class F>
  auto operator()(F&& f) const {
    const ScopedValue same_numbers(generator(), position_);
    const Autocast mode(autocast_);
    const Fp8Scope fp8_scope(fp8_);
    const ScopedValue same_others(replayed_numbers(), numbers_);
    const ScopedValue same_check(recomputed_check(), check_);
    return f();
  }

 private:
  Generator position_ = generator();
  DType autocast_ = autocast_dtype();
  std::optional<Fp8Scaling> fp8_ = fp8_in_force();
  std::map<const void*, int64_t> numbers_ = replayed_numbers();
  std::function<void(const Tensor&)> check_ = recomputed_check();
};

}  // namespace weft
