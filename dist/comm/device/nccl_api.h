// What nccl.cc asks of NCCL: its types and functions, by pointers.
//
// The library is opened at first use, so the machine that runs the program may have one though the
// machine that built it has none; the tests have a stand-in (testing/nccl_stand_in.h).
// The declarations are those of NCCL 2.14, which later versions go on reading: they tell the
// configuration's layout by its size and version. Where there is an nccl.h, nccl_header_check.cc
// holds them against it.
#pragma once

#include <cstddef>

namespace weft::dist::nccl {

using Comm = struct CommOfNccl*;
using Stream = void*;  // cudaStream_t

enum class Result : int {
  kSuccess = 0,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum class Type : int {
  kInt8 = 0,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
/// kAvg multiplies floating inputs by 1/ranks before it adds them.
enum class Op : int { kSum = 0, kMax = 2, kMin = 3, kAvg = 4 };

struct UniqueId {
  char internal[128];
};
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
};

struct Api {
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  Result (*comm_finalize)(Comm comm);
  Result (*comm_destroy)(Comm comm);
  Result (*comm_abort)(Comm comm);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void* from, size_t count, Type type, int peer, Comm comm, Stream stream);
  Result (*recv)(void* to, size_t count, Type type, int peer, Comm comm, Stream stream);
  Result (*broadcast)(const void* from, void* to, size_t count, Type type, int root, Comm comm,
                      Stream stream);
  Result (*reduce)(const void* from, void* to, size_t count, Type type, Op op, int root, Comm comm,
                   Stream stream);
  Result (*all_reduce)(const void* from, void* to, size_t count, Type type, Op op, Comm comm,
                       Stream stream);
  /// `count` elements to each rank; in place where `to` is this rank's part of `from`.
  Result (*reduce_scatter)(const void* from, void* to, size_t count, Type type, Op op, Comm comm,
                           Stream stream);
  /// `count` elements of each rank; in place where `from` is this rank's part of `to`.
  Result (*all_gather)(const void* from, void* to, size_t count, Type type, Comm comm,
                       Stream stream);
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Comm comm);

  // Since NCCL 2.19; null before.
  Result (*mem_alloc)(void** memory, size_t bytes);
  Result (*mem_free)(void* memory);
  Result (*comm_register)(Comm comm, void* memory, size_t bytes, void** handle);
  Result (*comm_deregister)(Comm comm, void* handle);
};

/// FUNCTION(its name above, NCCL's) for each of them.
#define WEFT_NCCL_FUNCTIONS(FUNCTION)                     \
  FUNCTION(get_unique_id, ncclGetUniqueId)                \
  FUNCTION(comm_init_rank_config, ncclCommInitRankConfig) \
  FUNCTION(comm_get_async_error, ncclCommGetAsyncError)   \
  FUNCTION(comm_finalize, ncclCommFinalize)               \
  FUNCTION(comm_destroy, ncclCommDestroy)                 \
  FUNCTION(comm_abort, ncclCommAbort)                     \
  FUNCTION(group_start, ncclGroupStart)                   \
  FUNCTION(group_end, ncclGroupEnd)                       \
  FUNCTION(send, ncclSend)                                \
  FUNCTION(recv, ncclRecv)                                \
  FUNCTION(broadcast, ncclBroadcast)                      \
  FUNCTION(reduce, ncclReduce)                            \
  FUNCTION(all_reduce, ncclAllReduce)                     \
  FUNCTION(reduce_scatter, ncclReduceScatter)             \
  FUNCTION(all_gather, ncclAllGather)                     \
  FUNCTION(get_error_string, ncclGetErrorString)          \
  FUNCTION(get_last_error, ncclGetLastError)
/// Those since NCCL 2.19.
#define WEFT_NCCL_MEMORY_FUNCTIONS(FUNCTION) \
  FUNCTION(mem_alloc, ncclMemAlloc)          \
  FUNCTION(mem_free, ncclMemFree)            \
  FUNCTION(comm_register, ncclCommRegister)  \
  FUNCTION(comm_deregister, ncclCommDeregister)

}  // namespace weft::dist::nccl
