#include "python/train/collectives.h"

#include <nanobind/stl/unique_ptr.h>

#include <cstring>

#include "core/transfer.h"
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
    throw nb::type_error(fmt::format("{}: expected tensors and numbers, also in tuples, lists and "
                                     "dicts, got a {}",
                                     function, type_of(leaf))
                             .c_str());
  }
  const bool is_whole = number.kind != Operand::Kind::kFloat && !is_real;
  return to_device(is_whole ? Tensor::from(std::vector{number.integer}, {})
                            : Tensor::scalar(number.as_double(), DType::f64),
                   fabric.device());
}

nb::object all_reduce(const Fabric& fabric, nb::handle data, const std::string& name) {
  const ReduceOp op = parse_op(name);
  return with_each_leaf(data, [&](nb::handle leaf) {
    const Tensor x = tensor_of(fabric, "all_reduce", leaf, op == ReduceOp::kMean);
    return nb::cast(unlocked([&] {
      const Tensor result = ops::clone(detach(x));
      fabric.all_reduce(result, op);
      return result;
    }));
  });
}

nb::object all_gather(const Fabric& fabric, nb::handle data) {
  return with_each_leaf(data, [&](nb::handle leaf) {
    const Tensor x = tensor_of(fabric, "all_gather", leaf, false);
    return nb::cast(unlocked([&] { return fabric.all_gather(x); }));
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

/// A tensor in place; of anything else the source's, pickled.
nb::object broadcast(const Fabric& fabric, nb::handle object, int source) {
  WEFT_CHECK(source >= 0 && source < fabric.size(), "broadcast: expected a rank below {}, got {}",
             fabric.size(), source);
  if (nb::isinstance<Tensor>(object)) {
    const auto& x = nb::cast<const Tensor&>(object);
    check_writable("broadcast", x);
    unlocked([&] { fabric.broadcast(x, source); });
    return nb::borrow(object);
  }
  if (fabric.size() == 1) return nb::borrow(object);
  const nb::module_ pickle = nb::module_::import_("pickle");
  const bool is_source = fabric.rank() == source;
  const nb::bytes mine = is_source ? nb::bytes(pickle.attr("dumps")(object)) : nb::bytes("", 0);
  const Tensor all = unlocked([&] {
    const Tensor size = Tensor::from(std::vector{static_cast<int64_t>(mine.size())}, {1});
    fabric.broadcast(size, source);
    const Tensor text = Tensor::empty({size.data<int64_t>()[0]}, DType::u8);
    if (is_source) std::memcpy(text.raw(), mine.data(), mine.size());
    fabric.broadcast(text, source);
    return text;
  });
  if (is_source) return nb::borrow(object);
  return pickle.attr("loads")(nb::bytes(all.raw(), static_cast<size_t>(all.numel())));
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
          "all_reduce", &all_reduce, "data"_a, "reduce_op"_a = "mean",
          "The mean over all ranks, or their \"sum\", \"max\" or \"min\", of a tensor or a number, "
          "or of those in tuples, lists and dicts: new tensors. Every rank calls.")
      .def("all_gather", &all_gather, "data"_a,
           "[ranks, ...]: every rank's tensor or number, or those in tuples, lists and dicts. The "
           "gradient of a tensor is the sum of what the ranks do with it.")
      .def("gather_for_metrics", &gather_for_metrics, "data"_a,
           "[samples, ...]: the rows of all ranks, each sample of a loader's batch once; of a "
           "number one of each batch, float64. Also of those in tuples, lists and dicts.")
      .def("broadcast", &broadcast, nb::arg("obj").none(), "src"_a = 0,
           "What rank src has: a tensor in place, any other object pickled. Returns it.")
      .def("broadcast", &broadcast, nb::arg("obj").none(), "source"_a)
      .def("barrier", &Fabric::barrier, Unlocked(), "Waits for all ranks.")
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
