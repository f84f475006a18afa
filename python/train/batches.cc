#include "python/train/batches.h"

#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "data/tensors/tensor_dataset.h"
#include "python/containers.h"
#include "python/exchange.h"
#include "train/shared_loader.h"

namespace weft::python {
namespace {

using train::Fabric;

bool is_tensor(nb::handle part) {
  return nb::isinstance<Tensor>(part) || nb::hasattr(part, "__dlpack__");
}

/// What setup_dataloader() returns of an iterable: each iteration is one of that.
class SharedBatches {
 public:
  /// One pass.
  class Pass {
   public:
    Pass(const Fabric& fabric, nb::object batches, bool deals_out, bool moves)
        : source_(std::move(batches)), shared_(fabric.share(source_, deals_out, moves)) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    /// The interpreter's lock is held: a batch is Python's objects.
    nb::object next() {
      std::optional<ObjectBatch> batch;
      if (!is_done_) batch = shared_.next();
      is_done_ = !batch;
      if (is_done_) throw nb::stop_iteration();
      return std::move(batch->object);
    }

   private:
    ObjectSource source_;
    train::SharedLoader<ObjectSource> shared_;
    bool is_done_ = false;
  };

  SharedBatches(nb::handle_t<Fabric> fabric, nb::handle batches, bool deals_out, bool moves)
      : fabric_(nb::borrow(fabric)),
        batches_(nb::borrow(batches)),
        deals_out_(deals_out),
        moves_(moves) {
    get().data_size();  // before launch() there are no ranks to share with
  }
  std::unique_ptr<Pass> begin() const {
    return std::make_unique<Pass>(get(), batches_, deals_out_, moves_);
  }
  int64_t size() const {
    const bool takes_turns = deals_out_ && !get().options().split_batches;
    const int64_t in_turn = takes_turns ? get().data_devices() : 1;
    return (static_cast<int64_t>(nb::len(batches_)) + in_turn - 1) / in_turn;
  }

 private:
  const Fabric& get() const { return *nb::cast<Fabric*>(fabric_); }

  nb::object fabric_, batches_;
  bool deals_out_, moves_;
};

/// A class of its own: what has a __len__ is asked for it wherever its truth is.
struct SizedSharedBatches : SharedBatches {
  using SharedBatches::SharedBatches;
};

}  // namespace

nb::object with_each_tensor(nb::handle part, const std::function<void(Tensor&)>& f) {
  return with_each_leaf(part, [&](nb::handle leaf) {
    if (!is_tensor(leaf)) return nb::borrow(leaf);
    Tensor x = import_array(leaf);
    f(x);
    return nb::cast(x);
  });
}

nb::object with_each_part(nb::handle batch, int64_t rows, const std::function<void(Tensor&)>& f,
                          const std::function<void(ObjectPart&)>& other) {
  // Of two images and labels a list is two tensors, not an entry for each of two samples.
  const auto is_of_rows = [&](nb::handle list) {
    bool has_tensors = false;
    for_each_leaf(list, [&](nb::handle leaf) { has_tensors = has_tensors || is_tensor(leaf); });
    return !has_tensors && rows_in({nb::borrow(list)}) == rows;
  };
  const auto make = [&](nb::handle leaf) {
    if (is_tensor(leaf)) {
      Tensor x = import_array(leaf);
      f(x);
      return nb::cast(x);
    }
    ObjectPart part = {nb::borrow(leaf)};
    other(part);
    return part.object;
  };
  return with_each_leaf(batch, make, is_of_rows);
}

int64_t rows_in(const ObjectPart& part) {
  const PyObject* const object = part.object.ptr();
  // A namedtuple is a record, whatever its fields.
  const bool is_list = PyList_CheckExact(object) || PyTuple_CheckExact(object);
  return is_list ? static_cast<int64_t>(nb::len(part.object)) : -1;
}

ObjectPart joined(const std::vector<ObjectPart>& pieces) {
  ObjectPart all = pieces.at(0);
  for (size_t i = 1; i < pieces.size(); ++i) all.object = all.object + pieces[i].object;
  return all;
}

void keep_rows(ObjectPart& part, int64_t begin, int64_t count) {
  part.object = part.object[nb::slice(begin, begin + count, int64_t{1})];
}

bool is_same(const ObjectPart& a, const ObjectPart& b) {
  const int equal = PyObject_RichCompareBool(a.object.ptr(), b.object.ptr(), Py_EQ);
  if (equal < 0) throw nb::python_error();
  return equal == 1;
}

std::string text_of(const ObjectPart& part) { return nb::repr(part.object).c_str(); }

std::optional<ObjectBatch> ObjectSource::next() {
  if (!iterator_.is_valid()) {
    iterator_ = nb::steal(PyObject_GetIter(batches_.ptr()));
    if (!iterator_.is_valid()) throw nb::python_error();
  }
  nb::object batch = nb::steal(PyIter_Next(iterator_.ptr()));
  if (batch.is_valid()) return ObjectBatch{std::move(batch)};
  if (PyErr_Occurred()) throw nb::python_error();
  iterator_.reset();
  return std::nullopt;
}

TrainerLoader::TrainerLoader(nb::object loader) : loader_(std::move(loader)) {
  const auto check = [&](const char* method, const char* why) {
    if (nb::hasattr(loader_, method)) return;
    throw type_error(
        "trainer: expected a loader, an iterable of batches with a length; {} has no {}, {}",
        type_of(loader_), method, why);
  };
  check("__iter__", "which each epoch calls");
  check("__len__", "which tells the batches of an epoch");
  if (batches() > 0) return;
  throw value_error("trainer: expected batches, got a {} without any", type_of(loader_));
}

TrainerLoader::~TrainerLoader() {
  const nb::gil_scoped_acquire locked;
  source_.reset();
  loader_.reset();
}

int64_t TrainerLoader::batches() const {
  const nb::gil_scoped_acquire locked;
  return static_cast<int64_t>(nb::len(loader_));
}

void TrainerLoader::seek(data::LoaderPosition position) {
  const nb::gil_scoped_acquire locked;
  source_.reset();
  position_ = position;
}

void TrainerLoader::begin() {
  for (const nb::object& part :
       {loader_, nb::object(nb::getattr(loader_, "sampler", nb::none()))}) {
    if (nb::hasattr(part, "set_epoch")) part.attr("set_epoch")(position_.epoch);
  }
  source_.emplace(loader_);
  for (int64_t i = 0; i < position_.batch; ++i) {
    if (source_->next()) continue;
    throw value_error("trainer: expected more than {} batches of epoch {} to go on, got {} of a {}",
                      position_.batch, position_.epoch, i, type_of(loader_));
  }
}

std::optional<Tensors> TrainerLoader::next() {
  const nb::gil_scoped_acquire locked;
  if (!source_) begin();
  const std::optional<ObjectBatch> batch = source_->next();
  if (!batch) {
    seek({.epoch = position_.epoch + 1});
    return std::nullopt;
  }
  const int64_t index = position_.batch++;
  const auto refuse = [&](const std::string& got) {
    throw type_error("batch {} of a {}: expected a tensor, or a tuple or list of tensors, got {}",
                     index, type_of(loader_), got);
  };
  const nb::handle object = batch->object;
  if (is_tensor(object)) return Tensors{import_array(object)};
  if (!nb::isinstance<nb::tuple>(object) && !nb::isinstance<nb::list>(object)) {
    refuse(type_of(object));
  }
  Tensors tensors;
  for (nb::handle part : object) {
    if (!is_tensor(part)) refuse(fmt::format("a {} with a {}", type_of(object), type_of(part)));
    tensors.push_back(import_array(part));
  }
  return tensors;
}

void bind_shared_batches(nb::module_& m) {
  using Pass = SharedBatches::Pass;
  nb::class_<Pass>(m, "SharedBatchesIterator", "One pass over a SharedBatches.")
      .def("__iter__", [](nb::handle_t<Pass> self) { return nb::borrow(self); })
      .def("__next__", &Pass::next);
  nb::class_<SharedBatches>(m, "SharedBatches",
                            "This rank's share of each batch of an iterable. It is iterated anew "
                            "with each iteration, one batch ahead.")
      .def("__iter__", &SharedBatches::begin, nb::keep_alive<0, 1>());
  nb::class_<SizedSharedBatches, SharedBatches>(m, "SizedSharedBatches",
                                                "The same of one with a length.")
      .def("__len__", &SizedSharedBatches::size, "Batches of this rank in an epoch.");
}

nb::object share_batches(nb::handle_t<Fabric> fabric, nb::handle batches, bool deals_out,
                         bool moves) {
  const auto refuse = [&](const char* expected) {
    throw type_error("setup_dataloader: expected {}, got a {}", expected, type_of(batches));
  };
  if (!nb::hasattr(batches, "__iter__")) refuse("an iterable of batches");
  if (nb::isinstance<SharedBatches>(batches) ||
      nb::isinstance<train::SharedLoader<data::TensorLoader>>(batches)) {
    refuse("a loader that was not set up yet");
  }
  if (nb::hasattr(batches, "__len__")) {
    return nb::cast(std::make_unique<SizedSharedBatches>(fabric, batches, deals_out, moves));
  }
  return nb::cast(std::make_unique<SharedBatches>(fabric, batches, deals_out, moves));
}

}  // namespace weft::python
