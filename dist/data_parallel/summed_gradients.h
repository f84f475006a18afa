// Gradients that are sums over ranks already. A pass on top of them, without zero_grad() between,
// must not have them summed once more for each rank: they are set apart until its own sums are
// there.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace weft::dist {

class SummedGradients {
 public:
  void watch(const Tensor& parameter) { places_.push_back({parameter, {}, {}, false}); }

  /// Whether a gradient is such a sum.
  bool any() const;
  /// In a pass that is not summed, of the gradient of the i-th parameter or of all: what is added
  /// to a sum cannot be told from it.
  void note_local(size_t i);
  void note_local();
  /// Before a pass that is: takes the sums away; copies of them, where they lie in buckets that it
  /// fills. Throws Error, which `whose` begins, where note_local() has met one.
  void set_apart(std::string_view whose, bool in_buckets = false);
  bool is_apart(size_t i) const { return places_[i].before.defined(); }
  /// Behind the pass, whose gradients are sums now: adds to them what was set apart.
  void complete();
  /// Behind one that has failed: the sums are as they were.
  void restore();

 private:
  struct Place {
    Tensor parameter;
    std::weak_ptr<Storage> sum;  // the memory of the last one
    Tensor before;
    bool has_local;

    bool shows_sum() const;
  };
  std::vector<Place> places_;
};

}  // namespace weft::dist
