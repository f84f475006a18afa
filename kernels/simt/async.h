// Asynchronous copies and the barriers that count them: cp.async groups, mbarriers, TMA.
//
// A copy takes effect somewhere between its issue and the wait that needs it. Options::completion
// chooses the end of that range: eager copies show a buffer that is overwritten while in use, those
// on wait, which hold NaN until then, a wait that is missing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/simt/emulator.h"
#include "kernels/simt/knowledge.h"

namespace weft::simt {

/// cp.async: `bytes` (4, 8 or 16) from global to shared memory, of which the first `source_bytes`
/// are read and the rest are zeros. Joins the thread's open group.
void cp_async(void* to, const void* from, size_t bytes, size_t source_bytes, const Site& site);
void cp_async_commit();
/// Waits until at most `pending` of the thread's latest groups are not complete.
void cp_async_wait(int pending);
/// cp.async.mbarrier.arrive.noinc: arrives once all cp.async of this thread so far are complete.
void cp_async_mbarrier_arrive(uint64_t* barrier, const Site& site);

/// The state behind the 64 opaque bits of an mbarrier (PTX ISA, "mbarrier").
struct Mbarrier {
  uint32_t expected = 0;  // arrivals per phase
  uint32_t pending = 0;
  int64_t transactions = 0;  // bytes announced and not yet arrived
  uint32_t phases = 0;       // completed
  bool observed = true;      // has anyone seen the last completion?
  Release release;
  KnowledgePtr completed;  // what the last phase's arrivals knew
  KnowledgePtr initialised;
  std::vector<Thread*> waiting;
  std::vector<std::function<void()>> copies;  // that take effect when somebody waits
};
void mbarrier_init(uint64_t* barrier, uint32_t count, const Site& site);
void mbarrier_arrive(uint64_t* barrier, uint32_t count, const Site& site);
void mbarrier_expect_tx(uint64_t* barrier, uint32_t bytes, const Site& site);
/// Has the phase of that parity completed? A fresh barrier says so of parity 1.
bool mbarrier_test(uint64_t* barrier, uint32_t parity, const Site& site);
void mbarrier_wait(uint64_t* barrier, uint32_t parity, const Site& site);

/// Makes the generic proxy's writes so far visible to TMA and wgmma.
void fence_proxy_async();

enum class Swizzle : uint8_t { kNone, kBytes32, kBytes64, kBytes128 };

/// The offset of a byte in swizzled shared memory: bits 4.. are xored with bits 7.. of the address.
constexpr size_t swizzled(size_t offset, Swizzle swizzle) {
  const size_t mask = (size_t{1} << static_cast<int>(swizzle)) - 1;
  return offset ^ ((offset >> 7 & mask) << 4);
}

/// A tensor in global memory and the box that one copy moves; dimension 0 is the innermost and
/// dense.
struct TensorMap {
  static constexpr int kMaxRank = 5;
  void* base = nullptr;
  int rank = 0;
  size_t element_bytes = 0;
  uint64_t dims[kMaxRank] = {};
  uint64_t strides[kMaxRank] = {};  // bytes; [0] is element_bytes
  uint32_t box[kMaxRank] = {};
  Swizzle swizzle = Swizzle::kNone;
};

/// Of a box's first element, innermost first; beyond the rank zeros.
using Coordinates = std::array<int, TensorMap::kMaxRank>;

/// cp.async.bulk.tensor, global to shared: the box at some coordinates; elements outside the tensor
/// become zero. Counts the whole box on the barrier. blocks: .multicast::cluster, a bit for each
/// block of the cluster that gets the box, at the same place, and has its barrier there count it; 0
/// for this block alone.
void tma_load(void* to, const TensorMap& map, const Coordinates& at, uint64_t* barrier,
              const Site& site, uint32_t blocks = 0);
/// cp.async.bulk.tensor, shared to global: elements outside the tensor are left out.
void tma_store(const TensorMap& map, const Coordinates& at, const void* from, const Site& site);
void bulk_commit();
/// Waits until at most `pending` of the thread's latest groups have not been read from shared
/// memory, or, unless `read_only`, not been written to global memory.
void bulk_wait(int pending, bool read_only);

/// What a thread has issued and not waited for.
struct AsyncQueue {
  struct Group {
    std::vector<std::function<void()>> work;   // empty once it took effect
    Clock clock = 0;                           // cp.async: of the thread's copy engine
    std::vector<std::pair<int, Clock>> reads;  // bulk: agents that read shared memory
    std::vector<std::pair<int, Clock>> writes;
    bool is_read = false;
    Site site;
  };
  Group open;            // not committed
  Clock last_clock = 0;  // cp.async: of the last commit
  std::vector<Group> committed;
};

/// barrier.cluster.arrive and .wait, of all threads of the cluster that have not exited.
void cluster_arrive();
void cluster_wait(const Site& site);
/// mapa: where `address` lies in the shared memory of another block of the cluster.
void* cluster_address(const void* address, unsigned rank, const Site& site);
unsigned cluster_rank();

/// When a thread exits: copies that it issued and that still read shared memory are a fault.
void finish_copies(Thread& thread);
/// When a block's threads have all exited: copies that come to its shared memory, and what the rest
/// of its cluster does there, have to be over.
void finish_shared(Block& block);
/// Opens the cluster's barrier when all have arrived: at an arrival, or as a thread exits.
void open_complete_cluster_barrier();

}  // namespace weft::simt
