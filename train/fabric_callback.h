// What a program gives a loop to call: those of Fabric::call() and of a Trainer.
//
//   struct Stopwatch : train::FabricCallback {
//     void on_epoch_end(int64_t epoch) { ... }
//   };
//   fabric.call(&Stopwatch::on_epoch_end, epoch);
#pragma once

#include <memory>
#include <vector>

namespace weft::train {

/// A class of the program's own, with functions of its own.
struct FabricCallback {
  virtual ~FabricCallback() = default;
};

/// Calls a function of those callbacks that have it, in their order.
template <class Base, class Callback, class... Parameters, class... Arguments>
void call_hook(const std::vector<std::shared_ptr<Base>>& callbacks,
               void (Callback::*hook)(Parameters...), Arguments&&... arguments) {
  for (const auto& callback : callbacks) {
    if (auto* const own = dynamic_cast<Callback*>(callback.get())) (own->*hook)(arguments...);
  }
}

}  // namespace weft::train
