// What sharing a training over ranks costs each of them: bytes kept, and bytes sent in a step.
//
// P parameters are cut into units (dist/fsdp.h); F ranks share a copy, R such groups hold copies,
// T ranks share a layer, S are a pipeline: N = F R T S. The optimizer is Adam, everything travels
// and is kept in elements of 4 bytes. Formulas with an asterisk walk through the schedule of a
// step, unit by unit, since units differ in size; the text beside them says what comes out for
// units of one size U.
//
//             parameters  gradients            optimizer  gathered   buckets
//   single    4 P         4 P                  8 P
//   dp        4 P         4 N P                8 P                              N threads together
//   ddp       4 P         4 largest parameter  8 P                   4 P
//   zero1     4 P         4 P                  8 P/F                 8 (1 + 1/F) U *
//   zero2     4 P         4 P/F + 4 U *        8 P/F                 8 (1 + 1/F) U *
//   zero3, fsdp, hsdp
//             4 P/F       4 P/F + 4 U *        8 P/F      12 U *     8 (1 + 1/F) U *
//   tp        as single, with copies as ddp, of P_t: whole parameters and 1/T of cut ones
//   fsdp+tp   as fsdp, of P_t
//   pipeline  as single, of the stage's parameters
//
// Sent by each rank, in a ring or straight, n bytes whose parts the ranks divide:
//   all_reduce 2 (N-1)/N n;  all_gather, reduce_scatter (N-1)/N n.
//   ddp: all_reduce of the buckets. zero1, zero2: reduce_scatter and all_gather of all units.
//   fsdp: reduce_scatter of all units, all_gather of each as often as it is gathered: forward and
//   backward, but for those that are still there when backward begins. hsdp: that among F ranks,
//   and all_reduce of the parts among R.
//   tp: an all_reduce of an activation of B images, a = 4 B tokens width bytes, forward and
//   backward for each attention and each MLP. On dealt-out tokens for each of them three
//   all_gathers and two reduce_scatters of a, one of either where dealing out begins and ends, and
//   an all_reduce of the norms' and the row-parallel biases' gradients. A parallel head: an
//   all_reduce of its input's gradient and of three numbers an image. pipeline: activations to the
//   next stage, gradients to the one before, 104 bytes in front of each activation; an all_reduce
//   of each parameter's gradient among R.
//
// Rajbhandari et al.: "ZeRO", SC 2020, for the terms in P. Nothing here measures anything:
// `weft bench sharding` holds these numbers against the allocator and the transport.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/memory_account.h"
#include "dist/model_layout.h"

namespace weft::dist {

/// Bytes by MemoryKind at each kind's peak in a step; activations are not known here.
struct StateBytes {
  std::array<int64_t, kMemoryKinds> kinds{};
  int64_t operator[](MemoryKind kind) const { return kinds[static_cast<int>(kind)]; }
  int64_t& operator[](MemoryKind kind) { return kinds[static_cast<int>(kind)]; }
  int64_t total() const;
};
/// Of the rank whose layout it is. Throws Error for a strategy that is not in the table above.
StateBytes state_bytes(const std::string& strategy, const ModelLayout& layout,
                       const Sharing& sharing);
/// Bytes at the peak of a step, all kinds together, of which `activations` are there when backward
/// begins and go unit by unit. Less than the sum of the kinds' peaks, which come at different
/// times.
int64_t peak_bytes(const std::string& strategy, const ModelLayout& layout, const Sharing& sharing,
                   int64_t activations);
/// The row of the table above: "4 P parameters + ...".
std::string state_formula(const std::string& strategy);

/// Whose step it is, and on what.
struct StepShape {
  int rank = 0;
  int64_t images = 1;        // of a batch, of those who share one
  int64_t ddp_elements = 0;  // of ddp's buckets with their padding; 0: as the layout cuts them
};
/// Bytes that a rank sends in a step.
int64_t sent_bytes(const std::string& strategy, const ModelLayout& layout, const Sharing& sharing,
                   const StepShape& step = {});
std::string sent_formula(const std::string& strategy);

/// Of ddp, as DdpOptions has them. Bytes.
struct BucketSizes {
  int64_t bytes = 25 << 20, first = 1 << 20;
};
/// Elements of ddp's buckets filled in reverse order of registration, padded for the ranks.
std::vector<int64_t> bucket_elements(const ModelLayout& layout, int ranks,
                                     const BucketSizes& sizes = {});
/// The units in the order in which a step of a fully sharded model gathers them; -1: the root.
std::vector<int> gather_order(const ModelLayout& layout);

}  // namespace weft::dist
