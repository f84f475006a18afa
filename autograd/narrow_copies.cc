#include "autograd/narrow_copies.h"

#include <mutex>

#include "autograd/raw.h"

namespace weft {

struct NarrowCopies::Copy {
  Tensor narrow;
  uint64_t version;  // of the weight that it was rounded from
};

namespace {

using Copy = NarrowCopies::Copy;

/// What is known of a storage.
struct Entry {
  std::weak_ptr<Storage> storage;
  DType dtype = DType::f32;  // in which products want its weight; f32: they have not asked
  bool is_forbidden = false;
  std::weak_ptr<Copy> copy = {};
};

/// In all threads: a weight may be read in others than the one that updates it.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const Storage*, Entry> entries;
  size_t most = 64;  // entries, before those of storages that are gone are looked for

  Entry& of(const Tensor& x) {
    if (entries.size() >= most) {
      std::erase_if(entries, [](const auto& entry) { return entry.second.storage.expired(); });
      most = 2 * entries.size() + 64;
    }
    Entry& entry = entries[x.storage().get()];
    // Another storage may have lain there.
    if (entry.storage.lock() != x.storage()) entry = {.storage = x.storage()};
    return entry;
  }
};

Registry& registry() {
  static Registry* const all = new Registry;  // storages may go when the program ends
  return *all;
}

bool is_eligible(const Tensor& x) {
  return x.dtype() == DType::f32 && x.autograd() && x.autograd()->requires_grad &&
         x.is_contiguous() && x.storage()->is_owner() && x.nbytes() == x.storage()->bytes();
}

/// The copy, brought up to the weight's version.
const Tensor& current(Copy& copy, const Tensor& weight) {
  if (copy.version != weight.version()) {
    raw::copy(weight, copy.narrow);
    copy.narrow.bump_version();
    copy.version = weight.version();
  }
  return copy.narrow;
}

bool is_of(const Copy& copy, const Tensor& weight, DType dtype) {
  return copy.narrow.dtype() == dtype && copy.narrow.shape() == weight.shape();
}

}  // namespace

Tensors NarrowCopies::of(const Tensors& weights, bool makes_new) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  Tensors copies;
  for (const Tensor& weight : weights) {
    Tensor& narrow = copies.emplace_back();
    const bool is_wanted =
        is_eligible(weight) && all.of(weight).dtype != DType::f32 && !all.of(weight).is_forbidden;
    if (!is_wanted) {
      kept_.erase(weight.id());
      continue;
    }
    Entry& entry = all.of(weight);
    std::shared_ptr<Copy> copy = entry.copy.lock();
    if (!copy || !is_of(*copy, weight, entry.dtype)) {
      if (!makes_new) continue;
      copy = std::make_shared<Copy>(Copy{raw::contiguous(weight, entry.dtype), weight.version()});
      entry.copy = copy;
    }
    narrow = current(*copy, weight);
    kept_[weight.id()] = copy;
  }
  return copies;
}

void NarrowCopies::set_written(const Tensors& weights, const Tensors& copies) {
  const std::lock_guard lock(registry().mutex);
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].defined()) continue;
    copies[i].bump_version();
    const auto kept = kept_.find(weights[i].id());
    if (kept != kept_.end() && kept->second->narrow.is_same(copies[i])) {
      kept->second->version = weights[i].version();
    }
  }
}

Tensor narrow_copy(const Tensor& weight, DType dtype) {
  if (!is_eligible(weight)) return {};
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  Entry& entry = all.of(weight);
  if (entry.is_forbidden) return {};
  if (grad_enabled()) entry.dtype = dtype;
  const std::shared_ptr<Copy> copy = entry.copy.lock();
  return copy && is_of(*copy, weight, dtype) ? current(*copy, weight) : Tensor();
}

Tensor narrow_copy(const Tensor& weight) {
  if (!is_eligible(weight)) return {};
  const std::lock_guard lock(registry().mutex);
  const Entry& entry = registry().of(weight);
  const std::shared_ptr<Copy> copy = entry.copy.lock();
  return copy && !entry.is_forbidden ? current(*copy, weight) : Tensor();
}

void forbid_narrow_copies(const Tensor& x) {
  const std::lock_guard lock(registry().mutex);
  registry().of(x).is_forbidden = true;
}

}  // namespace weft
