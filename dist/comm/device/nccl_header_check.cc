// nccl_api.h against NCCL's own header, where there is one: compiled, and part of nothing.
#if __has_include(<nccl.h>)

#include <nccl.h>

#include <type_traits>

#include "dist/comm/device/nccl_api.h"

namespace weft::dist::nccl {
namespace {

static_assert(int(Result::kSuccess) == ncclSuccess && int(Result::kInProgress) == ncclInProgress &&
              int(Result::kInternalError) == ncclInternalError &&
              int(Result::kInvalidArgument) == ncclInvalidArgument &&
              int(Result::kInvalidUsage) == ncclInvalidUsage &&
              int(Result::kRemoteError) == ncclRemoteError);
static_assert(int(Type::kInt8) == ncclInt8 && int(Type::kInt32) == ncclInt32 &&
              int(Type::kInt64) == ncclInt64 && int(Type::kFloat16) == ncclFloat16 &&
              int(Type::kFloat32) == ncclFloat32 && int(Type::kFloat64) == ncclFloat64 &&
              int(Type::kBfloat16) == ncclBfloat16);
static_assert(int(Op::kSum) == ncclSum && int(Op::kMax) == ncclMax && int(Op::kMin) == ncclMin &&
              int(Op::kAvg) == ncclAvg);
static_assert(NCCL_MAJOR == 2 && sizeof(UniqueId) == sizeof(ncclUniqueId) &&
              offsetof(Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));

/// NCCL's type for each of ours.
template <class T>
struct Theirs {
  using type = T;
};
template <>
struct Theirs<Result> {
  using type = ncclResult_t;
};
template <>
struct Theirs<Type> {
  using type = ncclDataType_t;
};
template <>
struct Theirs<Op> {
  using type = ncclRedOp_t;
};
template <>
struct Theirs<Comm> {
  using type = ncclComm_t;
};
template <>
struct Theirs<UniqueId> {
  using type = ncclUniqueId;
};
template <class T>
requires(!std::is_same_v<T, void> && !std::is_same_v<T, void*> &&
         !std::is_same_v<T, CommOfNccl>) struct Theirs<T*> {
  using type = typename Theirs<T>::type*;
};
template <>
struct Theirs<Config> {
  using type = ncclConfig_t;
};
template <>
struct Theirs<const void*> {
  using type = const void*;
};
template <>
struct Theirs<const char*> {
  using type = const char*;
};

/// A stream is void* here, and so is memory: both are taken by NCCL where it has its own type.
struct Pointer {
  Pointer(void*);
  template <class T>
  operator T*() const;
};
template <class T>
using Argument = std::conditional_t<std::is_same_v<T, void*>, Pointer, typename Theirs<T>::type>;

template <class Function, class R, class... Arguments>
constexpr bool agrees(R (*)(Arguments...)) {
  return std::is_invocable_r_v<typename Theirs<R>::type, Function, Argument<Arguments>...>;
}
#define WEFT_AGREES(ours, theirs) \
  static_assert(agrees<decltype(&::theirs)>(decltype(Api::ours)(nullptr)), #theirs)

WEFT_AGREES(get_unique_id, ncclGetUniqueId);
WEFT_AGREES(comm_init_rank_config, ncclCommInitRankConfig);
WEFT_AGREES(comm_get_async_error, ncclCommGetAsyncError);
WEFT_AGREES(comm_finalize, ncclCommFinalize);
WEFT_AGREES(comm_destroy, ncclCommDestroy);
WEFT_AGREES(comm_abort, ncclCommAbort);
WEFT_AGREES(group_start, ncclGroupStart);
WEFT_AGREES(group_end, ncclGroupEnd);
WEFT_AGREES(send, ncclSend);
WEFT_AGREES(recv, ncclRecv);
WEFT_AGREES(broadcast, ncclBroadcast);
WEFT_AGREES(reduce, ncclReduce);
WEFT_AGREES(all_reduce, ncclAllReduce);
WEFT_AGREES(reduce_scatter, ncclReduceScatter);
WEFT_AGREES(all_gather, ncclAllGather);
WEFT_AGREES(get_error_string, ncclGetErrorString);
WEFT_AGREES(get_last_error, ncclGetLastError);
#if NCCL_VERSION_CODE >= 21900
WEFT_AGREES(mem_alloc, ncclMemAlloc);
WEFT_AGREES(mem_free, ncclMemFree);
WEFT_AGREES(comm_register, ncclCommRegister);
WEFT_AGREES(comm_deregister, ncclCommDeregister);
#endif

}  // namespace
}  // namespace weft::dist::nccl

#endif
