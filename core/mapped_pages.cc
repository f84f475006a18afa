#include "core/mapped_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace weft {
namespace {

/// Advice on the pages that hold the bytes, or on those that hold nothing else. That the system
/// takes none of it is no error: it is about time and memory, not about what is read.
void advise(std::span<const std::byte> bytes, int advice, bool whole_pages) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = (whole_pages ? first + page - 1 : first) / page * page;
  const uintptr_t last = first + bytes.size();
  const uintptr_t end = (whole_pages ? last : last + page - 1) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

void will_need(std::span<const std::byte> bytes) { advise(bytes, MADV_WILLNEED, false); }

void let_go(std::span<const std::byte> bytes) { advise(bytes, MADV_DONTNEED, true); }

}  // namespace weft
