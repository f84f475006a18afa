#include "dist/data_parallel/summed_gradients.h"

#include <algorithm>
#include <utility>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "core/error.h"

namespace weft::dist {

bool SummedGradients::Place::shows_sum() const {
  const std::shared_ptr<Storage> known = sum.lock();
  return known && parameter.grad().defined() && parameter.grad().storage() == known;
}

bool SummedGradients::any() const { return std::ranges::any_of(places_, &Place::shows_sum); }

void SummedGradients::note_local(size_t i) {
  Place& place = places_[i];
  place.has_local = place.has_local || place.shows_sum();
}
void SummedGradients::note_local() {
  for (size_t i = 0; i < places_.size(); ++i) note_local(i);
}

void SummedGradients::set_apart(std::string_view whose, bool in_buckets) {
  const NoGrad guard;
  for (const Place& place : places_) {
    WEFT_CHECK(!place.has_local || !place.shows_sum(),
               "{}: the gradient of a parameter, {}, is a sum over the ranks to which no_sync() "
               "has had this rank's own added; zero_grad() comes before no_sync()",
               whose, place.parameter);
  }
  for (Place& place : places_) {
    place.has_local = false;
    if (!place.shows_sum()) continue;
    place.before = in_buckets ? ops::clone(place.parameter.grad()) : place.parameter.grad();
    place.parameter.set_grad({});
  }
}

void SummedGradients::complete() {
  const NoGrad guard;
  for (Place& place : places_) {
    Tensor sum = place.parameter.grad();
    const Tensor before = std::exchange(place.before, {});
    if (!sum.defined()) {
      place.parameter.set_grad(before);
    } else if (before.defined()) {
      ops::add_(sum, before);
    }
    if (place.parameter.grad().defined()) place.sum = place.parameter.grad().storage();
  }
}

void SummedGradients::restore() {
  for (Place& place : places_) {
    if (place.before.defined()) place.parameter.set_grad(std::exchange(place.before, {}));
  }
}

}  // namespace weft::dist
