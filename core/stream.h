// Streams: the order in which a device works. Work of one stream runs in the order of submission,
// beside that of others; events tie them together.
//
//   Stream copies(device);
//   { StreamGuard guard(copies); next = to_device(batch, device); }
//   Event ready(device);
//   ready.record(copies);
//   current_stream(device).wait(ready);
//   // The memory is the copies' stream's: it must not be filled again before this one is through.
//   allocator(device).record_use(next.raw(), current_stream_handle(device));
//
// Every thread has a current stream on each device, at first one that all threads share.
#pragma once

#include <memory>

#include "core/device.h"
#include "core/runtime.h"

namespace weft {

class Event;

/// A handle on a stream. The last one waits for its work and destroys it; memory that was allocated
/// on it is then that of the stream that all threads share.
class Stream {
 public:
  /// A new stream.
  explicit Stream(Device device);

  Device device() const { return device_; }
  runtime::StreamHandle handle() const { return handle_.get(); }  // nullptr on the CPU
  /// Waits in this thread until all submitted work is done; throws Error if some of it failed.
  void synchronize() const;
  /// Work submitted from now on waits for the event.
  void wait(const Event& event) const;

  friend bool operator==(const Stream&, const Stream&) = default;

 private:
  Device device_;
  std::shared_ptr<void> handle_;
};

/// A point in a stream's work, by a handle that the last one destroys.
class Event {
 public:
  explicit Event(Device device);

  void record(const Stream& stream);
  bool is_done() const;
  void synchronize() const;
  /// Milliseconds from `earlier` to this event, both done.
  double ms_since(const Event& earlier) const;
  runtime::EventHandle handle() const { return handle_.get(); }

 private:
  Device device_;
  std::shared_ptr<void> handle_;
};

/// This thread's current stream on the device: where kernels and copies go.
Stream current_stream(Device device);
runtime::StreamHandle current_stream_handle(Device device);

/// Makes a stream the current one of its device in this thread while it lives.
class StreamGuard {
 public:
  explicit StreamGuard(const Stream& stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream previous_;
};

/// Waits for all work of all streams of the device.
void synchronize(Device device);

}  // namespace weft
