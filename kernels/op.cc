#include "kernels/op.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/allocator.h"
#include "core/runtime.h"
#include "core/stream.h"

namespace weft::kernels {
namespace {

struct ForcedVariants {
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> by_op;
  std::atomic<bool> any{false};

  ForcedVariants() {
    const char* text = std::getenv("WEFT_VARIANT");
    if (!text) return;
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::string_view entry = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
      const size_t equals = entry.find('=');
      WEFT_CHECK(equals != std::string_view::npos,
                 "WEFT_VARIANT: expected op=variant[,op=variant...], got \"{}\"", entry);
      by_op.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
    any = !by_op.empty();
  }
};

ForcedVariants& forced_variants() {
  static ForcedVariants variants;
  return variants;
}

std::atomic<LaunchHook*> the_hook{nullptr};

/// An empty variant: none.
void force_variant(const std::string& op, std::string_view variant) {
  ForcedVariants& forced = forced_variants();
  std::lock_guard lock(forced.mutex);
  if (variant.empty()) {
    forced.by_op.erase(op);
  } else {
    forced.by_op[op] = variant;
  }
  forced.any = !forced.by_op.empty();
}

}  // namespace

bool any_variant_forced() { return forced_variants().any.load(std::memory_order_relaxed); }

std::string forced_variant(std::string_view op) {
  ForcedVariants& forced = forced_variants();
  std::lock_guard lock(forced.mutex);
  const auto entry = forced.by_op.find(op);
  return entry == forced.by_op.end() ? std::string() : entry->second;
}

ForcedVariant::ForcedVariant(std::string_view op, std::string_view variant)
    : op_(op), previous_(forced_variant(op)) {
  force_variant(op_, variant);
}

ForcedVariant::~ForcedVariant() { force_variant(op_, previous_); }

void set_launch_hook(LaunchHook* hook) { the_hook = hook; }

/// A thread that launches kernels. It alone has to do with the functions' list.
struct BeforeKernels::Thread {
  std::atomic<int> depth{0};  // of kernels, one inside the other
  std::vector<std::weak_ptr<const std::function<void()>>> functions;

  static const std::shared_ptr<Thread>& current() {
    static thread_local const auto thread = std::make_shared<Thread>();
    return thread;
  }

  void call_functions() {
    if (functions.empty() || depth.load(std::memory_order_relaxed) > 0) return;
    std::erase_if(functions, [](const auto& function) { return function.expired(); });
    for (const auto& weak : functions) {
      if (const auto function = weak.lock()) (*function)();
    }
  }
};

BeforeKernels::BeforeKernels(std::function<void()> function)
    : thread_(Thread::current()),
      function_(std::make_shared<const std::function<void()>>(std::move(function))) {
  thread_->functions.push_back(function_);
}

bool BeforeKernels::is_of_this_thread() const { return thread_ == Thread::current(); }
bool BeforeKernels::in_kernel() const { return thread_->depth.load(std::memory_order_relaxed) > 0; }
bool BeforeKernels::in_kernel_here() {
  return Thread::current()->depth.load(std::memory_order_relaxed) > 0;
}

Launch::Launch(std::string_view op, std::string_view variant, Device device, Describe describe)
    : op_(op),
      variant_(variant),
      device_(device),
      describe_(std::move(describe)),
      hook_(the_hook.load(std::memory_order_relaxed)) {
  BeforeKernels::Thread& thread = *BeforeKernels::Thread::current();
  thread.call_functions();
  if (hook_) hook_->begin(op_, variant_, device_, describe_());
  if (device_.type != DeviceType::cpu) {
    guard_.emplace(device_.index);
    allocator(device_).name_recent(op_);  // the outputs
    runtime::push_range(variant_.data());
  }
  thread.depth.fetch_add(1, std::memory_order_relaxed);  // last: what throws has no destructor
}

Launch::~Launch() {
  BeforeKernels::Thread::current()->depth.fetch_sub(1, std::memory_order_relaxed);
  if (device_.type != DeviceType::cpu) {
    allocator(device_).name_recent(op_);  // what the variant needed beside them
    runtime::pop_range();
  }
  if (hook_) hook_->end();
}

void Launch::finish() const {
  if (device_.type == DeviceType::cpu) return;
  static const bool waits_for_each_launch = [] {
    const char* text = std::getenv("WEFT_CUDA_SYNC");
    return text && std::string_view(text) == "1";
  }();
  try {
    runtime::check_launch(device_.index);
    if (waits_for_each_launch) current_stream(device_).synchronize();
  } catch (const Error& error) {
    WEFT_FAIL("{} on {}: {}", variant_, describe_(), error.what());
  }
}

void fail_no_variant(std::string_view op, const std::string& problem, std::string_view forced,
                     const std::string& known) {
  if (forced.empty()) WEFT_FAIL("{}: no variant fits {}; known variants: {}", op, problem, known);
  WEFT_FAIL("{}: the forced variant {} does not fit {}; known variants: {}", op, forced, problem,
            known);
}

}  // namespace weft::kernels
