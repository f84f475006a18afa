#include "dist/comm/device/on_device.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "core/runtime.h"
#include "dist/comm/device/device_communicator.h"
#include "dist/comm/device/nccl.h"

namespace weft::dist {
namespace {

/// Tells devices apart as NCCL does: by the host, which NCCL_HOSTID names anew, and by what of it
/// is visible.
int64_t identity_of(Device device) {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text ? text : "");
  };
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  const std::string text = fmt::format("{} {} {} {}", host, variable("NCCL_HOSTID"),
                                       variable("CUDA_VISIBLE_DEVICES"), to_string(device));
  return static_cast<int64_t>(std::hash<std::string>()(text));
}

/// Why NCCL cannot connect these ranks; the same on all of them, or empty on all.
std::string problem_of(Communicator& host, Device device) {
  const std::string mine = nccl_problem();
  const Tensor facts = Tensor::from(std::vector<int64_t>{mine.empty(), identity_of(device)}, {2});
  const Tensor all = Tensor::empty({host.size(), 2}, DType::i64);
  host.all_gather(all, facts).wait();
  const int64_t* of = all.data<int64_t>();
  for (int r = 0; r < host.size(); ++r) {
    // What one rank lacks none can use.
    if (of[2 * r] == 0) return mine.empty() ? fmt::format("rank {} has no NCCL", r) : mine;
    for (int other = 0; other < r; ++other) {
      if (of[2 * r + 1] != of[2 * other + 1]) continue;
      return fmt::format("ranks {} and {} share a device, which NCCL refuses", other, r);
    }
  }
  return "";
}

}  // namespace

Collectives parse_collectives(const std::string& text) {
  if (text == "nccl") return Collectives::kNccl;
  WEFT_CHECK(text == "exact", "collectives: expected nccl or exact, got \"{}\"", text);
  return Collectives::kExact;
}

CommunicatorPtr on_device(CommunicatorPtr host, Device device, Collectives collectives) {
  if (device.type == DeviceType::cpu) return host;
  const std::string problem = problem_of(*host, device);
  if (problem.empty()) {
    return make_nccl_communicator(std::move(host), device, {.collectives = collectives});
  }
  if (host->rank() == 0 && host->size() > 1 && !runtime::is_emulated()) {
    fmt::print(stderr, "weft: collectives go through host memory: {}\n", problem);
  }
  return make_staged_communicator(std::move(host), device);
}

Tensor buffer_for(Communicator& group, int64_t n, DType dtype, Device device, BufferLife life) {
  Tensor buffer;
  if (auto* const engine = dynamic_cast<DeviceCommunicator*>(&group);
      engine && engine->device() == device) {
    buffer = engine->registered_buffer(n, dtype, life);
  }
  return buffer.defined() ? buffer : Tensor::empty({n}, dtype, device);
}

}  // namespace weft::dist
