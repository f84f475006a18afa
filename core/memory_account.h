// What memory is for: bytes by purpose, and by the rank that took them.
//
//   MemoryAccount account;                         // counts what its threads allocate from here on
//   const MemoryAccount::Joined joined(account);   // this thread is one of them
//   {
//     const MemoryScope scope(MemoryKind::kParameters);
//     model = make_model(...);                     // blocks allocated here are parameters
//   }
//   account.bytes(MemoryKind::kParameters).peak;
//
// The allocator keeps the account and the kind of each live block; bytes are those that were asked
// for. Without an account nothing is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/scoped_value.h"

namespace weft {

class Tensor;

enum class MemoryKind : uint8_t {
  kActivations,  // and everything else that nobody has named
  kParameters,
  kGradients,
  kOptimizer,
  kGathered,  // parameters of other ranks, at hand for a while
  kBuckets,   // gradients on their way to other ranks
};
inline constexpr int kMemoryKinds = 6;
std::string_view name(MemoryKind kind);

/// What this thread allocates while it lives is of this kind. Scopes nest; the innermost counts.
class MemoryScope : ScopedValue<MemoryKind> {
 public:
  explicit MemoryScope(MemoryKind kind);
};

/// Gives a live block another kind, as when a result turns out to be a gradient. Memory that no
/// account counts, or that is not the allocator's, is passed over.
void assign_memory(const Tensor& tensor, MemoryKind kind);

/// Counts the blocks of the threads that joined it, wherever they are freed. Safe to use from
/// several threads; blocks may outlive it.
class MemoryAccount {
 public:
  struct Bytes {
    int64_t live = 0;
    int64_t peak = 0;  // since reset_peak()
  };
  struct Counts;

  MemoryAccount();
  /// Of one kind.
  Bytes bytes(MemoryKind kind) const;
  /// Of all kinds together; its peak is at most the sum of theirs.
  Bytes total() const;
  /// Of all kinds but activations, together.
  Bytes state() const;
  void reset_peak();

  /// This thread allocates on the account while it lives.
  class Joined : ScopedValue<std::shared_ptr<Counts>> {
   public:
    explicit Joined(const MemoryAccount& account);
  };

 private:
  std::shared_ptr<Counts> counts_;
};

namespace memory {

/// For the allocator: whose and of which kind a block is.
struct Owner {
  std::shared_ptr<MemoryAccount::Counts> counts;  // null: nobody counts
  MemoryKind kind = MemoryKind::kActivations;
};
Owner current_owner();
void allocated(const Owner& owner, size_t bytes);
void freed(const Owner& owner, size_t bytes);

/// For threads that work for another one: what they allocate while it lives is counted for the
/// owner that is current on the thread that starts them.
class WorkingFor : ScopedValue<Owner> {
 public:
  explicit WorkingFor(const Owner& owner);
};

}  // namespace memory
}  // namespace weft
