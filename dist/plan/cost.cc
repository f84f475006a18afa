#include "dist/plan/cost.h"

#include <algorithm>
#include <deque>

#include "dist/comm/communicator.h"

namespace weft::dist {

int64_t sent_by_all_reduce(int64_t x, int n, int r) {
  const int64_t own = split_evenly(x, n)[r];
  return n == 1 ? 0 : x - own + (n - 1) * own;
}

std::vector<int64_t> bucket_elements(const ModelLayout& layout, int ranks,
                                     const BucketSizes& sizes) {
  std::vector<int64_t> buckets;
  bool is_open = false;
  for (auto size = layout.sizes.rbegin(); size != layout.sizes.rend(); ++size) {
    if (!is_open) buckets.push_back(0);
    buckets.back() += *size;
    is_open = buckets.back() * kElementBytes < (buckets.size() == 1 ? sizes.first : sizes.bytes);
  }
  for (int64_t& elements : buckets) elements = padded(elements, ranks);
  return buckets;
}

std::vector<int> unshard_order(const ModelLayout& layout) {
  const int units = static_cast<int>(layout.units.size());
  std::vector<int> order;
  std::deque<int> resident;
  const auto touch = [&](int unit) {
    if (std::find(resident.begin(), resident.end(), unit) != resident.end()) return;
    while (resident.size() >= 2) resident.pop_front();
    resident.push_back(unit);
    order.push_back(unit);
  };
  if (layout.root_before > 0) touch(-1);
  for (int u = 0; u < units; ++u) touch(u);
  if (layout.root_behind > 0) touch(-1);
  // Backward: a unit goes when its gradients are complete; the root's last parameters, those of the
  // input, need no values to get theirs.
  for (int u = units - 1; u >= 0; --u) {
    touch(u);
    std::erase(resident, u);
  }
  return order;
}

}  // namespace weft::dist
