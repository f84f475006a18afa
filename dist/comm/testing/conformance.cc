#include "dist/comm/testing/conformance.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "core/philox.h"
#include "core/stream.h"
#include "core/transfer.h"
#include "core/view.h"
#include "dist/comm/device_mesh.h"
#include "dist/comm/reduce_tree.h"

namespace weft::dist {
namespace {

constexpr DType kReducible[] = {DType::f64,  DType::f32, DType::f16,
                                DType::bf16, DType::i64, DType::i32};

/// Where this rank's tensors are, but for those that the check puts on the CPU.
thread_local Device here;

Tensor empty(int64_t n, DType dtype = DType::f32) { return Tensor::empty({n}, dtype, here); }
Tensor zeros(int64_t n, DType dtype = DType::f32) { return Tensor::zeros({n}, dtype, here); }
Tensor on_cpu(const Tensor& x) { return to_device(x, Device{}); }

Tensor make(int64_t n, DType dtype, const std::function<double(int64_t)>& value) {
  Tensor x = Tensor::empty({n}, dtype);
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < n; ++i) x.data<T>()[i] = from_double<T>(value(i));
  });
  return to_device(x, here);
}

void expect(const Tensor& got, const std::function<double(int64_t)>& value, const std::string& what,
            double error = 0) {
  const std::vector<double> values = got.to_vector();
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = value(static_cast<int64_t>(i));
    const bool equal = values[i] == expected || std::abs(values[i] - expected) <= error ||
                       (std::isnan(values[i]) && std::isnan(expected));
    WEFT_CHECK(equal, "conformance: {}: element {} of {} is {}, expected {}", what, i, got,
               values[i], expected);
  }
}

void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  const Tensor x = on_cpu(a), y = on_cpu(b);
  WEFT_CHECK(x.nbytes() == y.nbytes() && std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0,
             "conformance: {}: {} and {} differ in their bits", what, a, b);
}

/// What rank r holds at i: an integer small enough for sums to be exact in bf16.
double held(int r, int64_t i) { return static_cast<double>((r + 2 * i) % 5 - 2); }

double over_ranks(int size, int64_t i, ReduceOp op) {
  double result = held(0, i);
  for (int r = 1; r < size; ++r) {
    const double x = held(r, i);
    result = op == ReduceOp::kMax   ? std::max(result, x)
             : op == ReduceOp::kMin ? std::min(result, x)
                                    : result + x;
  }
  return op == ReduceOp::kMean ? result / size : result;
}

/// The mean as the dtype rounds it: of exact sums, once.
double rounded(double x, DType dtype) {
  return visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)
      return to_double(static_cast<T>(static_cast<float>(x)));
    else
      return to_double(from_double<T>(x));
  });
}

/// Where sums are rounded at every step, a mean of N numbers of magnitude at most 2 is off by the
/// rounding of 1/N, of N products and of N - 1 sums.
double mean_error(int size, DType dtype) { return 2.0 * (size + 1) * unit_roundoff(dtype); }

void check_integers(Communicator& c, int64_t n, const ConformanceOptions& options) {
  const int rank = c.rank(), size = c.size();
  for (DType dtype : kReducible) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kMin}) {
      if (op == ReduceOp::kMean && !is_floating(dtype)) continue;
      const std::string what = fmt::format("{} {} of {}", name(op), dtype, n);
      const auto expected = [&](int64_t i) {
        // A mean is a quotient of two exact numbers in the wide type, rounded there and then here.
        const double x = over_ranks(size, i, op);
        if (op != ReduceOp::kMean || dtype == DType::f64) return x;
        const float wide =
            static_cast<float>(over_ranks(size, i, ReduceOp::kSum)) / static_cast<float>(size);
        return rounded(wide, dtype);
      };
      const bool is_rounded = op == ReduceOp::kMean && !options.sums_have_one_order;
      const double error = is_rounded ? mean_error(size, dtype) : 0;
      const Tensor x = make(n, dtype, [&](int64_t i) { return held(rank, i); });
      c.all_reduce(x, op).wait();
      expect(x, expected, "all_reduce " + what, error);

      const Tensor in = make(n * size, dtype, [&](int64_t i) { return held(rank, i); });
      const Tensor out = empty(n, dtype);
      c.reduce_scatter(out, in, op).wait();
      expect(
          out, [&](int64_t i) { return expected(rank * n + i); }, "reduce_scatter " + what, error);
    }
  }
}

void check_moves(Communicator& c, int64_t n) {
  const int rank = c.rank(), size = c.size();
  for (DType dtype : {DType::f32, DType::bf16, DType::i64, DType::u8, DType::boolean}) {
    const auto value = [&](int r, int64_t i) {
      const auto x = static_cast<double>((r * 31 + i * 7) % 101);
      return dtype == DType::boolean ? static_cast<double>(static_cast<int64_t>(x) % 2) : x;
    };
    const std::string what = fmt::format("{} of {}", dtype, n);
    Tensor mine = make(n, dtype, [&](int64_t i) { return value(rank, i); });
    Tensor all = Tensor::empty({size, n}, dtype, here);
    c.all_gather(all, mine).wait();
    expect(
        all, [&](int64_t i) { return value(static_cast<int>(i / n), i % n); },
        "all_gather " + what);
    // In place: this rank's part lies in the output already.
    Tensor in_place =
        make(n * size, dtype, [&](int64_t i) { return value(rank, i % std::max<int64_t>(n, 1)); });
    c.all_gather(in_place, view::narrow(in_place, 0, rank * n, n)).wait();
    expect(
        in_place, [&](int64_t i) { return value(static_cast<int>(i / n), i % n); },
        "all_gather in place " + what);

    for (int root : {0, size - 1}) {
      Tensor x = make(n, dtype, [&](int64_t i) { return value(rank, i); });
      c.broadcast(x, root).wait();
      expect(
          x, [&](int64_t i) { return value(root, i); },
          fmt::format("broadcast {} from {}", what, root));
    }

    const Tensor parts = make(n * size, dtype, [&](int64_t i) {
      return value(rank * size + static_cast<int>(i / n), i % n);
    });
    const Tensor out = empty(n * size, dtype);
    c.all_to_all(out, parts).wait();
    expect(
        out, [&](int64_t i) { return value(static_cast<int>(i / n) * size + rank, i % n); },
        "all_to_all " + what);
  }
}

/// Parts of different sizes, some of them empty: 6 elements on 4 ranks are 2 2 2 0.
void check_uneven(Communicator& c, int64_t n) {
  const int rank = c.rank(), size = c.size();
  const std::vector<int64_t> counts = split_evenly(n, size);
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  const Tensor mine = make(counts[rank], DType::f32, [&](int64_t i) { return 3.0 * (begin + i); });
  const Tensor all = make(n, DType::f32, [](int64_t) { return -1.0; });
  c.all_gather(all, mine, counts).wait();
  expect(
      all, [](int64_t i) { return 3.0 * i; }, fmt::format("uneven all_gather of {}", n));

  const Tensor in = make(n, DType::f16, [&](int64_t i) { return held(rank, i); });
  const Tensor out = empty(counts[rank], DType::f16);
  c.reduce_scatter(out, in, counts).wait();
  expect(
      out, [&](int64_t i) { return over_ranks(size, begin + i, ReduceOp::kSum); },
      fmt::format("uneven reduce_scatter of {}", n));
}

/// Real numbers against the written order, and reduce_scatter against all_reduce.
void check_order(Communicator& c) {
  const int rank = c.rank(), size = c.size();
  const int64_t n = 3001;
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    std::vector<Tensor> held_by, by_host;
    std::vector<const void*> pointers;
    for (int r = 0; r < size; ++r) {
      Philox random(7, r);
      held_by.push_back(make(n * size, dtype, [&](int64_t) { return random.normal(); }));
      by_host.push_back(on_cpu(held_by.back()));
      pointers.push_back(by_host.back().raw());
    }
    const Tensor expected = Tensor::empty({n * size}, dtype);
    reduce_tree(dtype, ReduceOp::kSum, pointers, expected.raw(), n * size);
    const Tensor part = empty(n, dtype);
    c.reduce_scatter(part, held_by[rank]).wait();
    expect_same_bits(part, view::narrow(expected, 0, rank * n, n), "reduce_scatter");
    // In place, into this rank's part of its own input.
    const Tensor copy = empty(n * size, dtype);
    copy_same_layout(held_by[rank], copy);
    const Tensor own = view::narrow(copy, 0, rank * n, n);
    c.reduce_scatter(own, copy).wait();
    expect_same_bits(own, part, "reduce_scatter in place");
    c.all_reduce(held_by[rank]).wait();
    expect_same_bits(held_by[rank], expected, "all_reduce");
  }
}

/// Real numbers in an order that the engine chooses, within (N - 1) u sum |x|, u of the dtype; the
/// same bits on all ranks where all have the sum.
void check_sums(Communicator& c) {
  const int rank = c.rank(), size = c.size();
  const int64_t n = 1009;
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    std::vector<Tensor> held_by;
    std::vector<double> sums(n * size), magnitudes(n * size);
    for (int r = 0; r < size; ++r) {
      Philox random(7, r);
      held_by.push_back(make(n * size, dtype, [&](int64_t) { return random.normal(); }));
      const std::vector<double> values = held_by.back().to_vector();
      for (int64_t i = 0; i < n * size; ++i) {
        sums[i] += values[i];
        magnitudes[i] += std::abs(values[i]);
      }
    }
    const auto expect_sums = [&](const Tensor& got, int64_t first, const std::string& what) {
      const std::vector<double> values = got.to_vector();
      for (int64_t i = 0; i < got.numel(); ++i) {
        // The f64 oracle is rounded, too.
        const double allowed = (size - 1) * (1 + size * unit_roundoff(dtype)) *
                               (unit_roundoff(dtype) + unit_roundoff(DType::f64)) *
                               magnitudes[first + i];
        WEFT_CHECK(std::abs(values[i] - sums[first + i]) <= allowed,
                   "conformance: {} {}: element {} is {}, expected {} to {}", what, dtype, i,
                   values[i], sums[first + i], allowed);
      }
    };
    const Tensor part = empty(n, dtype);
    c.reduce_scatter(part, held_by[rank]).wait();
    expect_sums(part, rank * n, "reduce_scatter");
    const Tensor copy = empty(n * size, dtype);
    copy_same_layout(held_by[rank], copy);
    const Tensor own = view::narrow(copy, 0, rank * n, n);
    c.reduce_scatter(own, copy).wait();
    expect_same_bits(own, part, "reduce_scatter in place");
    c.all_reduce(held_by[rank]).wait();
    expect_sums(held_by[rank], 0, "all_reduce");
    const Tensor of_first = empty(n * size, dtype);
    copy_same_layout(held_by[rank], of_first);
    c.broadcast(of_first, 0).wait();
    expect_same_bits(of_first, held_by[rank], "all_reduce on two ranks");
  }
}

void check_specials(Communicator& c) {
  const int last = c.size() - 1;
  const auto value = [&](int64_t i) {
    if (c.rank() != last) return 1.0;
    return i == 0 ? std::nan("") : static_cast<double>(INFINITY);
  };
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    const Tensor x = make(2, DType::f32, value);
    c.all_reduce(x, op).wait();
    const double second = op == ReduceOp::kMin && last > 0 ? 1.0 : static_cast<double>(INFINITY);
    expect(
        x, [&](int64_t i) { return i == 0 ? std::nan("") : second; },
        fmt::format("specials under {}", name(op)));
  }
}

/// Many under way at once end in order, each with its own result.
void check_asynchronous(Communicator& c) {
  std::vector<Tensor> tensors;
  std::vector<Work> works;
  for (int k = 0; k < 20; ++k) {
    tensors.push_back(
        make(100 + k, DType::i32, [&](int64_t i) { return static_cast<double>(i + k); }));
    works.push_back(c.all_reduce(tensors.back()));
  }
  works.back().wait();
  for (int k = 0; k < 20; ++k) {
    // A device's thread may have waited for nothing yet.
    synchronize(here);
    for (int i = 0; i < 1000 && !works[k].is_done() && here.type != DeviceType::cpu; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    WEFT_CHECK(works[k].is_done(), "conformance: collective {} ended after a later one", k);
    works[k].wait();
    expect(
        tensors[k], [&](int64_t i) { return static_cast<double>((i + k) * c.size()); },
        fmt::format("asynchronous all_reduce {}", k));
  }
}

void check_send_recv(Communicator& c) {
  if (c.size() == 1) return;
  // Around the ring: even ranks send first.
  const int rank = c.rank(), size = c.size();
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const Tensor out =
      make(1000, DType::f32, [&](int64_t i) { return static_cast<double>(i + rank); });
  const Tensor in = empty(1000);
  const bool receives_first = rank % 2 == 1 || (rank == size - 1 && size % 2 == 1);
  if (receives_first) c.recv(in, previous).wait();
  c.send(out, next).wait();
  if (!receives_first) c.recv(in, previous).wait();
  expect(
      in, [&](int64_t i) { return static_cast<double>(i + previous); }, "send and recv");
}

void check_groups(Communicator& c) {
  const int size = c.size();
  // Odd and even ranks, and all ranks backwards.
  std::vector<int> mine, backwards;
  for (int r = c.rank() % 2; r < size; r += 2) mine.push_back(r);
  for (int r = size - 1; r >= 0; --r) backwards.push_back(r);
  const CommunicatorPtr parity = c.group(mine, "parity");
  const Tensor x = make(5, DType::i64, [&](int64_t) { return static_cast<double>(c.rank()); });
  parity->all_reduce(x).wait();
  const double sum = std::accumulate(mine.begin(), mine.end(), 0.0);
  expect(
      x, [&](int64_t) { return sum; }, "all_reduce in a group");
  const CommunicatorPtr reversed = c.group(backwards, "reversed");
  WEFT_CHECK(reversed->rank() == size - 1 - c.rank(), "conformance: rank {} in a reversed group",
             reversed->rank());
  const Tensor y = make(3, DType::f32, [&](int64_t) { return static_cast<double>(c.rank()); });
  reversed->broadcast(y, 0).wait();
  expect(
      y, [&](int64_t) { return static_cast<double>(size - 1); }, "broadcast in a group");

  if (size % 2 == 0) {
    DeviceMesh mesh(CommunicatorPtr(&c, [](Communicator*) {}), {{"data", size / 2}, {"tensor", 2}});
    WEFT_CHECK(mesh.coordinate("tensor") == c.rank() % 2 && mesh.coordinate("data") == c.rank() / 2,
               "conformance: rank {} stands at ({}, {}) of the mesh", c.rank(),
               mesh.coordinate("data"), mesh.coordinate("tensor"));
    const Tensor pair = make(1, DType::i64, [&](int64_t) { return static_cast<double>(c.rank()); });
    mesh.group("tensor").all_reduce(pair).wait();
    expect(
        pair, [&](int64_t) { return static_cast<double>(c.rank() / 2 * 4 + 1); }, "mesh row");
  }
}

/// Two groups used in different orders by different ranks: each has a thread of its own, so neither
/// waits for the other.
void check_order_of_groups(Communicator& c) {
  std::vector<int> all(c.size());
  std::iota(all.begin(), all.end(), 0);
  const CommunicatorPtr a = c.group(all, "a"), b = c.group(all, "b");
  const Tensor x = make(10, DType::f32, [](int64_t) { return 1.0; });
  const Tensor y = make(10, DType::f32, [](int64_t) { return 2.0; });
  const bool odd = c.rank() % 2 == 1;
  const Work first = odd ? a->all_reduce(x) : b->all_reduce(y);
  const Work second = odd ? b->all_reduce(y) : a->all_reduce(x);
  first.wait();
  second.wait();
  expect(
      x, [&](int64_t) { return 1.0 * c.size(); }, "group a");
  expect(
      y, [&](int64_t) { return 2.0 * c.size(); }, "group b");
}

/// Bytes that left this rank, for n elements of 4 bytes that the size divides.
void check_traffic(Communicator& c) {
  const int64_t n = 64 * c.size(), others = c.size() - 1;
  const auto sent_by = [&](const std::function<void()>& collective) {
    const Traffic before = c.traffic();
    collective();
    return c.traffic().sent - before.sent;
  };
  const Tensor x = zeros(n), part = zeros(64);
  const int64_t all_reduce = sent_by([&] { c.all_reduce(x).wait(); });
  WEFT_CHECK(all_reduce == 2 * others * 64 * 4, "conformance: all_reduce sent {} bytes",
             all_reduce);
  const int64_t scatter = sent_by([&] { c.reduce_scatter(part, x).wait(); });
  WEFT_CHECK(scatter == others * 64 * 4, "conformance: reduce_scatter sent {} bytes", scatter);
  const int64_t gather = sent_by([&] { c.all_gather(x, part).wait(); });
  WEFT_CHECK(gather == others * 64 * 4, "conformance: all_gather sent {} bytes", gather);
}

void expect_error(const std::function<void()>& function, const std::string& text) {
  try {
    function();
  } catch (const Error& error) {
    WEFT_CHECK(std::string(error.what()).find(text) != std::string::npos,
               "conformance: expected an error with \"{}\", got: {}", text, error.what());
    return;
  }
  WEFT_FAIL("conformance: expected an error with \"{}\"", text);
}

/// Mistakes that are seen before anything is sent, so that no other rank is left waiting.
void check_errors(Communicator& c) {
  const Tensor wide = Tensor::zeros({4, 3});
  expect_error([&] { c.all_reduce(view::transpose(wide, 0, 1)); }, "expected a contiguous tensor");
  expect_error([&] { c.all_reduce(Tensor::zeros({2}, DType::u8)); }, "expected f64, f32, f16");
  expect_error([&] { c.all_reduce(Tensor::zeros({2}, DType::i32), ReduceOp::kMean); },
               "the mean of integers");
  expect_error([&] { c.broadcast(wide, c.size()); }, "is not in ");
  expect_error([&] { c.send(wide, c.rank()); }, "sends to itself");
  expect_error([&] { c.all_gather(Tensor::zeros({1}), wide); }, "does not hold the parts");
  expect_error([&] { c.group({c.rank(), c.rank()}, "g"); }, "is listed twice");
  expect_error([&] { c.group({c.rank(), c.size()}, "g"); }, "is not in");
  expect_error(
      [&] {
        DeviceMesh mesh(CommunicatorPtr(&c, [](Communicator*) {}),
                        {{"data", c.size()}, {"tensor", 7}});
      },
      fmt::format("data {} x tensor 7 makes {} ranks", c.size(), 7 * c.size()));
}

}  // namespace

void run_conformance(Communicator& world, Device device, const ConformanceOptions& options) {
  here = device;
  check_errors(world);
  for (int64_t n : {0, 1, 31, 1000}) {
    check_integers(world, n, options);
    check_moves(world, n);
  }
  for (int64_t n : {0, 1, 6, 1001}) check_uneven(world, n);
  if (options.sums_have_one_order) {
    check_order(world);
  } else {
    check_sums(world);
  }
  check_specials(world);
  check_asynchronous(world);
  check_send_recv(world);
  check_groups(world);
  if (options.groups_run_apart) check_order_of_groups(world);
  check_traffic(world);
  // More than a segment per peer, and more than fits a pipe.
  const int64_t n = 300001;
  const Tensor x = make(n, DType::f32, [&](int64_t i) { return held(world.rank(), i); });
  world.all_reduce(x).wait();
  expect(
      x, [&](int64_t i) { return over_ranks(world.size(), i, ReduceOp::kSum); },
      "large all_reduce");
  world.barrier().wait();
}

}  // namespace weft::dist
