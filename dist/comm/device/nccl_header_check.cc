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

/// Makes NCCL's type of each of ours.
struct Translation {
  template <class T>
  T operator()(T);
  ncclResult_t operator()(Result);
  ncclDataType_t operator()(Type);
  ncclRedOp_t operator()(Op);
  ncclComm_t operator()(Comm);
  ncclUniqueId operator()(UniqueId);
  ncclResult_t* operator()(Result*);
  ncclComm_t* operator()(Comm*);
  ncclUniqueId* operator()(UniqueId*);
  ncclConfig_t* operator()(Config*);
};
template <class T>
using Theirs = std::invoke_result_t<Translation, T>;

/// A stream is void* here, and so is memory: both are taken by NCCL where it has its own type.
struct Pointer {
  Pointer(void*);
  template <class T>
  operator T*() const;
};
template <class T>
using Argument = std::conditional_t<std::is_same_v<T, void*>, Pointer, Theirs<T>>;

template <class Function, class R, class... Arguments>
constexpr bool agrees(R (*)(Arguments...)) {
  return std::is_invocable_r_v<Theirs<R>, Function, Argument<Arguments>...>;
}
#define WEFT_AGREES(ours, theirs) \
  static_assert(agrees<decltype(&::theirs)>(decltype(Api::ours)(nullptr)), #theirs);
WEFT_NCCL_FUNCTIONS(WEFT_AGREES)
#if NCCL_VERSION_CODE >= 21900
WEFT_NCCL_MEMORY_FUNCTIONS(WEFT_AGREES)
#endif

}  // namespace
}  // namespace weft::dist::nccl

#endif
