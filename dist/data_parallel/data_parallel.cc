#include "dist/data_parallel/data_parallel.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/parallel.h"
#include "core/runtime.h"
#include "core/transfer.h"
#include "dist/comm/communicator.h"
#include "dist/comm/device/on_device.h"
#include "kernels/gemm/matmul_numerics.h"
#include "nn/class_name.h"
#include "nn/modes.h"

namespace weft::dist {
namespace {

/// Runs body(0), ..., body(n - 1) on a thread each, in this thread's precision and on its memory
/// account, and rethrows the first failure. The cores are shared among the threads.
void on_threads(int n, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> failures(n);
  std::vector<std::thread> threads;
  const DType autocast = autocast_dtype();
  const kernels::MatmulSettings matmuls = kernels::matmul_settings();
  const memory::Owner owner = memory::current_owner();
  const int before = num_threads();
  set_num_threads(std::max(1, before / n));
  const auto run = [&](int i) {
    try {
      const memory::WorkingFor working(owner);
      const Autocast precision(autocast);
      const kernels::MatmulScope numerics(matmuls);
      body(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  try {
    for (int i = 0; i < n; ++i) threads.emplace_back(run, i);
  } catch (const std::system_error& error) {
    const std::string text =
        fmt::format("cannot start thread {} of {}: {}", threads.size() + 1, n, error.what());
    failures[threads.size()] = std::make_exception_ptr(Error(text));
  }
  for (std::thread& thread : threads) thread.join();
  set_num_threads(before);
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// While it lives, what this thread allocates is counted for a replica's device, where anything is
/// counted. The first replica's device is the caller's.
class OnDeviceOf {
 public:
  OnDeviceOf(const MemoryAccount& account, bool is_first) {
    if (!is_first && memory::current_owner().counts) joined_.emplace(account);
  }

 private:
  std::optional<MemoryAccount::Joined> joined_;
};

/// Of a replica's tensors those that the model has, too. What forward() has added stays its own.
NamedTensors found_in(const nn::Module& model, const NamedTensors& ours,
                      const NamedTensors& theirs) {
  NamedTensors found;
  auto next = theirs.begin();
  for (const auto& [name, tensor] : ours) {
    next = std::ranges::find(next, theirs.end(), name, &NamedTensors::value_type::first);
    WEFT_CHECK(next != theirs.end(),
               "dp: {}: expected the tensors that it had when it was set up, got \"{}\", which its "
               "replicas do not have",
               nn::class_name(model), name);
    found.push_back(*next++);
  }
  return found;
}

Tensor tree_sum(const Tensors& terms, size_t begin, size_t end) {
  if (end - begin == 1) return terms[begin];
  const size_t middle = begin + std::bit_floor(end - begin - 1);
  return ops::add(tree_sum(terms, begin, middle), tree_sum(terms, middle, end));
}

}  // namespace

DataParallel::DataParallel(nn::Module& module,
                           const std::function<std::shared_ptr<nn::Module>()>& make, int replicas,
                           const std::vector<int>& numbers)
    : module_(module) {
  WEFT_CHECK(replicas > 0, "DataParallel: the number of replicas must be positive, got {}",
             replicas);
  WEFT_CHECK(numbers.empty() || numbers.size() == static_cast<size_t>(replicas),
             "DataParallel: {} numbers of devices for {} replicas", numbers.size(), replicas);
  // Their initial weights are of no use, and draw nothing from the caller's generator.
  const Generator position = generator();
  const NamedTensors ours = module.state_dict();
  const Device first = ours.empty() ? Device{} : ours[0].second.device();
  WEFT_CHECK(numbers.empty() || numbers[0] == first.index,
             "DataParallel: the module is on {}, the first replica is to be on number {}", first,
             numbers[0]);
  for (int r = 0; r < replicas; ++r) {
    const auto replica = std::make_shared<Replica>();
    replica->module = make();
    replica->device = first;
    if (!numbers.empty()) {
      replica->device.index = numbers[r];
    } else if (r > 0) {
      replica->device = device_of_rank(first, first.index + r);
    }
    require_device(replica->device);
    const NamedTensors theirs = replica->module->state_dict();
    const bool same = std::ranges::equal(ours, theirs, [](const auto& a, const auto& b) {
      return a.first == b.first && a.second.shape() == b.second.shape();
    });
    WEFT_CHECK(same,
               "DataParallel: the modules that were made do not have the tensors of the "
               "module they are to replicate");
    replicas_.push_back(replica);
  }
  generator() = position;
}

NamedTensors DataParallel::follow(Replica& replica, const NamedTensors& ours, bool is_first) const {
  const NoGrad guard;
  nn::Module& module = *replica.module;
  const NamedTensors all = module.named_parameters();
  const NamedTensors theirs = found_in(module_, ours, all);
  WEFT_CHECK(theirs.size() == all.size(),
             "dp: {}: expected as many parameters as its replicas have, {}, got {}",
             nn::class_name(module_), all.size(), ours.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    Tensor parameter = theirs[i].second;
    parameter.set_data(to_device(ours[i].second, replica.device).alias());
    parameter.set_requires_grad(ours[i].second.requires_grad());
  }
  const NamedTensors from = module_.named_buffers(),
                     to = found_in(module_, from, module.named_buffers());
  for (size_t i = 0; i < from.size(); ++i) {
    // The first replica works on the module's own buffers.
    Tensor buffer = to[i].second;
    buffer.set_data(is_first ? from[i].second.alias()
                             : to_device(ops::clone(from[i].second), replica.device));
  }
  const std::optional<Fp8Scaling>& scaling = fp8_in_force();
  if (!scaling) {
    replica.fp8.reset();
    return theirs;
  }
  const Fp8Options& options = scaling->options();
  // Evaluation has scales of its own.
  const bool fits = replica.fp8 && replica.fp8->options().scaling == options.scaling;
  if (!fits) replica.fp8.emplace(options);
  replica.fp8->update();  // the codes of weights are those of others now
  if (options.scaling == Fp8Options::Scaling::kDelayed) {
    replica.fp8->load_state_dict(scaling->state_dict(ours), theirs);
  }
  return theirs;
}

void DataParallel::gather_amax(std::optional<Fp8Scaling> scaling, const NamedTensors& ours,
                               const std::vector<Part>& parts) {
  if (!scaling || scaling->options().scaling != Fp8Options::Scaling::kDelayed) return;
  const NoGrad guard;
  Tensor largest = scaling->step_amax(ours);
  for (const Part& part : parts) {
    largest = ops::maximum(largest, part.fp8->step_amax(part.parameters));
  }
  scaling->set_step_amax(largest, ours);
}

Tensor DataParallel::operator()(const Tensor& x) {
  WEFT_CHECK(x.dim() > 0 && x.size(0) > 0, "DataParallel: expected a batch, got {}", x);
  std::vector<int64_t> counts = split_evenly(x.size(0), replicas());
  std::erase(counts, 0);
  const Generator position = generator();
  Tensors parts;
  std::vector<Generator> streams;
  int64_t begin = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    parts.push_back(ops::narrow(x, 0, begin, counts[r]));
    begin += counts[r];
    // Dropout differs from replica to replica.
    streams.push_back({position.seed, position.stream + (r << 32), position.offset});
  }
  return ops::cat(forward(parts, streams), 0);
}

Tensors DataParallel::forward(const Tensors& inputs, const std::vector<Generator>& streams) {
  const int n = static_cast<int>(inputs.size());
  WEFT_CHECK(n > 0 && n <= replicas() && streams.size() == inputs.size(),
             "DataParallel: {} parts and {} random streams for {} replicas", n, streams.size(),
             replicas());
  const NamedTensors ours = module_.named_parameters();
  const nn::Modes modes(module_);
  const bool records = grad_enabled();

  auto parts = std::make_shared<std::vector<Part>>(n);
  for (int r = 0; r < n; ++r) {
    const NoGrad guard;
    const OnDeviceOf device(replicas_[r]->account, r == 0);
    modes.restore(*replicas_[r]->module);
    (*parts)[r].parameters = follow(*replicas_[r], ours, r == 0);
    (*parts)[r].fp8 = replicas_[r]->fp8;
    (*parts)[r].x = detach(to_device(inputs[r], replicas_[r]->device));
    if (records && inputs[r].requires_grad()) (*parts)[r].x.set_requires_grad(true);
  }
  on_threads(n, [&](int r) {
    const OnDeviceOf device(replicas_[r]->account, r == 0);
    const GradMode mode(records);
    Part& part = (*parts)[r];
    const Fp8Scope fp8(part.fp8);
    generator() = streams[r];
    part.y = (*replicas_[r]->module)(part.x);
    part.offset = generator().offset;
  });
  const std::optional<Fp8Scaling> fp8 = fp8_in_force();
  gather_amax(fp8, ours, *parts);
  Tensors outputs;
  for (int r = 0; r < n; ++r) {
    // The next forward draws behind all that was drawn here.
    generator().offset = std::max(generator().offset, (*parts)[r].offset);
    outputs.push_back(detach(to_device((*parts)[r].y, inputs[r].device())));
  }
  Tensors all_inputs = inputs;
  for (const auto& [name, parameter] : ours) all_inputs.push_back(parameter);
  return record(
      "data_parallel", all_inputs, outputs, {},
      [parts, n, fp8, ours, home = inputs[0].device(),
       replicas = replicas_](const Backward& b) -> Tensors {
        b.require_no_graph();
        Tensors dy(n);
        for (int r = 0; r < n; ++r) {
          if (b.dy(r).defined()) dy[r] = to_device(ops::contiguous(b.dy(r)), replicas[r]->device);
        }
        on_threads(n, [&](int r) {
          const OnDeviceOf device(replicas[r]->account, r == 0);
          for (auto& [name, parameter] : (*parts)[r].parameters) parameter.set_grad({});
          const Tensor& y = (*parts)[r].y;
          if (dy[r].defined() && y.requires_grad()) backward(y, dy[r]);
        });
        gather_amax(fp8, ours, *parts);
        Tensors gradients;
        for (int r = 0; r < n; ++r) {
          const Tensor& x = (*parts)[r].x;
          const bool is_zero = b.needs(r) && !x.grad().defined();
          gradients.push_back(is_zero ? ops::zeros_like(x) : x.grad());
          if (gradients[r].defined()) gradients[r] = to_device(gradients[r], home);
        }
        for (size_t i = 0; i < ours.size(); ++i) {
          Tensors terms;
          for (Part& part : *parts) {
            Tensor& parameter = part.parameters[i].second;
            const Tensor gradient = parameter.grad();
            if (gradient.defined()) terms.push_back(to_device(gradient, home));
            parameter.set_grad({});  // to make room for the sums
          }
          gradients.push_back(terms.empty() ? Tensor() : tree_sum(terms, 0, terms.size()));
        }
        for (Part& part : *parts) part = {};
        return gradients;
      });
}

}  // namespace weft::dist
