#include "optim/gradient_owner.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "core/error.h"

namespace weft::optim {
namespace {

/// By Tensor::id(). Ranks may be threads of one process.
struct Owners {
  std::mutex mutex;
  std::unordered_map<const void*, std::weak_ptr<GradientOwner>> of;
};

Owners& owners() {
  static auto& all = *new Owners;
  return all;
}

}  // namespace

std::shared_ptr<void> own_gradients(const Tensors& tensors, std::weak_ptr<GradientOwner> owner) {
  const std::lock_guard lock(owners().mutex);
  for (const Tensor& tensor : tensors) owners().of[tensor.id()] = owner;
  // An id may be another tensor's once this one is gone, hence the copy of the list.
  return {nullptr, [tensors](void*) {
            const std::lock_guard lock(owners().mutex);
            for (const Tensor& tensor : tensors) owners().of.erase(tensor.id());
          }};
}

std::shared_ptr<GradientOwner> gradient_owner(const Tensors& parameters) {
  const std::lock_guard lock(owners().mutex);
  if (owners().of.empty()) return nullptr;
  std::shared_ptr<GradientOwner> common;
  bool is_owned = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto found = owners().of.find(parameters[i].id());
    const bool is_this_owned = found != owners().of.end();
    const auto owner = is_this_owned ? found->second.lock() : nullptr;
    WEFT_CHECK(!is_this_owned || owner,
               "clipping: what set the parameters up, a Fabric, is gone: parameter {}, {}", i,
               parameters[i]);
    WEFT_CHECK(i == 0 || (is_this_owned == is_owned && owner == common),
               "clipping: parameter {}, {}, was set up for several devices or a precision, others "
               "were not, or elsewhere; clip them apart",
               is_this_owned ? i : i - 1, parameters[is_this_owned ? i : i - 1]);
    common = owner;
    is_owned = is_this_owned;
  }
  return common;
}

bool has_gradient_owner(const Tensors& parameters) {
  const std::lock_guard lock(owners().mutex);
  return !owners().of.empty() && std::ranges::any_of(parameters, [](const Tensor& parameter) {
    return owners().of.contains(parameter.id());
  });
}

}  // namespace weft::optim
