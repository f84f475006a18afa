#include "kernels/autotune.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/parallel.h"
#include "core/stream.h"
#include "kernels/device/name.h"
#include "kernels/stopwatch.h"

namespace weft::kernels {
namespace {

using nlohmann::json;
using Path = std::filesystem::path;

constexpr const char* kFormatKey = "weft_autotune";
constexpr int kFormat = 1;

// A variant is measured after a first run, so often and until so many seconds have passed; one that
// takes longer than that is judged by its first run.
constexpr int kMostRuns = 5;
constexpr double kSeconds = 0.05;

/// The cache of a program: the environment's, or none.
Path cache_of_environment() {
  if (const char* const path = std::getenv("WEFT_AUTOTUNE_CACHE")) return path;
  if (const char* const path = std::getenv("XDG_CACHE_HOME"); path && *path) {
    return Path(path) / "weft/autotune.json";
  }
  if (const char* const path = std::getenv("HOME"); path && *path) {
    return Path(path) / ".cache/weft/autotune.json";
  }
  return {};
}

/// A cache file's content; throws std::exception when it is something else.
json parse_cache(const std::string& text) {
  json content = json::parse(text);
  if (content.at(kFormatKey) != kFormat) throw std::runtime_error("it has another format");
  for (const auto& [device, ops] : content.at("devices").items()) {
    for (const auto& [op, problems] : ops.items()) {
      for (const auto& [problem, variant] : problems.items()) {
        static_cast<void>(variant.get_ref<const std::string&>());
      }
    }
  }
  return content;
}

/// The bytes that a tensor's elements lie in, and their copy on the same device.
class Snapshot {
 public:
  explicit Snapshot(const Tensor& tensor) : at_(static_cast<char*>(tensor.raw())) {
    int64_t last = 0;
    for (int d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const int64_t bytes =
        tensor.numel() == 0 ? 0 : (last + 1) * static_cast<int64_t>(tensor.itemsize());
    copy_ = Tensor::empty({bytes}, DType::u8, tensor.device());
    move(copy_.raw(), at_);
  }
  void put_back() const { move(at_, copy_.raw()); }

 private:
  void move(void* to, const void* from) const {
    if (copy_.nbytes() == 0) return;
    if (copy_.device().type == DeviceType::cpu) {
      std::memcpy(to, from, copy_.nbytes());
    } else {
      runtime::copy(copy_.device().index, to, from, copy_.nbytes(),
                    current_stream_handle(copy_.device()));
    }
  }

  char* at_;
  Tensor copy_;
};

/// The least time of a variant; infinite when it fails.
double least_seconds(const Candidates& c, size_t variant) {
  const auto run = [&] { c.run(variant); };
  try {
    const double first = time_run(c.device, run);
    if (first > kSeconds) return first;
    double least = std::numeric_limits<double>::infinity(), total = 0;
    for (int i = 0; i < kMostRuns && total < kSeconds; ++i) {
      const double seconds = time_run(c.device, run);
      total += seconds;
      least = std::min(least, seconds);
    }
    return least;
  } catch (const Error&) {
    return std::numeric_limits<double>::infinity();
  }
}

size_t measure(const Candidates& c) {
  std::vector<Snapshot> before;
  for (const Tensor& tensor : c.written) {
    if (tensor.defined()) before.emplace_back(tensor);
  }
  size_t best = 0;
  double best_seconds = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < c.variants.size(); ++i) {
    const double seconds = least_seconds(c, i);
    if (seconds < best_seconds) {
      best = i;
      best_seconds = seconds;
    }
    for (const Snapshot& snapshot : before) snapshot.put_back();
  }
  return best;
}

bool is_capturing(Device device) {
  return device.type == DeviceType::cuda &&
         runtime::is_capturing(device.index, current_stream_handle(device));
}

thread_local bool is_measuring = false;

struct Measuring {
  Measuring() { is_measuring = true; }
  ~Measuring() { is_measuring = false; }
};

}  // namespace

/// What is known, and where it is kept.
struct AutotuneScope::Tuner {
  explicit Tuner(Path path) : cache(std::move(path)) {
    std::error_code error;
    if (cache.empty() || !std::filesystem::exists(cache, error)) return;
    try {
      known = read();
    } catch (const std::exception& fault) {
      give_up(fault.what());
    }
  }

  json read() const {
    std::ifstream file(cache);
    if (!file) throw std::runtime_error(std::strerror(errno));
    return parse_cache({std::istreambuf_iterator<char>(file), {}});
  }

  void give_up(const std::string& why) {
    std::fprintf(stderr, "weft: warning: the autotune cache %s is not used: %s\n", cache.c_str(),
                 why.c_str());
    cache.clear();
  }

  /// "NVIDIA H200, driver 580.65.06", "AMD EPYC 9R14, 8 threads".
  std::string key_of(Device device) {
    std::string& name = names[to_string(device)];
    if (name.empty()) {
      name = device_name(device);
      const std::string driver = driver_version(device);
      if (!driver.empty()) name += fmt::format(", driver {}", driver);
    }
    if (device.type != DeviceType::cpu) return name;
    return fmt::format("{}, {} threads", name, num_threads());
  }

  /// The index of the variant that won before.
  std::optional<size_t> find(const std::string& device, const Candidates& c) const {
    const auto devices = known.find("devices");
    if (devices == known.end()) return {};
    const auto ops = devices->find(device);
    if (ops == devices->end()) return {};
    const auto problems = ops->find(std::string(c.op));
    if (problems == ops->end()) return {};
    const auto variant = problems->find(c.problem);
    if (variant == problems->end()) return {};
    const auto row = std::ranges::find(c.variants, variant->get_ref<const std::string&>());
    if (row == c.variants.end()) return {};  // of another version of the program
    return static_cast<size_t>(row - c.variants.begin());
  }

  /// Puts the file in place whole, with what other processes have found meanwhile.
  void keep(const std::string& device, const Candidates& c, size_t winner) {
    const auto add = [&](json& to) {
      to[kFormatKey] = kFormat;
      to["devices"][device][std::string(c.op)][c.problem] = std::string(c.variants[winner]);
    };
    add(known);
    if (cache.empty()) return;
    const Path beside = cache.string() + fmt::format(".{}.tmp", getpid());
    try {
      if (cache.has_parent_path()) std::filesystem::create_directories(cache.parent_path());
      json content = std::filesystem::exists(cache) ? read() : json::object();
      add(content);
      std::ofstream file(beside);
      file << content.dump(1) << '\n';
      file.close();
      if (!file) throw std::runtime_error(std::strerror(errno));
      std::filesystem::rename(beside, cache);
    } catch (const std::exception& fault) {
      std::error_code error;
      std::filesystem::remove(beside, error);
      give_up(fault.what());
    }
  }

  std::mutex mutex;
  Path cache;  // empty: none
  json known = json::object();
  std::map<std::string, std::string> names;  // of devices
};

namespace {

std::atomic<bool> is_on{[] {
  const char* const text = std::getenv("WEFT_AUTOTUNE");
  return text && std::string_view(text) == "1";
}()};

}  // namespace

std::shared_ptr<AutotuneScope::Tuner>& AutotuneScope::current() {
  static std::shared_ptr<Tuner> tuner =
      is_on ? std::make_shared<Tuner>(cache_of_environment()) : nullptr;
  return tuner;
}

AutotuneScope::AutotuneScope(Path cache) : previous_(current()) {
  current() = std::make_shared<Tuner>(std::move(cache));
  is_on = true;
}

AutotuneScope::~AutotuneScope() {
  current() = previous_;
  is_on = previous_ != nullptr;
}

std::string operand_key(std::string_view name, const Tensor& operand) {
  if (!operand.defined()) return "";
  std::string key = fmt::format("{} {} {}", name, operand.dtype(), operand.shape());
  for (int64_t stride : operand.strides()) key += fmt::format(" {}", stride);
  // 16 bytes are the most that any copy asks for.
  const auto beyond = reinterpret_cast<uintptr_t>(operand.raw()) % 16;
  return key + (beyond == 0 ? "; " : fmt::format(" +{}; ", beyond));
}

bool autotunes() { return is_on.load(std::memory_order_relaxed); }

size_t choose_by_time(const Candidates& candidates) {
  const std::shared_ptr<AutotuneScope::Tuner> tuner = AutotuneScope::current();
  if (!tuner) return 0;
  std::string device;
  {
    std::lock_guard lock(tuner->mutex);
    device = tuner->key_of(candidates.device);
    if (const auto known = tuner->find(device, candidates)) return *known;
  }
  if (is_measuring || is_capturing(candidates.device)) return 0;
  const size_t winner = [&] {
    const Measuring measuring;
    return measure(candidates);
  }();
  std::lock_guard lock(tuner->mutex);
  // Another thread may have been first: all run what one of them found.
  if (const auto known = tuner->find(device, candidates)) return *known;
  tuner->keep(device, candidates, winner);
  return winner;
}

}  // namespace weft::kernels
