// Warp operations, votes, fences and atomics on plain words: what the built-in functions of
// kernels/simt/builtins.h are made of.
#pragma once

#include "kernels/simt/emulator.h"

namespace weft::simt {

/// Gives every lane of the mask the operand of lane `source`; its own where that is not in the mask
/// or source is negative.
uint64_t shuffle(uint32_t mask, uint64_t value, int source, const char* operation,
                 const Site& site);
/// The lanes of the mask whose operand is not 0.
uint32_t ballot(uint32_t mask, bool predicate, const char* operation, const Site& site);
/// The lanes of the mask whose operand equals this lane's.
uint32_t match_any(uint32_t mask, uint64_t value, const Site& site);

enum class Reduction : uint8_t {
  kAdd,
  kMinSigned,
  kMaxSigned,
  kMinUnsigned,
  kMaxUnsigned,
  kBitAnd,
  kBitOr,
  kBitXor
};
uint32_t reduce(uint32_t mask, uint32_t value, Reduction reduction, const Site& site);

void sync_warp(uint32_t mask, const Site& site);
enum class Vote : uint8_t { kCount, kAll, kAny };
int sync_vote(Vote vote, bool predicate, const Site& site);

enum class Scope : uint8_t { kBlock, kDevice, kSystem };
void fence(Scope scope, const Site& site);

/// Announces an atomic access and returns; the caller then reads and writes *address at once, since
/// no other thread runs meanwhile.
void atomic_access(const volatile void* address, size_t bytes, const Site& site);

}  // namespace weft::simt
