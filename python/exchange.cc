#include "python/exchange.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_set>

#include "autograd/narrow_copies.h"
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "core/allocator.h"
#include "core/graph.h"
#include "core/runtime.h"
#include "core/stream.h"
#include "python/bindings.h"
#include "python/casters.h"

namespace weft::python {
namespace {

// DLPack's structs, which nanobind keeps to itself but for the tensor's.
// https://dmlc.github.io/dlpack/latest/c_api.html
struct Managed {
  nb::dlpack::dltensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct ManagedVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  nb::dlpack::dltensor tensor;
};
constexpr uint64_t kReadOnly = 1, kCopied = 2;
constexpr const char *kName = "dltensor", *kVersionedName = "dltensor_versioned";

using Code = nb::dlpack::dtype_code;
enum : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3 };

struct Format {
  DType dtype;
  Code code;
  uint8_t bits;
  const char* buffer;  // of the buffer protocol; null: it has none
  /// Of those that NumPy knows by ml_dtypes alone: another one of the same size.
  std::optional<DType> carrier = {};
};
// tf32 is missing: nobody else stores it.
constexpr Format kFormats[] = {
    {DType::f64, Code::Float, 64, "d"},
    {DType::f32, Code::Float, 32, "f"},
    {DType::f16, Code::Float, 16, "e"},
    {DType::bf16, Code::Bfloat, 16, nullptr, DType::f16},
    {DType::f8e4m3, Code::Float8_E4M3FN, 8, nullptr, DType::u8},
    {DType::f8e5m2, Code::Float8_E5M2, 8, nullptr, DType::u8},
    {DType::i64, Code::Int, 64, "q"},
    {DType::i32, Code::Int, 32, "i"},
    {DType::u8, Code::UInt, 8, "B"},
    {DType::boolean, Code::Bool, 8, "?"},
};

const Format* find_format(DType dtype) {
  const Format* const found = std::ranges::find(kFormats, dtype, &Format::dtype);
  return found == std::end(kFormats) ? nullptr : found;
}

template <class... Parts>
[[noreturn]] void refuse(fmt::format_string<Parts...> reason, Parts&&... parts) {
  throw nb::buffer_error(fmt::format(reason, std::forward<Parts>(parts)...).c_str());
}

// -------------------------------------------------------------------------------------------------
// Read-only memory. Storage knows nothing of it, for Weft makes none: those that came in so are
// listed here as long as they live.

struct ReadOnlyStorages {
  std::mutex mutex;
  std::unordered_set<const Storage*> storages;
};
ReadOnlyStorages& read_only_storages() {
  static auto& all = *new ReadOnlyStorages;
  return all;
}

/// Releases memory that is used on streams its owner does not know of, once its device has done all
/// work. Nobody may wait for a device while a graph is captured there: what is let go of meanwhile
/// is released with what comes next.
void release_when_done(Device device, std::function<void()> release) {
  if (device.type == DeviceType::cpu) return release();
  static std::mutex mutex;
  static auto& all = *new std::vector<std::pair<Device, std::function<void()>>>;
  std::vector<std::pair<Device, std::function<void()>>> ready;
  {
    const std::lock_guard lock(mutex);
    all.emplace_back(device, std::move(release));
    if (!DeviceGraph::capturing()) ready.swap(all);
  }
  for (auto& [on, release] : ready) {
    try {
      synchronize(on);
    } catch (const Error&) {
      // Another thread captures. A device that has failed keeps what it works on; the next call
      // that may throw says why.
      const std::lock_guard lock(mutex);
      all.emplace_back(on, std::move(release));
      continue;
    }
    release();
  }
}

/// A tensor on `data`, the first element of that shape and those strides. `release` runs, with the
/// interpreter's lock, when nobody refers to the memory any more and no kernel uses it.
Tensor wrap(void* data, const Shape& shape, const Strides& strides, DType dtype, Device device,
            bool read_only, std::function<void()> release) {
  const Span span = span_of(shape, strides);
  const auto size = static_cast<int64_t>(itemsize(dtype));
  if (reinterpret_cast<uintptr_t>(data) % size != 0) {
    release();
    refuse("the memory, at {}, is not aligned for {}", data, dtype);
  }
  char* const first = static_cast<char*>(data) + span.first * size;
  const auto listed = std::make_shared<const Storage*>(nullptr);  // where it is read-only
  auto storage = std::make_shared<Storage>(
      first, span.size * size, device, [listed, device, release = std::move(release)]() mutable {
        if (*listed) {
          const std::lock_guard lock(read_only_storages().mutex);
          read_only_storages().storages.erase(*listed);
        }
        release_when_done(device, [release = std::move(release)] {
          if (!Py_IsInitialized()) return;  // others' memory went with the interpreter
          const nb::gil_scoped_acquire lock;
          release();
        });
      });
  if (read_only) {
    const std::lock_guard lock(read_only_storages().mutex);
    *listed = storage.get();
    read_only_storages().storages.insert(storage.get());
  }
  return Tensor::view_of(std::move(storage), shape, strides, -span.first, dtype);
}

/// The same bytes as elements of another dtype of the same size.
Tensor reinterpret(const Tensor& x, DType dtype) {
  return Tensor::view_of(x.storage(), x.shape(), x.strides(), x.offset(), dtype);
}

// -------------------------------------------------------------------------------------------------
// Taking over

Device device_of(const nb::dlpack::device& device) {
  switch (device.device_type) {
    case kCpu:
    case kCudaHost:
      return {};
    case kCuda:
      return {DeviceType::cuda, device.device_id};
    default:
      refuse("from_dlpack: expected memory of a CPU or of CUDA, got DLPack's device type {}",
             device.device_type);
  }
}

Tensor import_dltensor(const nb::dlpack::dltensor& t, bool read_only,
                       std::function<void()> release) {
  std::optional<DType> dtype;
  for (const Format& f : kFormats) {
    if (t.dtype.code == static_cast<uint8_t>(f.code) && t.dtype.bits == f.bits &&
        t.dtype.lanes == 1)
      dtype = f.dtype;
  }
  if (!dtype) {
    refuse("from_dlpack: no dtype of Weft has DLPack's code {} with {} bits, {} lanes",
           t.dtype.code, t.dtype.bits, t.dtype.lanes);
  }
  if (t.ndim < 0 || t.ndim > kMaxDims)
    refuse("from_dlpack: at most {} dimensions, got {}", kMaxDims, t.ndim);
  const Shape shape(std::span<const int64_t>(t.shape, t.ndim));
  if (!t.data && std::ranges::find(shape, 0) == shape.end())
    refuse("from_dlpack: {} elements at no address", shape);
  const Strides strides =
      t.strides ? Strides(std::span<const int64_t>(t.strides, t.ndim)) : contiguous_strides(shape);
  return wrap(static_cast<char*>(t.data) + t.byte_offset, shape, strides, *dtype,
              device_of(t.device), read_only, std::move(release));
}

/// The capsule's struct; the capsule counts as used from now on. The struct's deleter runs when the
/// tensor goes, or here when it cannot be had.
template <class Struct>
Struct* take(nb::handle capsule, const char* name, const char* used) {
  auto* const managed = static_cast<Struct*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (!managed || PyCapsule_SetName(capsule.ptr(), used) != 0) throw nb::python_error();
  return managed;
}

template <class Struct>
Tensor import_managed(Struct* managed, bool read_only) {
  const auto release = [managed] {
    if (managed->deleter) managed->deleter(managed);
  };
  std::shared_ptr<void> once(nullptr, [release](void*) { release(); });
  return import_dltensor(managed->tensor, read_only, [once]() mutable { once.reset(); });
}

Tensor import_capsule(nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedName)) {
    auto* const managed =
        take<ManagedVersioned>(capsule, kVersionedName, "used_dltensor_versioned");
    if (managed->major != 1) {
      const uint32_t major = managed->major;
      if (managed->deleter) managed->deleter(managed);
      refuse("from_dlpack: expected version 1 of DLPack, got {}", major);
    }
    return import_managed(managed, managed->flags & kReadOnly);
  }
  if (PyCapsule_IsValid(capsule.ptr(), kName))
    return import_managed(take<Managed>(capsule, kName, "used_dltensor"), false);
  refuse("from_dlpack: the capsule holds no DLPack tensor, or was used before");
}

const Format& exported_format(const Tensor& x);

Tensor from_dlpack(nb::handle object, const MaybeDevice& device, std::optional<bool> copy) {
  if (!nb::hasattr(object, "__dlpack__") && !PyCapsule_CheckExact(object.ptr())) {
    throw type_error("from_dlpack: {} has no __dlpack__", type_of(object));
  }
  Tensor x;
  if (PyCapsule_CheckExact(object.ptr())) {
    x = import_capsule(object);
    if (const Device on = x.device(); on.type == DeviceType::cuda) {
      // Who made it was not told of our stream: behind CUDA's legacy default one, where others work
      // unless they are told otherwise, and which ours does not wait for by itself.
      Event made(on);
      runtime::record(on.index, made.handle(), nullptr);
      current_stream(on).wait(made);
    }
  } else if (nb::isinstance<Tensor>(object)) {
    // On its own storage, so that each side's changes count for the other, too.
    x = detach(nb::cast<Tensor>(object));
    exported_format(nb::cast<Tensor>(object));
  } else {
    nb::dict options;
    const auto [type, index] = nb::cast<std::pair<int, int>>(object.attr("__dlpack_device__")());
    if (type == kCuda) {
      const void* const stream = current_stream_handle({DeviceType::cuda, index});
      // 1 is the default stream; 0 would be ambiguous.
      options["stream"] = stream ? reinterpret_cast<uintptr_t>(stream) : 1;
    }
    nb::dict versioned;
    versioned.update(options);
    versioned["max_version"] = nb::make_tuple(1, 1);
    nb::object capsule;
    try {
      capsule = object.attr("__dlpack__")(**versioned);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = object.attr("__dlpack__")(**options);  // of before version 1
    }
    x = import_capsule(capsule);
  }
  if (device && x.device() != *device) {
    if (copy == false) refuse("from_dlpack: {} cannot be on {} without a copy", x, *device);
    return ops::to(x, *device);
  }
  return copy == true ? ops::clone(x) : x;
}

Tensor import_buffer(nb::handle object) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_STRIDES | PyBUF_FORMAT) != 0)
    throw nb::python_error();
  std::shared_ptr<Py_buffer> held(buffer.release(), [](Py_buffer* b) {
    PyBuffer_Release(b);
    delete b;
  });
  const std::string_view format = held->format ? held->format : "B";
  const char order = format[0];
  const std::string_view letter = format.substr(order == '@' || order == '=' || order == '<');
  std::optional<DType> dtype;
  for (const Format& f : kFormats) {
    const bool is_long = f.dtype == DType::i64 && letter == "l";  // NumPy's letter on Linux
    if (is_long || (f.buffer && letter == f.buffer)) dtype = f.dtype;
  }
  if (!dtype || static_cast<size_t>(held->itemsize) != itemsize(*dtype)) {
    throw type_error("no dtype of Weft is the buffer's format \"{}\"", format);
  }
  if (held->ndim > kMaxDims) refuse("at most {} dimensions, got {}", kMaxDims, held->ndim);
  Shape shape, strides;
  for (int i = 0; i < held->ndim; ++i) {
    shape.push_back(held->shape[i]);
    if (held->strides[i] % held->itemsize != 0 && held->shape[i] > 1) {
      refuse("a stride of {} bytes is no multiple of the {} bytes of {}", held->strides[i],
             held->itemsize, *dtype);
    }
    strides.push_back(held->strides[i] / held->itemsize);
  }
  void* const data = held->buf;
  const bool read_only = held->readonly;
  return wrap(data, shape, strides, *dtype, {}, read_only, [held]() mutable { held.reset(); });
}

// -------------------------------------------------------------------------------------------------
// Handing on

const Format& exported_format(const Tensor& x) {
  const Format* const format = find_format(x.dtype());
  if (!format) refuse("{}: only Weft has this dtype; cast it to float32", x);
  if (x.requires_grad()) refuse("{} requires a gradient, which others do not see; use detach()", x);
  return *format;
}

/// An emulated GPU's memory is the CPU's. All CPUs of Weft are one.
nb::dlpack::device dlpack_device(Device device) {
  const bool is_cuda = device.type == DeviceType::cuda && !runtime::is_emulated();
  return is_cuda ? nb::dlpack::device{kCuda, device.index} : nb::dlpack::device{kCpu, 0};
}

/// What a consumer refers to: the tensor, and its sizes in DLPack's form.
struct Export {
  Tensor tensor;
  Shape shape, strides;
  bool is_on_default_stream;
};

nb::dlpack::dltensor describe_export(Export& e) {
  const Format& format = exported_format(e.tensor);
  nb::dlpack::dltensor t;
  t.data = e.tensor.numel() == 0 ? nullptr : e.tensor.raw();
  t.device = dlpack_device(e.tensor.device());
  t.ndim = e.tensor.dim();
  t.dtype = {static_cast<uint8_t>(format.code), format.bits, 1};
  t.shape = e.shape.begin();
  t.strides = e.strides.begin();
  return t;
}

/// `is_on_default_stream`: whether the consumer said that it works there.
template <class Struct>
Struct* manage(const Tensor& x, bool is_on_default_stream) {
  forbid_narrow_copies(x);  // consumers do not say what they change
  auto e = std::make_unique<Export>(Export{x, x.shape(), x.strides(), is_on_default_stream});
  auto managed = std::make_unique<Struct>();
  managed->tensor = describe_export(*e);
  managed->context = e.release();
  managed->deleter = [](Struct* self) {
    const std::shared_ptr<Export> e(static_cast<Export*>(self->context));
    delete self;
    if (!e->is_on_default_stream) release_when_done(e->tensor.device(), [e] {});
  };
  return managed.release();
}

template <class Struct>
nb::object capsule_of(Struct* managed, const char* name) {
  // One that nobody used frees what it holds.
  PyObject* const capsule = PyCapsule_New(managed, name, [](PyObject* self) {
    const char* const current = PyCapsule_GetName(self);
    if (!current || std::string_view(current).starts_with("used_")) return;
    auto* const unused = static_cast<Struct*>(PyCapsule_GetPointer(self, current));
    unused->deleter(unused);
  });
  if (!capsule) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

/// Makes the consumer's stream wait for what was submitted here, and the tensor's memory, when it
/// is freed, for CUDA's legacy default stream, which waits for all others that do not forgo it.
/// Whether the consumer's is such a stream: its own may be gone by then.
bool order_streams(const Tensor& x, nb::handle stream) {
  const Device device = x.device();
  if (device.type == DeviceType::cpu) {
    if (!stream.is_none()) refuse("__dlpack__: a CPU has no streams; expected stream=None");
    return true;
  }
  allocator(device).record_use(x.storage()->data(), nullptr);
  const auto handle = stream.is_none() ? intptr_t{1} : nb::cast<intptr_t>(stream);
  if (handle == -1) return false;
  if (handle == 0) refuse("__dlpack__: stream 0 is ambiguous; 1 is CUDA's legacy default stream");
  Event ready(device);
  ready.record(current_stream(device));
  runtime::wait(device.index, reinterpret_cast<runtime::StreamHandle>(handle), ready.handle());
  return handle == 1 || handle == 2;  // the legacy and the thread's default stream
}

nb::object to_dlpack(const Tensor& x, nb::handle stream,
                     std::optional<std::pair<int, int>> max_version,
                     std::optional<std::pair<int, int>> dl_device, std::optional<bool> copy) {
  exported_format(x);
  Tensor y = x;
  bool is_copy = false;
  if (dl_device) {
    const Device target = device_of({dl_device->first, dl_device->second});
    if (target != x.device()) {
      if (copy == false) refuse("__dlpack__: {} cannot be on {} without a copy", x, target);
      y = ops::to(x, target);
      is_copy = true;
    }
  }
  if (copy == true && !is_copy) {
    y = ops::clone(x);
    is_copy = true;
  }
  // A copy to the CPU has waited.
  const bool is_ordered = y.device() != x.device() && y.device().type == DeviceType::cpu;
  const bool is_on_default_stream = is_ordered || order_streams(y, stream);
  const bool read_only = is_read_only(y);
  if (!max_version || max_version->first < 1) {
    if (read_only) refuse("{} is read-only, which DLPack cannot say before version 1", y);
    return capsule_of(manage<Managed>(y, is_on_default_stream), kName);
  }
  ManagedVersioned* const managed = manage<ManagedVersioned>(y, is_on_default_stream);
  managed->major = nb::dlpack::major_version;
  managed->minor = nb::dlpack::minor_version;
  managed->flags = (read_only ? kReadOnly : 0) | (is_copy ? kCopied : 0);
  return capsule_of(managed, kVersionedName);
}

/// What the buffer protocol's consumer refers to.
struct BufferExport {
  Tensor tensor;
  Py_ssize_t shape[kMaxDims], strides[kMaxDims];
};

int get_buffer(PyObject* self, Py_buffer* buffer, int flags) noexcept {
  buffer->obj = nullptr;
  try {
    const auto& x = nb::cast<const Tensor&>(nb::handle(self));
    const Format& format = exported_format(x);
    if (!format.buffer) refuse("{}: the buffer protocol has no such format", x);
    if (x.device().type != DeviceType::cpu) refuse("{} is not in the CPU's memory; use cpu()", x);
    const bool read_only = is_read_only(x);
    if (read_only && (flags & PyBUF_WRITABLE)) refuse("{} is read-only", x);
    const bool takes_strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
    if (!takes_strides && !x.is_contiguous()) refuse("{} is not contiguous", x);
    if (!read_only) forbid_narrow_copies(x);
    auto e = std::make_unique<BufferExport>();
    e->tensor = x;
    for (int i = 0; i < x.dim(); ++i) {
      e->shape[i] = x.shape()[i];
      e->strides[i] = x.strides()[i] * static_cast<int64_t>(x.itemsize());
    }
    static char nothing[1];
    buffer->buf = x.numel() == 0 ? nothing : x.raw();
    buffer->len = static_cast<Py_ssize_t>(x.nbytes());
    buffer->itemsize = static_cast<Py_ssize_t>(x.itemsize());
    buffer->readonly = read_only;
    buffer->ndim = x.dim();
    buffer->format = flags & PyBUF_FORMAT ? const_cast<char*>(format.buffer) : nullptr;
    buffer->shape = flags & PyBUF_ND ? e->shape : nullptr;
    buffer->strides = takes_strides ? e->strides : nullptr;
    buffer->suboffsets = nullptr;
    buffer->internal = e.release();
    buffer->obj = nb::handle(self).inc_ref().ptr();
    return 0;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
    return -1;
  }
}

void release_buffer(PyObject*, Py_buffer* buffer) noexcept {
  delete static_cast<BufferExport*>(buffer->internal);
}

/// A NumPy array on the tensor's memory.
nb::object to_numpy(const Tensor& x) {
  if (x.device().type != DeviceType::cpu) {
    throw type_error("numpy: {} is not in the CPU's memory; use cpu()", x);
  }
  const Format& format = exported_format(x);
  const nb::module_ numpy = nb::module_::import_("numpy");
  if (format.buffer) {
    PyObject* const memory = PyMemoryView_FromObject(nb::cast(x).ptr());
    if (!memory) throw nb::python_error();
    return numpy.attr("asarray")(nb::steal(memory));
  }
  const nb::object type =
      nb::module_::import_("ml_dtypes").attr(nb::str(long_name(x.dtype()).data()));
  return to_numpy(reinterpret(detach(x), *format.carrier)).attr("view")(type);
}

nb::object to_array(const Tensor& x, nb::object dtype, nb::object copy) {
  nb::object array = to_numpy(x);
  const bool converts = !dtype.is_none() && !array.attr("dtype").equal(dtype);
  if (converts && !copy.is_none() && !nb::cast<bool>(copy))
    throw value_error("{} cannot have another dtype without a copy", x);
  if (converts) return array.attr("astype")(dtype);
  return !copy.is_none() && nb::cast<bool>(copy) ? array.attr("copy")() : array;
}

/// The elements in row-major order.
nb::bytes to_bytes(const Tensor& x) {
  const Tensor values = ops::contiguous(ops::to(detach(x), Device{}));
  return nb::bytes(values.numel() == 0 ? "" : values.raw(), values.nbytes());
}

using State = std::tuple<nb::bytes, Shape, DType, bool>;

State get_state(const Tensor& x) {
  WEFT_CHECK(!x.requires_grad() || x.autograd()->requires_grad,
             "pickle: {} is the result of a recorded op; use detach()", x);
  return {to_bytes(x), x.shape(), x.dtype(), x.requires_grad()};
}

void set_state(Tensor& self, const State& state) {
  const auto& [bytes, shape, dtype, requires_grad] = state;
  Tensor x = Tensor::empty(shape, dtype);
  WEFT_CHECK(bytes.size() == x.nbytes(), "pickle: {} takes {} bytes, got {}", x, x.nbytes(),
             bytes.size());
  WEFT_CHECK(dtype != DType::boolean ||
                 std::ranges::all_of(
                     std::string_view(static_cast<const char*>(bytes.data()), bytes.size()),
                     [](char c) { return c == 0 || c == 1; }),
             "pickle: {}: a bool that is neither 0 nor 1", x);
  if (x.nbytes() > 0) std::memcpy(x.raw(), bytes.data(), x.nbytes());
  if (requires_grad) x.set_requires_grad(true);
  new (&self) Tensor(x);
}

}  // namespace

bool is_read_only(const Tensor& x) {
  if (x.storage()->is_owner()) return false;
  const std::lock_guard lock(read_only_storages().mutex);
  return read_only_storages().storages.contains(x.storage().get());
}

void check_writable(std::string_view op, const Tensor& x) {
  WEFT_CHECK(!is_read_only(x), "{}: {} lies in read-only memory; clone() it first", op, x);
}

Tensor import_array(nb::handle object) {
  if (nb::isinstance<Tensor>(object)) return nb::cast<Tensor>(object);
  if (nb::hasattr(object, "dtype") && nb::hasattr(object, "__array_interface__")) {
    const auto type = nb::cast<std::string>(nb::str(object.attr("dtype").attr("name")));
    for (const Format& f : kFormats) {
      // NumPy knows it by ml_dtypes alone and exports no buffer of it.
      if (f.carrier && type == long_name(f.dtype))
        return reinterpret(import_buffer(object.attr("view")(long_name(*f.carrier))), f.dtype);
    }
  }
  if (PyObject_CheckBuffer(object.ptr())) return import_buffer(object);
  if (nb::hasattr(object, "__dlpack__")) return from_dlpack(object, {}, std::nullopt);
  if (nb::hasattr(object, "__array__")) return import_buffer(object.attr("__array__")());
  throw type_error("expected numbers or an array, got a {}", type_of(object));
}

PyType_Slot* buffer_slots() {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                                {0, nullptr}};
  return slots;
}

void bind_exchange(nb::module_& m, nb::class_<Tensor>& tensor) {
  m.def("from_dlpack", &from_dlpack, "x"_a, nb::kw_only(), "device"_a = nb::none(),
        "copy"_a = nb::none(),
        "A tensor on the memory of another library's. A copy is made where copy is True, or where "
        "the device differs; copy=False refuses it.");
  m.def("from_numpy", &import_array, "array"_a, "A tensor on the array's memory.");
  tensor
      .def("__dlpack__", &to_dlpack, nb::kw_only(), "stream"_a = nb::none(),
           "max_version"_a = nb::none(), "dl_device"_a = nb::none(), "copy"_a = nb::none())
      .def("__dlpack_device__",
           [](const Tensor& x) {
             const nb::dlpack::device device = dlpack_device(x.device());
             return std::pair(device.device_type, device.device_id);
           })
      .def("numpy", &to_numpy, "A NumPy array on the same memory.")
      .def("__array__", &to_array, "dtype"_a = nb::none(), "copy"_a = nb::none())
      .def_prop_ro("is_read_only", &is_read_only,
                   "Whether the memory is another library's, which forbids writing.")
      .def("__getstate__", &get_state)
      .def("__setstate__", &set_state);
}

}  // namespace weft::python
