// weft.dist: collectives among the ranks that mpirun, torchrun or srun has started.
#include "python/dist.h"

#include <nanobind/stl/shared_ptr.h>

#include "autograd/tape.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/exchange.h"

namespace weft::python {

using dist::ReduceOp;

ReduceOp parse_op(const std::string& name) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kMin}) {
    if (dist::name(op) == name) return op;
  }
  WEFT_FAIL("a reduction is sum, mean, max or min, got \"{}\"", name);
}

namespace {

using dist::Communicator;
using dist::Work;

/// Waits, unless the caller wants to: then it gets the work.
std::optional<Work> finished(Work work, bool async) {
  if (async) return work;
  work.wait();
  return std::nullopt;
}

/// x itself, as memory that ranks may read and write.
Tensor shared(std::string_view op, const Tensor& x) {
  check_writable(op, x);
  return detach(x);
}

/// The sizes with another first one.
Shape with_first(Shape shape, int64_t size) {
  shape[0] = size;
  return shape;
}

Tensor all_gather(Communicator& comm, const Tensor& x) {
  Shape shape = {comm.size()};
  for (const int64_t size : x.shape()) shape.push_back(size);
  const Tensor out = Tensor::empty(shape, x.dtype(), x.device());
  comm.all_gather(out, ops::contiguous(detach(x))).wait();
  return out;
}

Tensor reduce_scatter(Communicator& comm, const Tensor& x, const std::string& op) {
  WEFT_CHECK(x.dim() > 0 && x.size(0) % comm.size() == 0,
             "reduce_scatter: expected a first dimension that {} ranks divide, got {}", comm.size(),
             x);
  const Tensor out =
      Tensor::empty(with_first(x.shape(), x.size(0) / comm.size()), x.dtype(), x.device());
  comm.reduce_scatter(out, ops::contiguous(detach(x)), parse_op(op)).wait();
  return out;
}

Tensor all_to_all(Communicator& comm, const Tensor& x) {
  WEFT_CHECK(x.dim() > 0 && x.size(0) % comm.size() == 0,
             "all_to_all: expected a first dimension that {} ranks divide, got {}", comm.size(), x);
  const Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  comm.all_to_all(out, ops::contiguous(detach(x))).wait();
  return out;
}

}  // namespace

void bind_dist(nb::module_ m) {
  nb::class_<Work>(m, "Work", "A collective under way.")
      .def("wait", &Work::wait, Unlocked(), "Until it is complete on this rank; throws its Error.")
      .def("is_completed", &Work::is_done);
  nb::class_<Communicator>(
      m, "Communicator",
      "Ranks that call the same collectives in the same order. Sums have the same bits whatever "
      "connects the ranks; float16 and bfloat16 are added in float32. Operations in place want "
      "contiguous tensors; with async_op they return a Work at once, and the tensor may be touched "
      "after its wait().")
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("size", &Communicator::size)
      .def_prop_ro("name", &Communicator::name)
      .def(
          "all_reduce",
          [](Communicator& c, const Tensor& x, const std::string& op, bool async) {
            return finished(c.all_reduce(shared("all_reduce", x), parse_op(op)), async);
          },
          "x"_a, "op"_a = "sum", "async_op"_a = false, Unlocked(),
          "In place: the sum, mean, max or min over the ranks.")
      .def(
          "broadcast",
          [](Communicator& c, const Tensor& x, int root, bool async) {
            return finished(c.broadcast(shared("broadcast", x), root), async);
          },
          "x"_a, "root"_a = 0, "async_op"_a = false, Unlocked(), "In place: x of one rank.")
      .def(
          "send",
          [](Communicator& c, const Tensor& x, int destination, bool async) {
            return finished(c.send(ops::contiguous(detach(x)), destination), async);
          },
          "x"_a, "destination"_a, "async_op"_a = false, Unlocked(),
          "Meets the recv of that rank; of two ranks that both send first each waits for the "
          "other.")
      .def(
          "recv",
          [](Communicator& c, const Tensor& x, int source, bool async) {
            return finished(c.recv(shared("recv", x), source), async);
          },
          "x"_a, "source"_a, "async_op"_a = false, Unlocked(), "Into x.")
      .def("all_gather", &all_gather, "x"_a, Unlocked(), "[ranks, ...]: every rank's x.")
      .def("reduce_scatter", &reduce_scatter, "x"_a, "op"_a = "sum", Unlocked(),
           "This rank's part, by the first dimension, of the ranks' sum.")
      .def("all_to_all", &all_to_all, "x"_a, Unlocked(),
           "Part r of x, by the first dimension, goes to rank r; part r of the result is from it.")
      .def(
          "barrier", [](Communicator& c) { c.barrier().wait(); }, Unlocked())
      .def("group", &Communicator::group, "ranks"_a, "name"_a, Unlocked(),
           "A communicator of some ranks, in this order; called by those alone.")
      .def("leave", &Communicator::leave, "reason"_a, Unlocked(),
           "Says that this rank has given up: the others' collectives fail at once.")
      .def("__enter__", [](nb::handle_t<Communicator> self) { return nb::borrow(self); })
      .def(
          "__exit__",
          [](Communicator& c, nb::object type, nb::object error, const nb::object&) {
            if (!type.is_none()) c.leave(nb::str(error).c_str());
          },
          "type"_a.none(), "error"_a.none(), "traceback"_a.none());
  m.def("is_rank", &dist::is_rank,
        "Whether mpirun, torchrun or srun has started this process, or their variables are set.");
  m.def(
      "join", [] { return dist::join_world(); }, Unlocked(),
      "The communicator of all ranks; called once. An Error names what is missing.");
  m.def("local_rank", &dist::local_rank, "Among the ranks of this host.");
  m.def("local_size", &dist::local_size);
  m.def("has_mpirun", &dist::has_mpirun);
  m.def(
      "mpirun_command",
      [](int ranks, const std::string& hostfile) {
        return dist::mpirun_command({.ranks = ranks, .hostfile = hostfile});
      },
      "ranks"_a, "hostfile"_a = "",
      "The words in front of a program that start it as so many ranks, in containers, too.");
}

}  // namespace weft::python
