#include "dist/model_parallel/stages.h"

#include <algorithm>
#include <cmath>

namespace weft::dist {

std::vector<size_t> stage_ends(const nn::Segments& segments, const NamedTensors& state,
                               size_t stages) {
  const size_t n = segments.size();
  for (const nn::Segment& segment : segments) {
    WEFT_CHECK(segment.reads.empty(),
               "pipeline: the segment {} reads \"{}\" of another, to which it is tied; a stage has "
               "its own tensors alone",
               segment.name, segment.reads[0]);
  }
  std::vector<double> costs(n, 1);
  for (const auto& [name, tensor] : state) {
    for (size_t i = 0; i < n; ++i) {
      if (nn::owns(segments[i], name)) costs[i] += static_cast<double>(tensor.numel());
    }
  }
  // best[s][i]: the largest stage when the first i segments make s stages; from[s][i]: where the
  // last of these begins.
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(n + 1, INFINITY));
  std::vector<std::vector<size_t>> from(stages + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t s = 1; s <= stages; ++s) {
    for (size_t end = s; end <= n; ++end) {
      double sum = 0;
      for (size_t begin = end; begin-- > s - 1;) {
        sum += costs[begin];
        const double largest = std::max(best[s - 1][begin], sum);
        if (largest < best[s][end]) {
          best[s][end] = largest;
          from[s][end] = begin;
        }
      }
    }
  }
  std::vector<size_t> ends(stages);
  size_t end = n;
  for (size_t s = stages; s > 0; --s) {
    ends[s - 1] = end;
    end = from[s][end];
  }
  return ends;
}

}  // namespace weft::dist
