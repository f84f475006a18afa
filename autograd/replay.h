// What a function has to find again when a backward pass runs it a second time.
#pragma once

#include "autograd/autocast.h"
#include "autograd/fp8.h"
#include "autograd/random.h"

namespace weft {

/// The random generator's position, the autocast and the fp8 of the time when it was made.
class Replay {
 public:
  /// f() under them; the generator is left where it was.
  template <class F>
  auto operator()(F&& f) const {
    const ScopedValue same_numbers(generator(), position_);
    const Autocast mode(autocast_);
    const Fp8Scope fp8_scope(fp8_);
    return f();
  }

 private:
  Generator position_ = generator();
  DType autocast_ = autocast_dtype();
  Fp8Scaling* fp8_ = fp8_in_force();
};

}  // namespace weft
