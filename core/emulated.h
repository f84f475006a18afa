// The emulated CUDA device, as the emulator in kernels/simt sees it.
//
// Device memory is memory of this process, in blocks with guard bytes on both sides that are
// checked when a block is given back. Blocks have the size that was asked for and are never
// reused at once, so that the emulator can tell an access outside its tensor. Fresh memory holds
// 0xFF: NaN in every floating format.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/runtime.h"

namespace weft::emulated {

/// A GPU whose limits the emulated devices have. They have two multiprocessors, so that blocks walk
/// over several tiles of small problems, too.
struct Gpu {
  std::string_view name;
  runtime::DeviceLimits limits;
};

/// The one in use: that of WEFT_EMULATED_GPU, or an H100.
const Gpu& gpu();
/// From now on another: a100, a10, 4090, h100, h200, b200 or 5090. Throws Error for any other name.
void use_gpu(std::string_view name);

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
