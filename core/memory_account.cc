#include "core/memory_account.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "core/allocator.h"
#include "core/memory_thread.h"
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
};

namespace {

thread_local MemoryKind current_kind = MemoryKind::kActivations;
thread_local std::shared_ptr<MemoryAccount::Counts> current_counts;

}  // namespace

std::string_view name(MemoryKind kind) {
  constexpr std::string_view kNames[kMemoryKinds] = {"activations", "parameters", "gradients",
                                                     "optimizer",   "gathered",   "buckets"};
  return kNames[static_cast<int>(kind)];
}

MemoryScope::MemoryScope(MemoryKind kind) : previous_(current_kind) { current_kind = kind; }
MemoryScope::~MemoryScope() { current_kind = previous_; }

void assign_memory(const Tensor& tensor, MemoryKind kind) {
  if (!current_counts || !tensor.defined() || !tensor.storage()->is_resident()) return;
  allocator(tensor.device()).assign(tensor.storage()->data(), kind);
}

MemoryAccount::MemoryAccount() : counts_(std::make_shared<Counts>()) {}

MemoryAccount::Bytes MemoryAccount::bytes(MemoryKind kind) const {
  std::lock_guard lock(counts_->mutex);
  return counts_->kinds[static_cast<int>(kind)];
}

MemoryAccount::Bytes MemoryAccount::total() const {
  std::lock_guard lock(counts_->mutex);
  return counts_->total;
}

MemoryAccount::Bytes MemoryAccount::state() const {
  std::lock_guard lock(counts_->mutex);
  return counts_->state;
}

void MemoryAccount::reset_peak() {
  std::lock_guard lock(counts_->mutex);
  for (Bytes& bytes : counts_->kinds) bytes.peak = bytes.live;
  counts_->total.peak = counts_->total.live;
  counts_->state.peak = counts_->state.live;
}

MemoryAccount::Joined::Joined(const MemoryAccount& account)
    : previous_(std::exchange(current_counts, account.counts_)) {}
MemoryAccount::Joined::~Joined() { current_counts = std::move(previous_); }

namespace memory {

Owner current_owner() { return {current_counts, current_kind}; }

WorkingFor::WorkingFor(const Owner& owner)
    : previous_{std::exchange(current_counts, owner.counts),
                std::exchange(current_kind, owner.kind)} {}
WorkingFor::~WorkingFor() {
  current_counts = std::move(previous_.counts);
  current_kind = previous_.kind;
}

void allocated(const Owner& owner, size_t bytes) {
  if (owner.counts) owner.counts->add(owner.kind, static_cast<int64_t>(bytes));
}

void freed(const Owner& owner, size_t bytes) {
  if (owner.counts) owner.counts->add(owner.kind, -static_cast<int64_t>(bytes));
}

}  // namespace memory
}  // namespace weft
