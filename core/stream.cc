#include "core/stream.h"

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/allocator.h"

namespace weft {

namespace {

/// A handle of the device, null on the CPU, that its last owner destroys.
std::shared_ptr<void> own(Device device, void* (*create)(int), void (*destroy)(int, void*)) {
  require_device(device);
  if (device.type == DeviceType::cpu) return nullptr;
  return {create(device.index), [=](void* handle) { destroy(device.index, handle); }};
}

/// The stream that all threads start with; never destroyed, as allocators are not.
const Stream& shared_stream(Device device) {
  static std::mutex mutex;
  static auto& streams = *new std::map<std::pair<DeviceType, int>, Stream>;
  std::lock_guard lock(mutex);
  const std::pair key = {device.type, device.index};
  auto entry = streams.find(key);
  if (entry == streams.end()) entry = streams.emplace(key, Stream(device)).first;
  return entry->second;
}

/// By device index, this thread's.
thread_local std::vector<std::optional<Stream>> current_streams;

Stream& current_cuda_stream(Device device) {
  const size_t index = static_cast<size_t>(device.index);
  if (current_streams.size() <= index) current_streams.resize(index + 1);
  std::optional<Stream>& stream = current_streams[index];
  if (!stream) stream = shared_stream(device);
  return *stream;
}

/// Another stream may get this one's handle, and must not get its blocks while work uses them.
void destroy_stream(int index, runtime::StreamHandle stream) {
  const Device device{DeviceType::cuda, index};
  try {
    runtime::synchronize(index, stream);
    allocator(device).let_go(stream, shared_stream(device).handle());
  } catch (const std::exception&) {
    // A device that has failed: the next call that may throw says why.
  }
  runtime::destroy_stream(index, stream);
}

}  // namespace

Stream::Stream(Device device)
    : device_(device), handle_(own(device, runtime::create_stream, destroy_stream)) {}

void Stream::synchronize() const {
  if (handle()) runtime::synchronize(device().index, handle());
}

void Stream::wait(const Event& event) const {
  if (handle() && event.handle()) runtime::wait(device().index, handle(), event.handle());
}

Event::Event(Device device)
    : device_(device), handle_(own(device, runtime::create_event, runtime::destroy_event)) {}
void Event::record(const Stream& stream) {
  WEFT_CHECK(stream.device() == device_, "an event of {} cannot be recorded on a stream of {}",
             device_, stream.device());
  if (handle_) runtime::record(device_.index, handle(), stream.handle());
}
bool Event::is_done() const { return !handle_ || runtime::is_done(device_.index, handle()); }
void Event::synchronize() const {
  if (handle_) runtime::synchronize_event(device_.index, handle());
}
double Event::ms_since(const Event& earlier) const {
  WEFT_CHECK(handle_ && earlier.handle_ && device_ == earlier.device_,
             "time passes between two events of one CUDA device, got {} and {}", earlier.device_,
             device_);
  return runtime::elapsed_ms(device_.index, earlier.handle(), handle());
}

Stream current_stream(Device device) {
  return device.type == DeviceType::cpu ? shared_stream(device) : current_cuda_stream(device);
}

runtime::StreamHandle current_stream_handle(Device device) {
  return device.type == DeviceType::cpu ? nullptr : current_cuda_stream(device).handle();
}

StreamGuard::StreamGuard(const Stream& stream) : previous_(current_stream(stream.device())) {
  if (stream.handle()) current_cuda_stream(stream.device()) = stream;
}
StreamGuard::~StreamGuard() {
  if (previous_.handle()) current_cuda_stream(previous_.device()) = previous_;
}

void synchronize(Device device) {
  if (device.type == DeviceType::cuda) runtime::synchronize(device.index);
}

}  // namespace weft
