#include "kernels/simt/shadow.h"

#include <algorithm>

namespace weft::simt {

bool Timeline::is_ordered(const Record& record, const Event& event) const {
  if (record.clock > block_start) {
    return record.agent == event.agent || record.agent == event.issuer ||
           event.known->seen[record.agent] >= record.clock;
  }
  if (forgets_blocks || record.clock <= launch_start) return true;
  if (!event.known->earlier) return false;
  const auto next = std::lower_bound(block_starts->begin(), block_starts->end(), record.clock);
  const auto block = static_cast<uint32_t>(next - block_starts->begin()) - 1;
  const auto known = event.known->earlier->find(block);
  return known != event.known->earlier->end() && known->second->seen[record.agent] >= record.clock;
}

}  // namespace weft::simt
