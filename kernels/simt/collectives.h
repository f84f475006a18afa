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

/// The operands of the mask's lanes, joined in ascending order.
using Join = uint32_t (*)(uint32_t, uint32_t);
uint32_t reduce(uint32_t mask, uint32_t value, Join join, const char* operation, const Site& site);

void sync_warp(uint32_t mask, const Site& site);
/// __syncthreads, and the number of threads that gave true.
int sync_count(bool predicate, const Site& site);

/// Orders what the thread has done before what it does next, for its block or for the device.
void fence(bool for_device);

/// Announces an atomic access and returns; the caller then reads and writes *address at once, since
/// no other thread runs meanwhile.
void atomic_access(const volatile void* address, size_t bytes, const Site& site);

}  // namespace weft::simt
