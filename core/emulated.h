// The emulated CUDA device, as the emulator in kernels/simt sees it.
//
// Device memory is memory of this process, in blocks with guard bytes on both sides that are
// checked when a block is given back. Blocks have the size that was asked for and are never
// reused at once, so that the emulator can tell an access outside its tensor. Fresh memory holds
// 0xFF: NaN in every floating format.
#pragma once

#include <functional>
#include <optional>

#include "core/runtime.h"

namespace weft::emulated {

struct Block {
  const unsigned char* begin = nullptr;
  size_t bytes = 0;
  int device = 0;
  bool* is_written = nullptr;  // for each byte: copies and kernels that watch say so
};

/// The live block of device memory that holds the address; nothing when none does.
std::optional<Block> block_of(const void* address);

/// Takes all of every block as written: after work that nobody watched.
void forget_unwritten();

/// Counts allocations and releases: as long as it stays, what block_of() said is still true.
uint64_t block_generation();

/// Runs work in the order of the stream, which is now; or keeps it, when the stream is being
/// captured, for each launch of the graph.
void submit(runtime::StreamHandle stream, std::function<void()> work);

}  // namespace weft::emulated
