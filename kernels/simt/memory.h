// The memory that emulated kernels touch, watched access by access.
//
// Ordinary accesses come from the compiler's hooks (hooks.cc), those of PTX operations from the
// operations. An access outside its allocation, or off its alignment, ends the launch; races and
// reads of memory that nobody wrote are collected and reported at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/simt/emulator.h"
#include "kernels/simt/shadow.h"

namespace weft::simt {

/// An ordinary load or store of the current thread, about to happen; `pc` lies behind it.
void on_access(const void* address, size_t bytes, size_t alignment, Access access, const void* pc);

/// An access by an operation of a thread of the cluster.
void access_memory(Thread& thread, const void* address, size_t bytes, size_t alignment,
                   Access access, const Site& site);

/// A copy engine or tensor core at work for a thread: ordered by waits, not by program order.
struct AsyncAgent {
  int agent = 0;
  Clock clock = 0;
  Thread* issuer = nullptr;
  KnowledgePtr known;  // the issuer's when it issued
  Site site;
  bool is_async_proxy = false;  // TMA and wgmma; cp.async belongs to the generic proxy
  bool follows_issuer = true;   // comes after the whole past of the issuer
};
void access_memory(const AsyncAgent& agent, const void* address, size_t bytes, size_t alignment,
                   Access access);

/// Is the address in the shared memory of the current cluster?
bool is_shared(const void* address);

/// Host memory that kernels may touch as if it were the device's, for as long as this lives.
class DeviceView {
 public:
  DeviceView(const void* begin, size_t bytes);
  ~DeviceView();
  DeviceView(const DeviceView&) = delete;
  DeviceView& operator=(const DeviceView&) = delete;

 private:
  const void* begin_;
};

/// How a source access of a kernel used memory, summed over its warps. An execution is the k-th of
/// a source access in a warp, as the host compiler kept it.
struct Traffic {
  std::string place;
  bool is_shared = false;
  Access access = Access::kRead;
  uint64_t executions = 0;
  uint64_t transactions = 0;  // shared: passes over 32 banks; global: 32-byte sectors
  uint64_t ideal = 0;         // what the same bytes would need without conflicts
};
/// Of the launches since Options::traffic was set or this was last asked, dearest first.
std::vector<Traffic> take_traffic();

}  // namespace weft::simt
