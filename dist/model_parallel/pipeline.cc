#include "dist/model_parallel/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/scoped_value.h"
#include "core/transfer.h"
#include "dist/data_parallel/ddp.h"
#include "dist/data_parallel/pass_watch.h"
#include "dist/data_parallel/summed_gradients.h"
#include "dist/model_parallel/stages.h"
#include "io/nearest.h"
#include "nn/meta.h"

namespace weft::dist {
namespace {

constexpr int64_t kHeader = kActivationHeader;
/// Between the streams that micro-batches draw from.
constexpr uint64_t kStreams = uint64_t{1} << 48;

Tensor header_of(const Tensor& x) {
  std::vector<int64_t> words(kHeader);
  words[0] = static_cast<int64_t>(x.dtype());
  words[1] = x.dim();
  for (int d = 0; d < x.dim(); ++d) words[2 + d] = x.size(d);
  const Generator& g = generator();
  const uint64_t place[3] = {g.seed, g.stream, g.offset};
  std::memcpy(&words[2 + kMaxDims], place, sizeof(place));
  return Tensor::from(words, {kHeader});
}

/// An empty tensor as the header says, on the device; the generator is set.
Tensor announced(const Tensor& header, Device device) {
  const int64_t* words = header.data<int64_t>();
  Shape shape = Shape::filled(static_cast<int>(words[1]), 0);
  for (int d = 0; d < shape.size(); ++d) shape[d] = words[2 + d];
  uint64_t place[3];
  std::memcpy(place, &words[2 + kMaxDims], sizeof(place));
  generator() = {place[0], place[1], place[2]};
  return Tensor::empty(shape, static_cast<DType>(words[0]), device);
}

/// Makes a node be recorded whose gradients go elsewhere.
Tensor anchor_like(const Tensor& x) {
  return Tensor::zeros({1}, x.dtype(), x.device()).set_requires_grad(true);
}

/// x, whose gradient goes to `dx`. Were x a leaf, its gradient would count among the parameters'.
Tensor watched(const Tensor& x, const std::shared_ptr<Tensor>& dx) {
  return record("pipeline_input", {anchor_like(x)}, x, {}, [dx](const Backward& b) -> Tensors {
    *dx = b.dy();
    return {Tensor()};
  });
}

}  // namespace

std::string_view name(Schedule schedule) { return schedule == Schedule::kGpipe ? "gpipe" : "1f1b"; }

Schedule parse_schedule(const std::string& text) {
  for (Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
    if (name(schedule) == text) return schedule;
  }
  WEFT_FAIL("pipeline-schedule: \"{}\" is not one of gpipe, 1f1b{}", text,
            io::did_you_mean(text, {"gpipe", "1f1b"}));
}

class Pipeline::Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(nn::Module& module, nn::Segments segments, const PipelineOptions& options)
      : module_(module), segments_(std::move(segments)), options_(options) {
    WEFT_CHECK(options.stages, "pipeline: a group of ranks for the stages is needed");
    WEFT_CHECK(options.micro_batches > 0,
               "pipeline: the number of micro-batches must be positive, got {}",
               options.micro_batches);
    WEFT_CHECK(static_cast<int>(segments_.size()) >= stages(),
               "pipeline: {} stages cannot be made of {} segments{}", stages(), segments_.size(),
               segments_.empty() ? ": the model's structure() names none" : "");
    nn::materialize(module);
    const NamedTensors state = module.state_dict();
    verify_same_tensors(*options.stages, state, "pipeline");
    if (options.data) verify_same_tensors(*options.data, state, "pipeline");
    for (const auto& [name, tensor] : state) {
      if (options.data) options.data->broadcast(tensor).wait();
      options.stages->broadcast(tensor).wait();
    }
    device_ = state.empty() ? Device{} : state[0].second.device();
    deal_out(state);
    // A thread each, so that what travels forward does not wait for what travels back.
    for (int boundary = 0; boundary + 1 < stages(); ++boundary) {
      if (boundary != stage() && boundary + 1 != stage()) continue;
      const auto make = [&](const char* direction) {
        return options.stages->group({boundary, boundary + 1},
                                     fmt::format("pipeline {} {}", direction, boundary));
      };
      (boundary == stage() ? forward_out_ : forward_in_) = make("forward");
      (boundary == stage() ? backward_in_ : backward_out_) = make("backward");
    }
  }

  int stage() const { return options_.stages->rank(); }
  int stages() const { return options_.stages->size(); }
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() + 1 == stages(); }

  bool owns(const std::string& name) const {
    const auto place = stage_of_.find(name);
    WEFT_CHECK(place != stage_of_.end(), "pipeline: the model has no tensor \"{}\"", name);
    return place->second == stage();
  }

  void broadcast_buffers() {
    if (!options_.data) return;
    for (const Tensor& buffer : buffers_) options_.data->broadcast(buffer).wait();
  }

  void run(const MicroBatches& batches) {
    const auto attempt = begin();
    if (module_.is_training()) broadcast_buffers();
    const uint64_t drawn = run_in_order(batches);
    generator().offset = last_offset(drawn);
    settle();
    attempt->is_over = true;
  }

  Tensor forward_all(const Tensor& x) {
    WEFT_CHECK(x.dim() > 0 && x.size(0) > 0, "pipeline: expected a batch, got {}", x);
    const auto attempt = begin();
    if (grad_enabled() && module_.is_training()) broadcast_buffers();
    std::vector<int64_t> counts = split_evenly(x.size(0), static_cast<int>(options_.micro_batches));
    std::erase(counts, 0);
    const bool has_dx = is_recording({x});
    const auto flights = std::make_shared<std::vector<Flight>>();
    Tensors outputs;
    int64_t begin = 0;
    // Each micro-batch draws from a stream of its own, the next forward behind all of them.
    const Generator position = generator();
    uint64_t drawn = position.offset, stream = position.stream;
    for (int64_t count : counts) {
      generator() = {position.seed, stream, position.offset};
      stream += kStreams;
      Flight flight = forward(ops::narrow(detach(x), 0, begin, count), has_dx);
      drawn = std::max(drawn, generator().offset);
      begin += count;
      if (is_last()) {
        outputs.push_back(detach(flight.out));
      } else {
        send_on(flight.out);
      }
      if (grad_enabled()) flights->push_back(std::move(flight));
    }
    peak_in_flight_ = std::max(peak_in_flight_, static_cast<int64_t>(flights->size()));
    settle();
    Tensor y;
    {
      const NoGrad guard;
      if (is_last()) y = ops::cat(outputs, 0);
      generator() = {position.seed, position.stream, drawn};
      const Tensor header = is_last() ? header_of(y) : Tensor::zeros({kHeader}, DType::i64);
      options_.stages->broadcast(header, stages() - 1).wait();
      if (!is_last()) y = announced(header, device_);
      options_.stages->broadcast(y, stages() - 1).wait();
    }
    attempt->is_over = true;
    // Gradients of parameters are added where they lie. grad() alone is given them.
    Tensors inputs = {anchor_like(y), x};
    inputs.insert(inputs.end(), all_parameters_.begin(), all_parameters_.end());
    return record("pipeline", inputs, y, {},
                  [self = shared_from_this(), flights, counts, has_dx, shape = x.shape(),
                   dtype = x.dtype()](const Backward& b) -> Tensors {
                    b.require_no_graph();
                    WEFT_CHECK(self->options_.schedule != Schedule::k1F1B,
                               "pipeline: backward() of model(x) is GPipe: all forwards came "
                               "before it, so it cannot follow the schedule 1f1b; call "
                               "fabric.run(), which does, or say gpipe, or nothing");
                    WEFT_CHECK(!flights->empty(),
                               "pipeline: backward was run through it already and its activations "
                               "were freed");
                    const auto attempt = self->watch_.attempt();
                    if (!in_grad()) self->begin_sums();
                    if (self->local_depth_ == 0 && !in_grad()) {
                      self->watch_.begin([self] { self->reduce_gradients(); },
                                         [self] { self->sums_.restore(); });
                    }
                    for (const Flight& flight : *flights) self->await_gradient(flight);
                    Tensors gradients(2 + self->all_parameters_.size());
                    gradients[0] = Tensor::zeros({1}, b.dy().dtype(), b.dy().device());
                    Asked asked;
                    for (size_t i = 2; i < gradients.size() && in_grad(); ++i) {
                      if (b.needs(static_cast<int>(i))) asked.places.push_back(i - 2);
                    }
                    int64_t begin = 0;
                    Tensors parts;
                    for (size_t i = 0; i < flights->size(); ++i) {
                      const Tensor dy = ops::contiguous(ops::narrow(b.dy(), 0, begin, counts[i]));
                      begin += counts[i];
                      const Tensor part = self->backward((*flights)[i], dy, &asked);
                      if (self->is_first()) parts.push_back(part);
                      (*flights)[i] = {};
                    }
                    flights->clear();
                    self->settle();
                    const NoGrad guard;
                    if (has_dx) {
                      const Tensor dx = self->is_first() ? ops::cat(parts, 0) : Tensor();
                      gradients[1] = self->on_all_stages(dx, 0, shape, dtype);
                    }
                    for (const size_t place : asked.places) {
                      const Tensor& p = self->all_parameters_[place];
                      gradients[2 + place] = self->on_all_stages(
                          asked.sums[place], self->stages_of_all_[place], p.shape(), p.dtype());
                    }
                    attempt->is_over = true;
                    return gradients;
                  });
  }

  NamedTensors gather(const NamedTensors& mine) {
    const auto send = [&](const Tensor& x) { options_.stages->send(x, 0).wait(); };
    NamedTensors all;
    if (!is_first()) {
      // A list of names, dtypes and shapes, behind its length, and then the tensors.
      nlohmann::json list = nlohmann::json::array();
      for (const auto& [name, tensor] : mine) {
        list.push_back({name, static_cast<int>(tensor.dtype()),
                        std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())});
      }
      const std::string text = list.dump();
      const Tensor bytes = Tensor::from(std::vector<uint8_t>(text.begin(), text.end()),
                                        {static_cast<int64_t>(text.size())});
      send(Tensor::from(std::vector<int64_t>{bytes.numel()}, {1}));
      send(bytes);
      for (const auto& [name, tensor] : mine) send(to_device(ops::contiguous(tensor), Device{}));
      return all;
    }
    for (const auto& [name, tensor] : mine) all.emplace_back(name, to_device(tensor, Device{}));
    for (int from = 1; from < stages(); ++from) {
      const auto received = [&](const Shape& shape, DType dtype) {
        const Tensor x = Tensor::empty(shape, dtype);
        options_.stages->recv(x, from).wait();
        return x;
      };
      const Tensor bytes = received({received({1}, DType::i64).data<int64_t>()[0]}, DType::u8);
      const auto* text = bytes.data<uint8_t>();
      for (const nlohmann::json& entry : nlohmann::json::parse(text, text + bytes.numel())) {
        all.emplace_back(entry[0].get<std::string>(),
                         received(Shape(entry[2].get<std::vector<int64_t>>()),
                                  static_cast<DType>(entry[1].get<int>())));
      }
    }
    return all;
  }

  nn::Module& module_;
  const nn::Segments segments_;
  const PipelineOptions options_;
  size_t first_ = 0, end_ = 0;  // this stage's segments
  int local_depth_ = 0;         // of no_sync()
  int64_t peak_in_flight_ = 0;

 private:
  /// A micro-batch between its forward and its backward.
  struct Flight {
    Tensor in, out;
    std::shared_ptr<Tensor> dx;  // of `in`, where anybody wants it; else null
  };

  /// What grad() asks for of all_parameters_, by their places there.
  struct Asked {
    std::vector<size_t> places;
    std::unordered_map<size_t, Tensor> sums;  // over the micro-batches, of this stage's
  };

  void deal_out(const NamedTensors& state) {
    std::unordered_map<std::string, size_t> segment_of;
    std::unordered_map<const void*, size_t> tensors;
    for (const auto& [name, tensor] : state) {
      size_t owners = 0;
      for (size_t i = 0; i < segments_.size(); ++i) {
        if (!nn::owns(segments_[i], name)) continue;
        ++owners;
        segment_of[name] = i;
      }
      WEFT_CHECK(owners == 1, "pipeline: \"{}\" belongs to {} segments, expected one", name,
                 owners);
      const auto [other, is_new] = tensors.try_emplace(tensor.storage().get(), segment_of[name]);
      WEFT_CHECK(is_new || other->second == segment_of[name],
                 "pipeline: \"{}\" is tied to a tensor of another segment", name);
    }
    const std::vector<size_t> ends = stage_ends(segments_, state, stages());
    first_ = is_first() ? 0 : ends[stage() - 1];
    end_ = ends[stage()];
    for (const auto& [name, segment] : segment_of) {
      stage_of_[name] =
          static_cast<int>(std::upper_bound(ends.begin(), ends.end(), segment) - ends.begin());
    }
    const auto let_go = [&](const std::string& name, Tensor tensor) {
      const auto absent = std::make_shared<Storage>(
          tensor.nbytes(), tensor.device(), [name, at = stage_of_.at(name)] {
            WEFT_FAIL("pipeline: \"{}\" belongs to stage {}", name, at);
          });
      tensor.set_data(Tensor::view_of(absent, tensor.shape(), contiguous_strides(tensor.shape()), 0,
                                      tensor.dtype()));
    };
    for (const auto& [name, parameter] : module_.named_parameters()) {
      all_parameters_.push_back(parameter);
      stages_of_all_.push_back(stage_of_.at(name));
      if (owns(name)) {
        parameters_.push_back(parameter);
        sums_.watch(parameter);
      } else {
        let_go(name, parameter);
      }
    }
    for (const auto& [name, buffer] : module_.named_buffers()) {
      if (owns(name)) {
        buffers_.push_back(buffer);
      } else {
        let_go(name, buffer);
      }
    }
  }

  /// A run's forwards and backwards. Leaves the generator where it was, and returns the offset
  /// behind what this stage and those before it have drawn.
  uint64_t run_in_order(const MicroBatches& batches) {
    const int64_t in_flight =
        options_.schedule == Schedule::kGpipe ? batches.count : stages() - stage();
    // A micro-batch begins before the one ahead of it has drawn all its numbers.
    const Generator position = generator();
    const ScopedValue restores(generator(), position);
    uint64_t drawn = position.offset;
    std::deque<Flight> flights;
    int64_t forwards = 0;
    for (int64_t backwards = 0; backwards < batches.count; ++backwards) {
      while (forwards < batches.count && forwards - backwards < in_flight) {
        const uint64_t stream = position.stream + static_cast<uint64_t>(forwards) * kStreams;
        generator() = {position.seed, stream, position.offset};
        const MicroBatch batch = batches.at(forwards++);
        Flight flight = forward(batch.input);
        if (is_last()) {
          flight.out = batch.loss(flight.out);
        } else {
          send_on(flight.out);
          await_gradient(flight);
        }
        drawn = std::max(drawn, generator().offset);
        flights.push_back(std::move(flight));
        peak_in_flight_ = std::max(peak_in_flight_, static_cast<int64_t>(flights.size()));
      }
      if (backwards == 0 || !batches.accumulates) begin_sums();
      backward(flights.front(), {});
      flights.pop_front();
      const bool is_reduced = !batches.accumulates || backwards + 1 == batches.count;
      if (is_reduced && local_depth_ == 0) reduce_gradients();
      if (!batches.accumulates && batches.after_each) batches.after_each();
    }
    return drawn;
  }

  /// `has_dx`: also the first stage's input has a gradient.
  Flight forward(const Tensor& input, bool has_dx = false) {
    Flight flight;
    flight.in = is_first() ? input : receive();
    if (!is_first() || has_dx) flight.dx = std::make_shared<Tensor>();
    flight.out = flight.dx ? watched(flight.in, flight.dx) : flight.in;
    const nn::RoutedCall call;
    for (size_t i = first_; i < end_; ++i) flight.out = segments_[i].forward(flight.out);
    return flight;
  }

  /// `dy` is the last stage's; the others get theirs from the next. Returns the gradient of the
  /// stage's input, which went to the stage before; nothing where nobody wants it. Within grad()
  /// those of `asked` parameters that this stage has are added to its sums.
  Tensor backward(const Flight& flight, const Tensor& last_dy, Asked* asked = nullptr) {
    try {
      return run_backward(flight, last_dy, asked);
    } catch (const std::exception& error) {
      // The neighbours would wait for this stage until their deadline.
      for (const CommunicatorPtr& group :
           {forward_in_, forward_out_, backward_in_, backward_out_}) {
        if (group) group->leave(error.what());
      }
      throw;
    }
  }
  Tensor run_backward(const Flight& flight, const Tensor& last_dy, Asked* asked) {
    const Tensor dy = is_last() ? last_dy : receive_gradient();
    if (flight.out.requires_grad() && in_grad()) {
      Tensors inputs;
      std::vector<size_t> mine;
      // Their hooks are for what is handed to the pass around.
      std::deque<ScopedValue<decltype(AutogradMeta::hooks)>> silent;
      for (const size_t place : asked->places) {
        if (stages_of_all_[place] != stage()) continue;
        mine.push_back(place);
        inputs.push_back(all_parameters_[place]);
        silent.emplace_back(inputs.back().autograd()->hooks, decltype(AutogradMeta::hooks)());
      }
      if (flight.dx) inputs.push_back(flight.in);
      const Tensors found = grad({flight.out}, inputs, {dy}, {.allow_unused = true});
      if (flight.dx) *flight.dx = found.back();
      const NoGrad guard;
      for (size_t i = 0; i < mine.size(); ++i) {
        Tensor& sum = asked->sums[mine[i]];
        if (found[i].defined()) sum = sum.defined() ? sum + found[i] : found[i];
      }
    } else if (flight.out.requires_grad()) {
      weft::backward(flight.out, dy);
    }
    if (!flight.dx) return {};
    const NoGrad guard;
    const Tensor dx =
        flight.dx->defined() ? ops::contiguous(*flight.dx) : ops::zeros_like(flight.in);
    *flight.dx = {};
    if (is_first()) return dx;
    sent_.push_back(backward_out_->send(dx, 0));
    ++given_.back;
    return dx;
  }

  /// A gradient that one stage has, or zeros where it has none: what comes before the model in a
  /// program's own graph, and whatever it does with a parameter's, every stage computes.
  Tensor on_all_stages(const Tensor& mine, int from, const Shape& shape, DType dtype) {
    Tensor gradient;
    if (stage() != from) {
      gradient = Tensor::empty(shape, dtype, device_);
    } else {
      gradient = mine.defined() ? ops::clone(mine) : ops::full(shape, 0, dtype, device_);
    }
    options_.stages->broadcast(gradient, from).wait();
    return gradient;
  }

  void send_on(const Tensor& y) {
    const NoGrad guard;
    const Tensor header = header_of(y), values = ops::contiguous(detach(y));
    for (const Tensor& x : {header, values}) sent_.push_back(forward_out_->send(x, 1));
    ++given_.forward;
  }

  /// One that fails behind the header, for want of memory say, leaves the rest to the next.
  Tensor receive() {
    const NoGrad guard;
    if (!header_.defined()) {
      const Tensor header = Tensor::zeros({kHeader}, DType::i64);
      forward_in_->recv(header, 0).wait();
      header_ = header;
    }
    const Tensor x = announced(header_, device_);
    forward_in_->recv(x, 0).wait();
    header_ = {};
    ++taken_.forward;
    return x;
  }

  void await_gradient(const Flight& flight) {
    if (!is_last()) awaited_.push_back({flight.out.shape(), flight.out.dtype()});
  }
  Tensor receive_gradient() {
    const NoGrad guard;
    const auto [shape, dtype] = awaited_.front();
    const Tensor dy = Tensor::empty(shape, dtype, device_);
    backward_in_->recv(dy, 1).wait();
    awaited_.pop_front();
    ++taken_.back;
    return dy;
  }

  /// The last stage's offset, behind all that was drawn in a run: it goes back as gradients do.
  uint64_t last_offset(uint64_t mine) {
    const Tensor offset = Tensor::from(std::vector{static_cast<int64_t>(mine)}, {1});
    if (!is_last()) {
      backward_in_->recv(offset, 1).wait();
      ++taken_.back;
    }
    if (!is_first()) {
      sent_.push_back(backward_out_->send(offset, 0));
      ++given_.back;
    }
    return static_cast<uint64_t>(offset.data<int64_t>()[0]);
  }

  /// Of a run, or of a batch's forward. Clearing the way is part of it: where that fails, on this
  /// stage alone say, the next has to recover.
  std::shared_ptr<PassWatch::Attempt> begin() {
    auto attempt = watch_.attempt([this] { sums_.restore(); });
    if (watch_.recover("pipeline", {options_.stages.get(), options_.data.get()})) clear_the_way();
    return attempt;
  }

  /// Takes what a run that failed has left on its way between the stages, lest the next find it.
  void clear_the_way() {
    const Tensor given = Tensor::empty({stages(), 2}, DType::i64);
    options_.stages
        ->all_gather(given, Tensor::from(std::vector<int64_t>{given_.forward, given_.back}, {1, 2}))
        .wait();
    const auto of = [&](int stage, bool back) { return given.data<int64_t>()[2 * stage + back]; };
    const Generator position = generator();
    while (!is_first() && taken_.forward < of(stage() - 1, false)) receive();
    generator() = position;
    while (!is_last() && taken_.back < of(stage() + 1, true)) {
      if (awaited_.empty()) {  // behind a run's gradients
        backward_in_->recv(Tensor::zeros({1}, DType::i64), 1).wait();
        ++taken_.back;
      } else {
        receive_gradient();
      }
    }
    awaited_.clear();
    settle();
  }

  /// Waits for what was sent; throws what went wrong.
  void settle() {
    for (const Work& work : std::exchange(sent_, {})) work.wait();
  }

  /// Before the first of the gradients that are summed together, or that are not.
  void begin_sums() {
    if (!options_.data || options_.data->size() == 1 || watch_.is_under_way()) return;
    if (local_depth_ > 0) {
      sums_.note_local();
    } else {
      sums_.set_apart("pipeline");
    }
  }

  /// The sum over the data group; the same bits as ddp's.
  void reduce_gradients() {
    if (!options_.data || options_.data->size() == 1) return;
    const NoGrad guard;
    std::vector<Work> works;
    for (const Tensor& p : parameters_) {
      if (!p.grad().defined()) {
        if (!p.requires_grad()) continue;
        p.set_grad(ops::zeros_like(p));
      }
      if (!p.grad().is_contiguous()) p.set_grad(ops::contiguous(p.grad()));
      works.push_back(options_.data->all_reduce(p.grad()));
    }
    for (const Work& work : works) work.wait();
    sums_.complete();
  }

  std::unordered_map<std::string, int> stage_of_;
  Device device_;                 // of the model on this rank
  Tensors parameters_, buffers_;  // of this stage
  Tensors all_parameters_;        // of the model
  std::vector<int> stages_of_all_;
  CommunicatorPtr forward_in_, forward_out_, backward_in_, backward_out_;
  SummedGradients sums_;  // over the data group
  std::vector<Work> sent_;
  PassWatch watch_;  // of runs, and of a batch's forward and backward
  struct Travelled {
    int64_t forward = 0, back = 0;  // micro-batches, and back a run's last_offset()
  };
  Travelled given_, taken_;                      // to the neighbours, from them
  Tensor header_;                                // of what comes next, once it was received
  std::deque<std::pair<Shape, DType>> awaited_;  // gradients that the next stage owes
};

Pipeline::Pipeline(nn::Module& module, nn::Segments segments, const PipelineOptions& options)
    : engine_(std::make_shared<Engine>(module, std::move(segments), options)) {}

int Pipeline::stage() const { return engine_->stage(); }
bool Pipeline::owns(const std::string& name) const { return engine_->owns(name); }
int64_t Pipeline::peak_in_flight() const { return engine_->peak_in_flight_; }
void Pipeline::run(const MicroBatches& batches) { engine_->run(batches); }
void Pipeline::broadcast_buffers() { engine_->broadcast_buffers(); }
Tensor Pipeline::operator()(const Tensor& x) { return engine_->forward_all(x); }
NamedTensors Pipeline::gather(const NamedTensors& mine) { return engine_->gather(mine); }

std::vector<std::string> Pipeline::segment_names() const {
  std::vector<std::string> names;
  for (size_t i = engine_->first_; i < engine_->end_; ++i) {
    names.push_back(engine_->segments_[i].name);
  }
  return names;
}

std::shared_ptr<void> Pipeline::no_sync() {
  ++engine_->local_depth_;
  return {nullptr, [engine = engine_](void*) { --engine->local_depth_; }};
}

}  // namespace weft::dist
