#include "core/memory_account.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "core/allocator.h"
#include "core/tensor.h"

namespace weft {

struct MemoryAccount::Counts {
  std::mutex mutex;
  std::array<Bytes, kMemoryKinds> kinds;
  Bytes total, state;

  void add(MemoryKind kind, int64_t bytes) {
    const auto count = [bytes](Bytes& b) {
      b.live += bytes;
      b.peak = std::max(b.peak, b.live);
    };
    std::lock_guard lock(mutex);
    count(kinds[static_cast<int>(kind)]);
    count(total);
    if (kind != MemoryKind::kActivations) count(state);
  }
  Bytes read(const Bytes& bytes) {
    std::lock_guard lock(mutex);
    return bytes;
  }
};

namespace {

thread_local memory::Owner current;

}  // namespace

std::string_view name(MemoryKind kind) {
  constexpr std::string_view kNames[kMemoryKinds] = {"activations", "parameters", "gradients",
                                                     "optimizer",   "gathered",   "buckets"};
  return kNames[static_cast<int>(kind)];
}

MemoryScope::MemoryScope(MemoryKind kind) : ScopedValue(current.kind, kind) {}

void assign_memory(const Tensor& tensor, MemoryKind kind) {
  if (!current.counts || !tensor.defined() || !tensor.storage()->is_resident()) return;
  allocator(tensor.device()).assign(tensor.storage()->data(), kind);
}

MemoryAccount::MemoryAccount() : counts_(std::make_shared<Counts>()) {}

MemoryAccount::Bytes MemoryAccount::bytes(MemoryKind kind) const {
  return counts_->read(counts_->kinds[static_cast<int>(kind)]);
}
MemoryAccount::Bytes MemoryAccount::total() const { return counts_->read(counts_->total); }
MemoryAccount::Bytes MemoryAccount::state() const { return counts_->read(counts_->state); }

void MemoryAccount::reset_peak() {
  std::lock_guard lock(counts_->mutex);
  for (Bytes& bytes : counts_->kinds) bytes.peak = bytes.live;
  counts_->total.peak = counts_->total.live;
  counts_->state.peak = counts_->state.live;
}

MemoryAccount::Joined::Joined(const MemoryAccount& account)
    : ScopedValue(current.counts, account.counts_) {}

namespace memory {

Owner current_owner() { return current; }

WorkingFor::WorkingFor(const Owner& owner) : ScopedValue(current, owner) {}

void allocated(const Owner& owner, size_t bytes) {
  if (owner.counts) owner.counts->add(owner.kind, static_cast<int64_t>(bytes));
}

void freed(const Owner& owner, size_t bytes) {
  if (owner.counts) owner.counts->add(owner.kind, -static_cast<int64_t>(bytes));
}

}  // namespace memory
}  // namespace weft
