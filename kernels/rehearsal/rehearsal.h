// Steps without their arithmetic: what a program allocates and asks for, at its real size, on any
// machine and in no time.
//
//   MemoryAccount account;
//   const kernels::Rehearsal rehearsal;   // from here on no kernel computes
//   step.run();                           // allocates and frees as ever
//   account.total().peak;
//
// While one lives, each op has one variant on the CPU, which takes every problem, touches its
// tensors and leaves them as they are. Pages that nobody writes take no memory, so a model may be
// larger than the machine. Results are garbage, but for those that programs read and decide by:
// norms, flags of infinity and other scalars are 0.
//
// What a kernel would have moved is told to who asks: its operands, each element once.
//
//   const kernels::Rehearsal rehearsal([&](std::string_view op, const auto& operands) { ... });
//
// What the CPU's variants of products and convolutions take for themselves is taken, too: partial
// sums, oneDNN's layouts and scratchpads, and the wide operands of formats that the CPU lacks, none
// of which a GPU has. Of the threads that share a loop it is the caller's part, as in an account.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace weft::kernels {

class ForcedVariant;

/// A tensor of a kernel's problem. One that is updated in place is read and written.
struct Operand {
  std::weak_ptr<Storage> storage;
  int64_t offset = 0;  // elements from the storage's beginning
  int64_t bytes = 0;   // of its elements, those that repeat counted once
  bool is_updated = false;

  int64_t moved() const { return is_updated ? 2 * bytes : bytes; }
};

/// In all threads of the program. One at a time.
class Rehearsal {
 public:
  /// Called in the kernels' own threads.
  using OnKernel = std::function<void(std::string_view op, const std::vector<Operand>& operands)>;

  explicit Rehearsal(OnKernel on_kernel = {});
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

 private:
  const OnKernel on_kernel_;
  std::vector<std::unique_ptr<ForcedVariant>> forced_;  // whatever WEFT_VARIANT says
};

}  // namespace weft::kernels
