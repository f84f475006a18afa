// NCCL's interface: its own header, or, since CUDA toolkits come without it, what nccl.cc needs of
// it. The library is opened at first use, so the machine that runs the program may have one though
// the machine that built it has none.
//
// The declarations are those of NCCL 2.14, which later versions go on reading: they tell the
// configuration's layout by its size and version.
#pragma once

#if __has_include(<nccl.h>) && !defined(WEFT_OWN_NCCL_DECLARATIONS)

#include <nccl.h>

#include <cstddef>

static_assert(ncclSuccess == 0 && ncclInProgress == 7 && ncclInt8 == 0 && NCCL_MAJOR == 2 &&
                  sizeof(ncclUniqueId) == 128 && offsetof(ncclConfig_t, size) == 0 &&
                  offsetof(ncclConfig_t, magic) == 8 && offsetof(ncclConfig_t, version) == 12 &&
                  offsetof(ncclConfig_t, blocking) == 16,
              "nccl.h differs from the declarations for machines without it");

#else

#include <cuda_runtime_api.h>

#include <climits>
#include <cstddef>

#define NCCL_MAJOR 2
#define NCCL_CONFIG_INITIALIZER \
  { sizeof(ncclConfig_t), 0xcafebeef, 21400, INT_MIN }

extern "C" {

using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
  char internal[128];
};
enum ncclResult_t { ncclSuccess = 0, ncclInProgress = 7 };
enum ncclDataType_t { ncclInt8 = 0 };
struct ncclConfig_t {
  size_t size;
  unsigned magic, version;
  int blocking;
};

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);

}  // extern "C"

#endif
