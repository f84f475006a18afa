#include "cli/compare/work.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>

#include "autograd/backward.h"
#include "autograd/fused.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "cli/json_line.h"
#include "cli/step/training_step.h"
#include "core/allocator.h"
#include "core/parallel.h"
#include "core/stream.h"
#include "data/image.h"
#include "data/transforms.h"
#include "io/safetensors.h"
#include "kernels/instruction_set.h"
#include "kernels/profile.h"
#include "optim/adam.h"

namespace weft::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// A sample lasts at least this long, or the clock and its reading would count.
constexpr double kLeastSampleSeconds = 2e-3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A case's work, warm, and what is to be said of it ("parameters", "bytes").
struct Work {
  std::function<void()> run;
  ordered_json facts = ordered_json::object();
};

Tensor chain_of(const Tensors& x) { return ops::sigmoid(x[0] * x[1] + x[2]) * x[0] - x[1]; }

/// Makes one kind of work after the other; members are what all kinds need.
class Maker {
 public:
  Maker(const json& spec, Device device, const std::string& directory)
      : spec_(spec), device_(device), path_(directory + "/weft.safetensors") {}

  Work make() const {
    const std::map<std::string, std::function<Work()>> kinds = {
        {"train", [&] { return train(); }},
        {"infer", [&] { return infer(); }},
        {"gemm",
         [&] {
           const int64_t m = number("m"), n = number("n"), k = number("k");
           return op({randn({m, k}), randn({n, k})},
                     [](const auto& x) { return ops::linear(x[0], x[1]); });
         }},
        {"softmax",
         [&] { return op({randn()}, [](const auto& x) { return ops::softmax(x[0], -1); }); }},
        {"layer_norm",
         [&] {
           const int64_t width = shape().back();
           return op({randn(), randn({width}), randn({width})},
                     [](const auto& x) { return ops::layer_norm(x[0], x[1], x[2], 1e-6); });
         }},
        {"gelu", [&] { return op({randn()}, [](const auto& x) { return ops::gelu(x[0]); }); }},
        {"attention",
         [&] {
           const Shape shape = {number("batch"), number("heads"), number("tokens"),
                                number("depth")};
           return op({randn(shape), randn(shape), randn(shape)},
                     [](const auto& x) { return ops::attention(x[0], x[1], x[2]); });
         }},
        {"cross_entropy",
         [&] {
           const Tensor truth = ops::to(cyclic_labels(shape()[0], shape()[1]), device_);
           return op({randn()}, [truth](const auto& x) { return ops::cross_entropy(x[0], truth); });
         }},
        {"chain",
         [&] {
           return op({randn(), randn(), randn()},
                     // Fused where that is faster: not in bf16, which rounds after each step.
                     [fuses = dtype("precision") == DType::f32](const auto& x) {
                       return fuses ? ops::fused(chain_of, x) : chain_of(x);
                     });
         }},
        {"sum",
         [&] {
           const Shape dims = sizes("dims");
           return op({randn()}, [dims](const auto& x) { return ops::sum(x[0], dims); });
         }},
        {"cast",
         [&] {
           const DType to = dtype("to");
           return op({randn(shape(), dtype("from"))},
                     [to](const auto& x) { return ops::cast(x[0], to); });
         }},
        {"max_pool",
         [&] {
           return op({randn()}, [](const auto& x) {
             return ops::max_pool2d(x[0], {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
           });
         }},
        {"adamw", [&] { return adamw(); }},
        {"dispatch", [&] { return dispatch(); }},
        {"jpeg", [&] { return jpeg(); }},
        {"save", [&] { return save(); }},
        {"load", [&] { return load(); }},
    };
    const std::string kind = spec_.at("kind");
    const auto entry = kinds.find(kind);
    WEFT_CHECK(entry != kinds.end(), "compare: unknown kind of work \"{}\"", kind);
    return entry->second();
  }

 private:
  int64_t number(const char* name) const { return spec_.at(name); }
  Shape sizes(const char* name) const {
    Shape result;
    for (int64_t size : spec_.at(name)) result.push_back(size);
    return result;
  }
  Shape shape() const { return sizes("shape"); }
  DType dtype(const char* name) const {
    const std::string precision = spec_.at(name);
    WEFT_CHECK(precision == "fp32" || precision == "bf16", "unknown precision \"{}\"", precision);
    return precision == "bf16" ? DType::bf16 : DType::f32;
  }
  Tensor randn(const Shape& shape, DType dtype) const {
    return ops::to(ops::cast(ops::randn(shape), dtype), device_);
  }
  Tensor randn(const Shape& shape) const { return randn(shape, dtype("precision")); }
  Tensor randn() const { return randn(shape()); }
  std::shared_ptr<nn::Module> model() const {
    const std::shared_ptr<nn::Module> model = models::make_model(spec_.at("model"));
    model->to(device_);
    return model;
  }
  std::shared_ptr<TrainingStep> step() const {
    return std::make_shared<TrainingStep>(StepOptions{.model = spec_.at("model"),
                                                      .precision = spec_.value("precision", "fp32"),
                                                      .batch = spec_.value("batch", int64_t{1}),
                                                      .device = device_});
  }
  static ordered_json parameters_of(const nn::Module& model) {
    return {{"parameters", model.num_parameters()}};
  }

  /// An op alone, or with the gradients of its floating inputs.
  Work op(std::vector<Tensor> inputs, std::function<Tensor(const std::vector<Tensor>&)> f) const {
    if (!spec_.at("backward").get<bool>()) {
      return {[inputs, f] {
        const NoGrad guard;
        f(inputs);
      }};
    }
    for (Tensor& x : inputs) {
      if (is_floating(x.dtype())) x.set_requires_grad(true);
    }
    Tensor dy;
    {
      const NoGrad guard;
      const Tensor y = f(inputs);
      dy = randn(y.shape(), y.dtype());
    }
    return {[inputs, f, dy] {
      backward(f(inputs), dy);
      for (const Tensor& x : inputs) x.set_grad({});
    }};
  }

  Work train() const {
    const auto work = step();
    if (spec_.value("graph", false)) work->capture();
    return {[work] { work->run(); }, parameters_of(work->model())};
  }

  Work infer() const {
    const auto work = step();
    work->model().eval();
    return {[work] { work->infer(); }, parameters_of(work->model())};
  }

  Work adamw() const {
    const auto model = this->model();
    for (const Tensor& parameter : model->parameters()) {
      parameter.set_grad(randn(parameter.shape(), parameter.dtype()));
    }
    const auto optimizer =
        std::make_shared<optim::AdamW>(model->parameters(), optim::AdamWOptions{.lr = 1e-4});
    return {[model, optimizer] { optimizer->step(); }, parameters_of(*model)};
  }

  Work dispatch() const {
    Tensor x = randn({1}, DType::f32);
    const Tensor y = randn({1}, DType::f32);
    const int64_t repeats = number("repeats");
    const bool records = spec_.at("tape");
    x.set_requires_grad(records);
    return {[=] {
      std::optional<NoGrad> guard;
      if (!records) guard.emplace();
      for (int64_t i = 0; i < repeats; ++i) x + y;
    }};
  }

  Work jpeg() const {
    const std::string path = spec_.at("path");
    const std::string text = io::read_text(path);
    const std::vector<uint8_t> bytes(text.begin(), text.end());
    const data::Preprocess preprocess = {.size = 224,
                                         .fit = data::Fit::kShorterSide,
                                         .resize = 256,
                                         .normalization = data::kImageNetNormalization};
    set_num_threads(1);
    return {[=] {
              const Tensor image = Tensor::empty({3, 224, 224});
              data::prepare_image(data::decode_image(bytes, path), preprocess, image.data<float>());
            },
            {{"decoder", "libjpeg-turbo"}}};
  }

  Work save() const {
    const auto model = this->model();
    const std::string path = path_;
    return {[=] {
              NamedTensors state;
              for (const auto& [name, tensor] : model->state_dict()) {
                state.emplace_back(name, ops::to(tensor, Device{}));
              }
              io::write_safetensors(path, state);
            },
            {{"bytes", 4 * model->num_parameters()}}};
  }

  Work load() const {
    const Work saved = save();
    saved.run();
    const auto model = this->model();
    const std::string path = path_;
    return {[=] { model->load_state_dict(io::read_safetensors(path).tensors); }, saved.facts};
  }

  const json& spec_;
  const Device device_;
  const std::string path_;  // of what is saved
};

class Server {
 public:
  Server(Device device, const std::string& directory) : device_(device), directory_(directory) {}

  ordered_json answer(const json& request) {
    const std::string what = request.at("do");
    if (what == "hello") return hello();
    if (what == "prepare") return prepare(request);
    if (what == "time") return time(request);
    if (what == "profile") return profile(request);
    if (what == "memory") return memory();
    if (what == "gemm_rate") return gemm_rate();
    if (what == "drop") {
      works_.clear();
      if (device_.type == DeviceType::cuda) {
        allocator(device_).release_pool();  // the other program may need it
      }
      set_num_threads(threads_);
      return ordered_json::object();
    }
    WEFT_FAIL("unknown request \"{}\"", what);
  }

 private:
  struct Warm {
    Work work;
    double estimate;  // seconds of an iteration
  };

  ordered_json hello() const {
    const Tensor one = ops::ones({1}, DType::f32, device_);
    const Tensor two = ops::to(one + one, Device{});
    WEFT_ASSERT(two.item() == 2);
    return {{"program", "Weft"},
            {"threads", num_threads()},
            {"flavor", std::getenv("WEFT_FLAVOR") ? std::getenv("WEFT_FLAVOR") : "cpu"},
            {"instruction_set", kernels::instruction_set()},
            {"compiler", __VERSION__},
            {"optimizer", "AdamW in one kernel"}};
  }

  ordered_json prepare(const json& request) {
    manual_seed(0);
    Work work = Maker(request.at("work"), device_, directory_).make();
    work.run();  // creates primitives, allocates
    synchronize();
    // Warm: another, or as many as last a tenth of a second.
    const Clock::time_point start = Clock::now();
    int count = 0;
    while (count < 1 || (seconds_since(start) < 0.1 && count < 1000)) {
      work.run();
      synchronize();
      ++count;
    }
    ordered_json facts = work.facts;
    works_[request.at("side")] = {std::move(work), seconds_since(start) / count};
    return facts;
  }

  ordered_json time(const json& request) const {
    const Warm& warm = works_.at(request.at("side"));
    const int repeats =
        std::max(1, static_cast<int>(kLeastSampleSeconds / std::max(warm.estimate, 1e-9)));
    std::vector<double> times;
    const Clock::time_point start = Clock::now();
    while (times.empty() || seconds_since(start) < request.at("seconds").get<double>()) {
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < repeats; ++i) warm.work.run();
      synchronize();
      times.push_back(seconds_since(begin) / repeats);
    }
    return {{"times", times}};
  }

  ordered_json profile(const json& request) const {
    const Warm& warm = works_.at(request.at("side"));
    const kernels::Profile profile(device_);
    warm.work.run();
    synchronize();
    const double total = profile.now();
    ordered_json rows = ordered_json::array();
    const auto add = [&](const std::string& name, int64_t calls, double seconds) {
      rows.push_back({{"name", name}, {"calls", calls}, {"ms", 1e3 * seconds}});
    };
    for (const auto& row : profile.rows()) {
      if (rows.size() < 11) add(row.name, row.calls, row.seconds);
    }
    add("outside kernels", 1, total - profile.total_seconds());
    return {{"rows", rows}};
  }

  void synchronize() const { weft::synchronize(device_); }

  /// FLOP/s of a product of 1024 x 1024 matrices: what the machine can do at the moment.
  ordered_json gemm_rate() const {
    const NoGrad guard;
    ordered_json rates;
    for (const auto& [name, dtype] : {std::pair("fp32", DType::f32), {"bf16", DType::bf16}}) {
      const Tensor x = ops::to(ops::cast(ops::randn({1024, 1024}), dtype), device_);
      double best = 0;
      const Clock::time_point start = Clock::now();
      while (best == 0 || seconds_since(start) < 0.2) {
        const Clock::time_point begin = Clock::now();
        ops::linear(x, x);
        synchronize();
        best = std::max(best, 2.0 * (1 << 30) / seconds_since(begin));
      }
      rates[name] = best;
    }
    return rates;
  }

  ordered_json memory() const {
    if (device_.type != DeviceType::cpu) {
      return {{"peak_bytes", allocator(device_).stats().peak_reserved}};
    }
    std::ifstream status("/proc/self/status");
    std::string word;
    int64_t kilobytes = 0;
    while (status >> word) {
      if (word == "VmHWM:") status >> kilobytes;
    }
    return {{"peak_bytes", kilobytes * 1024}};
  }

  const Device device_;
  const std::string directory_;
  const int threads_ = num_threads();
  std::map<std::string, Warm> works_;
};

}  // namespace

void serve_work(Device device, const std::string& directory) {
  Server server(device, directory);
  for (std::string line; std::getline(std::cin, line);) {
    ordered_json answer;
    try {
      answer = server.answer(json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    print_json(answer);
    WEFT_CHECK(std::fflush(stdout) == 0, "cannot write an answer");
  }
}

}  // namespace weft::cli
