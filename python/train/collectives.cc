#include "python/train/collectives.h"

#include <nanobind/stl/unique_ptr.h>

#include <cstring>
#include <exception>

#include "core/transfer.h"
#include "core/view.h"
#include "nn/meta.h"
#include "python/containers.h"
#include "python/dist.h"
#include "python/exchange.h"
#include "python/scope.h"

namespace weft::python {
namespace {

using dist::ReduceOp;
using train::Fabric;

/// Without the interpreter's lock.
template <class F>
auto unlocked(const F& f) {
  const nb::gil_scoped_release released;
  return f();
}

/// False for what is no number either; a tensor is none.
bool is_number(nb::handle leaf, Operand& number) {
  return !leaf.is_none() && !nb::isinstance<Tensor>(leaf) && read_number(leaf, number);
}

/// A leaf as a tensor on the Fabric's device: a number is an i64 or an f64.
Tensor tensor_of(const Fabric& fabric, const char* function, nb::handle leaf, bool is_real) {
  if (nb::isinstance<Tensor>(leaf)) return nb::cast<Tensor>(leaf);
  Operand number;
  if (!is_number(leaf, number)) {
    throw type_error(
        "{}: expected tensors and numbers, also in tuples, lists, dicts and dataclasses, got a {}",
        function, type_of(leaf));
  }
  const bool is_whole = number.kind != Operand::Kind::kFloat && !is_real;
  return to_device(is_whole ? Tensor::from(std::vector{number.integer}, {})
                            : Tensor::scalar(number.as_double(), DType::f64),
                   fabric.device());
}

/// Lightning's word for some of the ranks.
void check_group(const char* function, nb::handle group) {
  if (group.is_none()) return;
  throw type_error("{}: group: expected None, all ranks, got a {}", function, type_of(group));
}

nb::object all_reduce(const Fabric& fabric, nb::handle data, const std::string& name,
                      nb::handle group) {
  check_group("all_reduce", group);
  const ReduceOp op = name == "avg" ? ReduceOp::kMean : parse_op(name);
  return with_each_leaf(data, [&](nb::handle leaf) {
    const Tensor x = tensor_of(fabric, "all_reduce", leaf, op == ReduceOp::kMean);
    return nb::cast(unlocked([&] {
      const Tensor result = ops::clone(detach(x));
      fabric.all_reduce(result, op);
      return result;
    }));
  });
}

nb::object all_gather(const Fabric& fabric, nb::handle data, nb::handle group,
                      std::optional<bool> sync_grads) {
  check_group("all_gather", group);
  return with_each_leaf(data, [&](nb::handle leaf) {
    const Tensor x = tensor_of(fabric, "all_gather", leaf, false);
    return nb::cast(
        unlocked([&] { return fabric.all_gather(sync_grads == false ? detach(x) : x); }));
  });
}

nb::object gather_for_metrics(const Fabric& fabric, nb::handle data) {
  return with_each_leaf(data, [&](nb::handle leaf) {
    Operand number;
    if (is_number(leaf, number)) {
      return nb::cast(unlocked([&] { return fabric.gather_for_metrics(number.as_double()); }));
    }
    const Tensor x = tensor_of(fabric, "gather_for_metrics", leaf, false);
    return nb::cast(unlocked([&] { return fabric.gather_for_metrics(x); }));
  });
}

/// Those of one rank.
nb::bytes broadcast_bytes(const Fabric& fabric, const nb::bytes& mine, int source) {
  const Tensor all = unlocked([&] {
    const Tensor size = Tensor::from(std::vector{static_cast<int64_t>(mine.size())}, {1});
    fabric.broadcast(size, source);
    const Tensor bytes = Tensor::empty({size.data<int64_t>()[0]}, DType::u8);
    if (fabric.rank() == source) std::memcpy(bytes.raw(), mine.data(), mine.size());
    fabric.broadcast(bytes, source);
    return bytes;
  });
  return nb::bytes(all.raw(), static_cast<size_t>(all.numel()));
}

/// A tensor, in place where this rank has one of its kind to write to; any other object pickled.
/// Between the first collective and the last no rank may fail alone: the others would wait for it.
nb::object broadcast(const Fabric& fabric, nb::handle object, int source) {
  WEFT_CHECK(source >= 0 && source < fabric.size(), "broadcast: expected a rank below {}, got {}",
             fabric.size(), source);
  if (fabric.size() == 1) return nb::borrow(object);
  const nb::module_ pickle = nb::module_::import_("pickle");
  const bool is_source = fabric.rank() == source;
  const Tensor* const mine =
      nb::isinstance<Tensor>(object) ? &nb::cast<const Tensor&>(object) : nullptr;
  // First, what the source has, as the others may have anything: (object,), (dtype, shape, whether
  // it is on the Fabric's device) of a tensor, or () where it cannot be sent.
  nb::tuple what;
  nb::object text = nb::bytes("", 0);
  std::exception_ptr refused;
  if (is_source) {
    what = mine ? nb::make_tuple(mine->dtype(), mine->shape(), mine->device() != Device{})
                : nb::make_tuple(object);
    try {
      WEFT_CHECK(!mine || nn::has_memory(*mine),
                 "broadcast: expected a tensor that has memory, got {}, which has none", *mine);
      text = pickle.attr("dumps")(what);
    } catch (...) {
      refused = std::current_exception();
      text = pickle.attr("dumps")(nb::tuple());
    }
  }
  text = broadcast_bytes(fabric, nb::bytes(text), source);
  if (refused) std::rethrow_exception(refused);
  if (!is_source) what = nb::tuple(pickle.attr("loads")(text));
  WEFT_CHECK(what.size() > 0,
             "broadcast: rank {} has an object that cannot be pickled, or a tensor without memory",
             source);
  if (what.size() == 1) return what[0];
  const auto dtype = nb::cast<DType>(what[0]);
  const auto shape = nb::cast<Shape>(what[1]);
  const Device device = nb::cast<bool>(what[2]) ? fabric.device() : Device{};
  const bool fits = !is_source && mine && mine->shape() == shape && mine->dtype() == dtype &&
                    mine->device() == device && nn::has_memory(*mine) && !is_read_only(*mine) &&
                    !view::overlaps_itself(*mine);
  const bool is_in_place = fits && mine->is_contiguous();
  const Tensor x = is_source     ? ops::contiguous(detach(*mine))
                   : is_in_place ? *mine
                                 : Tensor::empty(shape, dtype, device);
  unlocked([&] {
    fabric.broadcast(x, source);
    if (!fits || is_in_place) return;
    Tensor strided = detach(*mine);
    ops::copy_(strided, x);
  });
  return is_source || fits ? nb::borrow(object) : nb::cast(x);
}

/// `with` it, the first rank runs the block before the others do.
class RankZeroFirst {
 public:
  RankZeroFirst(const Fabric& fabric, bool local)
      : fabric_(fabric), is_first_((local ? fabric.local_rank() : fabric.rank()) == 0) {}
  void enter() { wait_if(!is_first_); }
  void exit() { wait_if(is_first_); }

 private:
  void wait_if(bool waits) const {
    const nb::gil_scoped_release released;
    if (waits) fabric_.barrier();
  }

  const Fabric& fabric_;
  const bool is_first_;
};

}  // namespace

void bind_collectives(nb::module_& m, nb::class_<Fabric>& fabric) {
  bind_context<RankZeroFirst>(m, "RankZeroFirst", "What rank_zero_first() returns.");
  fabric
      .def(
          "all_reduce", &all_reduce, "data"_a, "reduce_op"_a = "mean", "group"_a = nb::none(),
          "The mean over all ranks, or their \"sum\", \"max\" or \"min\", of a tensor or a number, "
          "or of those in tuples, lists, dicts and dataclasses: new tensors. \"avg\" is the mean. "
          "group: None alone, all ranks. Every rank calls.")
      .def(
          "all_reduce",
          [](const Fabric& self, nb::handle data, nb::handle group, const std::string& reduce_op) {
            return all_reduce(self, data, reduce_op, group);
          },
          "data"_a, "group"_a.none(), "reduce_op"_a = "mean", "The same in Lightning's order.")
      .def("all_gather", &all_gather, "data"_a, "group"_a = nb::none(), "sync_grads"_a = nb::none(),
           "[ranks, ...]: every rank's tensor or number, or those in tuples, lists, dicts and "
           "dataclasses. The gradient of a tensor is the sum of what the ranks do with it; "
           "sync_grads=False: there is none. group: None alone, all ranks.")
      .def("gather_for_metrics", &gather_for_metrics, "data"_a,
           "[samples, ...]: the rows of all ranks, each sample of a loader's batch once; of a "
           "number one of each batch, float64. Also of those in tuples, lists, dicts and "
           "dataclasses.")
      .def("broadcast", &broadcast, nb::arg("obj").none(), "src"_a = 0,
           "Returns what rank src has, whatever the others have: a tensor, in place where this "
           "rank's is of the same shape and dtype, on the CPU or the GPU as that is, and can be "
           "written, else a new one; any other object pickled. Every rank calls: of a tensor it is "
           "three collectives, of another object two.")
      .def("broadcast", &broadcast, nb::arg("obj").none(), "source"_a)
      .def(
          "barrier", [](const Fabric& self, const std::optional<std::string>&) { self.barrier(); },
          "name"_a = nb::none(), Unlocked(),
          "Waits for all ranks. The name is for who reads the program: barriers meet in the order "
          "in which each rank calls them.")
      .def(
          "rank_zero_first",
          [](const Fabric& self, bool local) {
            return std::make_unique<RankZeroFirst>(self, local);
          },
          "local"_a = false, nb::keep_alive<0, 1>(),
          "`with fabric.rank_zero_first():` rank 0 runs the block, then the others do: what it has "
          "downloaded they find. local: the first rank of each host does. Every rank calls.");
}

}  // namespace weft::python
