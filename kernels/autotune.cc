#include "kernels/autotune.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
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
#include "kernels/device/probe.h"

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
  for (const auto& [variable, below] : {std::pair{"XDG_CACHE_HOME", "weft/autotune.json"},
                                        std::pair{"HOME", ".cache/weft/autotune.json"}}) {
    if (const char* const path = std::getenv(variable); path && *path) return Path(path) / below;
  }
  return {};
}

/// The winners by device, op and problem, as the file has them.
using Winners = std::map<std::string, std::map<std::string, std::map<std::string, std::string>>>;

/// A cache file's content; throws std::exception when it is something else.
Winners read_cache(const Path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::strerror(errno));
  const json content = json::parse(file);
  if (content.at(kFormatKey) != kFormat) throw std::runtime_error("it has another format");
  return content.at("devices").get<Winners>();
}

/// The bytes that a tensor's elements lie in, and their copy on the same device.
class Snapshot {
 public:
  explicit Snapshot(const Tensor& tensor) : at_(tensor.raw()) {
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
    const Device device = copy_.device();
    if (copy_.nbytes() == 0) return;
    if (device.type == DeviceType::cpu) {
      std::memcpy(to, from, copy_.nbytes());
    } else {
      runtime::copy(device.index, to, from, copy_.nbytes(), current_stream_handle(device));
    }
  }

  void* at_;
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

thread_local bool is_measuring = false;

struct Measuring {
  Measuring() { is_measuring = true; }
  ~Measuring() { is_measuring = false; }
};

/// The index of the fastest variant.
size_t measure(const Candidates& c) {
  const Measuring measuring;
  std::vector<Snapshot> before;
  for (const Tensor& tensor : c.written) {
    if (tensor.defined()) before.emplace_back(tensor);
  }
  std::vector<double> seconds;
  for (size_t i = 0; i < c.variants.size(); ++i) {
    seconds.push_back(least_seconds(c, i));
    for (const Snapshot& snapshot : before) snapshot.put_back();
  }
  return std::ranges::min_element(seconds) - seconds.begin();
}

bool is_capturing(Device device) {
  return device.type == DeviceType::cuda &&
         runtime::is_capturing(device.index, current_stream_handle(device));
}

std::atomic<bool> is_on{[] {
  const char* const text = std::getenv("WEFT_AUTOTUNE");
  return text && std::string_view(text) == "1";
}()};

}  // namespace

/// What is known, and where it is kept.
struct AutotuneScope::Tuner {
  explicit Tuner(Path path) : cache(std::move(path)) {
    std::error_code error;
    if (cache.empty() || !std::filesystem::exists(cache, error)) return;
    try {
      known = read_cache(cache);
    } catch (const std::exception& fault) {
      give_up(fault.what());
    }
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
  std::optional<size_t> find(const std::string& device, const Candidates& c) {
    const auto row = std::ranges::find(c.variants, known[device][std::string(c.op)][c.problem]);
    if (row == c.variants.end()) return {};  // not known, or of another version of the program
    return static_cast<size_t>(row - c.variants.begin());
  }

  /// Puts the file in place whole, with what other processes have found meanwhile.
  void keep(const std::string& device, const Candidates& c, size_t winner) {
    const auto add = [&](Winners& to) {
      to[device][std::string(c.op)][c.problem] = c.variants[winner];
    };
    add(known);
    if (cache.empty()) return;
    const Path beside = cache.string() + fmt::format(".{}.tmp", getpid());
    try {
      if (cache.has_parent_path()) std::filesystem::create_directories(cache.parent_path());
      Winners all = std::filesystem::exists(cache) ? read_cache(cache) : Winners();
      add(all);
      std::ofstream file(beside);
      file << json{{kFormatKey, kFormat}, {"devices", all}}.dump(1) << '\n';
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
  Winners known;
  std::map<std::string, std::string> names;  // of devices
};

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

double time_run(Device device, const std::function<void()>& run) {
  if (device.type == DeviceType::cpu) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  const Stream stream = current_stream(device);
  Event begin(device), end(device);
  begin.record(stream);
  run();
  end.record(stream);
  end.synchronize();
  return 1e-3 * end.ms_since(begin);
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
  const size_t winner = measure(candidates);
  std::lock_guard lock(tuner->mutex);
  // Another thread may have been first: all run what one of them found.
  if (const auto known = tuner->find(device, candidates)) return *known;
  tuner->keep(device, candidates, winner);
  return winner;
}

}  // namespace weft::kernels
