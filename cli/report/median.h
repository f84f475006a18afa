#pragma once

#include <algorithm>
#include <vector>

namespace weft::report {

/// Of one value at least; of an even number the mean of the middle two.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace weft::report
