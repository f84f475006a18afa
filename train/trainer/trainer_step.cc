// The steps of a fit: passes over the batches of each, and its update.
#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/finite.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/allocator.h"
#include "core/log.h"
#include "core/scoped_value.h"
#include "dist/comm/tree_accumulator.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "optim/clip.h"
#include "train/trainer/trainer.h"

namespace weft::train {

Batch Trainer::begin_batch() {
  Batch batch = next_of(*train_, batch_, train_batches_);
  has_stepped_ =
      ++batches_in_step_ == options_.accumulate_grad_batches || batch_ + 1 == train_batches_;
  call(&Callback::on_train_batch_start, *this, *module_, batch, batch_);
  samples_ += static_cast<int64_t>(weight_);
  return batch;
}

void Trainer::train_step() {
  was_captured_ = false;
  if (captures_ && has_warmed_up_) return train_captured();
  if (!module_->automatic_optimization) return train_by_hand();
  do is_pipelined_ || options_.micro_batches ? train_micro_batches() : train_batch();
  while (!has_stepped_);
  has_warmed_up_ = true;
}

/// What a step of the module returns, led as a call of its model, so that it may call parts of it.
/// A strategy that cannot, and several models, are led call by call: there a part refuses.
Tensor Trainer::led(TrainingModule& module, const std::function<Tensor()>& step) {
  const bool is_led = module.models().size() == 1 && fabric_.strategy().calls_functions();
  return is_led ? fabric_.forward(module.model(), step) : step();
}

/// Forward and backward of a batch; loss_ is what it came to.
std::function<void()> Trainer::pass_of(const Batch& batch, int64_t index) {
  return [this, batch, index, in_step = options_.accumulate_grad_batches] {
    const Tensor loss = led(*module_, [&] { return module_->training_step(batch, index); });
    WEFT_CHECK(loss.defined() && loss.numel() == 1,
               "trainer: expected training_step() to return one number, the loss, got {}",
               loss.defined() ? fmt::format("{}", loss) : "nothing");
    fabric_.backward(in_step == 1 ? loss : loss * (1.0 / static_cast<double>(in_step)));
    loss_ = detach(loss);
  };
}

void Trainer::train_batch() {
  const Batch batch = begin_batch();
  if (batches_in_step_ == 1) optimizer().zero_grad();
  const int64_t index = batch_;
  {
    const ScopedValue phase(phase_, Phase::kTraining);
    const auto local = fabric_.no_backward_sync(module_->model(), !has_stepped_);
    const std::function<void()> pass = pass_of(batch, index);
    compute_gradients(pass);
    note_pass(pass);
  }
  ++batch_;
  if (has_stepped_) take_step();
  call(&Callback::on_train_batch_end, *this, *module_, loss_, batch, index);
}

/// A batch whose step, or steps, the module takes itself.
void Trainer::train_by_hand() {
  const Batch batch = begin_batch();
  const int64_t index = batch_;
  const std::vector<double> rates_before = rates();
  {
    const ScopedValue phase(phase_, Phase::kTraining);
    compute_gradients([&] {
      const Tensor loss = module_->training_step(batch, index);
      loss_ = loss.defined() ? detach(loss) : Tensor();
    });
  }
  ++batch_;
  end_step(rates_before, false);
  call(&Callback::on_train_batch_end, *this, *module_, loss_, batch, index);
}

/// A batch, or a part of one, as strategies take it; one that does not count is there to fill up.
dist::MicroBatch Trainer::micro_batch(const Batch& batch, double share, bool counts) {
  const Precision& precision = find_precision(fabric_.options().precision);
  Tensor input = module_->input(batch);
  if (is_floating(input.dtype())) input = ops::cast(input, precision.parameters);
  const auto loss = [this, &precision, batch, share, counts](const Tensor& output) {
    weight_ = counts ? weight_of(batch) : 0;
    const Tensor mean = module_->loss(widened(output, precision), batch);
    loss_ = detach(mean);
    note_pass([this, batch, share] {
      fabric_.run({.count = 1, .at = [&](int64_t) { return micro_batch(batch, share); }});
    });
    return fabric_.scaled(mean * share);
  };
  return {input, loss};
}

/// A step by input() and loss(), in the strategy's own order.
void Trainer::train_micro_batches() {
  const int64_t first = batch_;
  const int64_t count = std::min(options_.accumulate_grad_batches, train_batches_ - batch_);
  // A pipeline cuts batches that are not cut yet.
  const int64_t parts = options_.micro_batches ? 1 : fabric_.strategy().micro_batches();
  std::vector<Batch> batches;
  int64_t ended = 0;
  const auto end_next = [&] {
    Batch& batch = batches[ended];
    call(&Callback::on_train_batch_end, *this, *module_, loss_, batch, first + ended);
    batch.clear();
    ++ended;
  };
  const auto piece_of = [&](const Batch& batch, int64_t part) {
    if (parts == 1) return batch;
    const int64_t rows = batch.at(0).size(0);
    const int64_t begin = part * rows / parts, end = (part + 1) * rows / parts;
    // A part that would be empty holds a sample of another one.
    Batch piece;
    for (const Tensor& x : batch) {
      piece.push_back(ops::narrow(x, 0, begin, std::max<int64_t>(1, end - begin)));
    }
    return piece;
  };
  const auto fraction_of = [&](const Batch& batch, int64_t part) {
    if (parts == 1) return 1.0;
    const int64_t rows = batch.at(0).size(0);
    const int64_t count = (part + 1) * rows / parts - part * rows / parts;
    return static_cast<double>(count) / static_cast<double>(rows);
  };
  const auto at = [&](int64_t i) {
    if (i % parts == 0) {
      if (!is_pipelined_ && i > 0) end_next();
      batches.push_back(begin_batch());
      ++batch_;
    }
    const Batch& batch = batches.back();
    const double fraction = fraction_of(batch, i % parts);
    return micro_batch(piece_of(batch, i % parts), module_->share(batch, count) * fraction,
                       fraction > 0);
  };
  loss_ = {};
  optimizer().zero_grad();
  dist::TreeAccumulator tree;
  dist::MicroBatches step = {.count = count * parts, .at = at};
  if (options_.deterministic_reduce) {
    step.accumulates = false;
    step.after_each = [&] { tree.push(dist::take_gradients(optimizer().parameters())); };
  }
  {
    const ScopedValue phase(phase_, Phase::kTraining);
    compute_gradients([&] { fabric_.run(step); });
  }
  if (options_.deterministic_reduce) {
    dist::set_gradients(optimizer().parameters(), tree.finish());
  }
  take_step();
  while (ended < count) {
    has_stepped_ = ended + 1 == count;
    end_next();
  }
}

/// Empty where they can be, as far as can be told beforehand.
std::string Trainer::why_not_captured() const {
  const Precision& precision = find_precision(fabric_.options().precision);
  if (fabric_.device().type != DeviceType::cuda) {
    return fmt::format("{} has no graphs", to_string(fabric_.device()));
  }
  if (fabric_.size() > 1) {
    return "the host watches over what ranks send each other, call by call, and would not see a "
           "rank fail inside a graph";
  }
  if (fabric_.data_devices() > 1) return "several devices meet in the middle of it";
  if (!module_->automatic_optimization) return "training_step() takes its steps itself";
  if (options_.deterministic_reduce) return "deterministic_reduce adds on the host";
  if (options_.detect_anomaly) return "detect_anomaly looks at every result";
  if (precision.is_fp8()) return "fp8 waits for the device to choose its scales";
  return {};
}

/// The passes of a step whose batches are there, for a process alone; returns their losses.
Tensors Trainer::run_passes(const std::vector<Batch>& batches, int64_t first) {
  const auto count = static_cast<int64_t>(batches.size());
  Tensors losses;
  if (options_.micro_batches) {
    fabric_.run({.count = count, .at = [&](int64_t i) {
                   if (i > 0) losses.push_back(loss_);
                   return micro_batch(batches[i], module_->share(batches[i], count));
                 }});
    losses.push_back(loss_);
    return losses;
  }
  for (int64_t i = 0; i < count; ++i) {
    weight_ = weight_of(batches[i]);
    const std::function<void()> pass = pass_of(batches[i], first + i);
    pass();
    note_pass(pass);
    losses.push_back(loss_);
  }
  return losses;
}

/// Where that cannot be, steps go on as they were.
void Trainer::capture(const std::vector<Batch>& batches, int64_t first) {
  const Generator before = generator();
  captured_ = std::make_unique<CapturedPasses>(fabric_.device(), module_->model());
  try {
    const ScopedValue recording(recording_, captured_.get());
    captured_->capture(batches,
                       [&](const std::vector<Batch>& copies) { return run_passes(copies, first); });
  } catch (const Error& error) {
    WEFT_CHECK(options_.capture != Capture::kOn, "capture: step {} cannot be captured: {}",
               global_step_ + 1, error.what());
    log_once(fmt::format("steps are not captured: {}", error.what()));
    captured_.reset();
    captures_ = false;
    generator() = before;
    optimizer().zero_grad();
  }
}

/// A step whose passes are a graph, which is captured when there is none yet.
void Trainer::train_captured() {
  const int64_t first = batch_;
  std::vector<Batch> batches, there;
  do {
    batches.push_back(begin_batch());
    Batch& batch = there.emplace_back();
    for (const Tensor& x : batches.back()) batch.push_back(ops::to(x, fabric_.device()));
    ++batch_;
  } while (!has_stepped_);
  Tensors losses;
  {
    const ScopedValue phase(phase_, Phase::kTraining);
    optimizer().zero_grad();
    if (!captured_) capture(there, first);
    was_captured_ = captured_ && captured_->fits(there);
    if (was_captured_) {
      fabric_.scaler().bring();
      captured_->launch(there);
      for (const CapturedPasses::Logged& logged : captured_->logged()) {
        weight_ = weight_of(there[logged.pass]);
        log_value(logged.name, logged.value, logged.options);
      }
      // The next launch writes to these anew, which callbacks may keep.
      for (const Tensor& loss : captured_->losses()) {
        losses.push_back(loss.defined() ? ops::clone(loss) : loss);
      }
      for (size_t i = 0; i < there.size(); ++i) {
        loss_ = losses[i];
        note_pass([this, batch = there[i], first] { run_passes({batch}, first); });
      }
    } else {
      losses = run_passes(there, first);
    }
  }
  take_step();
  for (size_t i = 0; i < batches.size(); ++i) {
    has_stepped_ = i + 1 == batches.size();
    loss_ = losses[i];
    call(&Callback::on_train_batch_end, *this, *module_, loss_, batches[i],
         first + static_cast<int64_t>(i));
  }
}

void Trainer::compute_gradients(const std::function<void()>& pass) {
  try {
    pass();
  } catch (const Error& error) {
    if (!options_.detect_anomaly) throw;
    WEFT_FAIL("step {}: {}", global_step_ + 1, error.what());
  }
}

/// After a pass: loss_ is its own.
void Trainer::note_pass(const std::function<void()>& again) {
  if (options_.nonfinite != Nonfinite::kStop || recording_ || !loss_.defined()) return;
  if (!passes_.empty() && loss_.device().type == DeviceType::cpu) {
    if (!std::isfinite(passes_[0].loss.item())) return;
    passes_.clear();
  }
  passes_.push_back({again, loss_});
}

void Trainer::take_step() {
  const Tensor unscaled_norm = fabric_.unread_unscale(optimizer());
  refusal_.clear();
  expected_ = {};
  call(&Callback::on_before_optimizer_step, *this, *module_, optimizer());
  const double limit = options_.gradient_clip_val;
  const bool clips_norm = limit > 0 && options_.gradient_clip_algorithm == GradientClip::kNorm;
  const bool clips_value = limit > 0 && !clips_norm;
  const bool judges = options_.nonfinite != Nonfinite::kTake && !fabric_.scaler().is_enabled();
  const bool has_norm = clips_norm || options_.track_grad_norm || judges;
  grad_norm_ = has_norm ? norm_of_gradients(unscaled_norm) : Tensor();
  const std::vector<double> rates_before = rates();
  // What is not finite decides on the device, and the host looks when the step is on its way; but a
  // word of the host's is known, and values that are clipped would hide what was not finite.
  const bool looks_first = !refusal_.empty() || (clips_value && judges);
  bool is_left_out = looks_first && is_refused(judges);
  was_skipped_ = is_left_out;
  if (is_left_out) {
    fabric_.skip_step();
  } else {
    if (clips_value) optim::clip_grad_value(optimizer().parameters(), limit);
    was_skipped_ = !fabric_.step(optimizer(), 1, gate(judges, clips_norm ? limit : 0));
    if (!looks_first && is_refused(judges)) {
      optimizer().retract();
      was_skipped_ = is_left_out = true;
    }
    if (scheduler() && !is_left_out) scheduler()->step();
  }
  end_step(rates_before, has_norm);
}

/// The learning rates, of each optimizer.
std::vector<double> Trainer::rates() const {
  std::vector<double> rates;
  for (const Part& part : parts_) rates.push_back(part.optimizer->lr());
  return rates;
}

/// `rates`: that the step has used. `has_norm`: there is a grad_norm().
void Trainer::end_step(const std::vector<double>& rates, bool has_norm) {
  passes_.clear();
  batches_in_step_ = 0;
  ++global_step_;
  NamedValues values;
  if (global_step_ % options_.log_every_n_steps == 0) {
    values = step_means_.means(fabric_);
    step_means_.clear();
    for (auto& [name, value] : values) name += "_step";
    for (size_t i = 0; i < rates.size(); ++i) {
      values.emplace_back(i == 0 ? "lr" : fmt::format("lr_{}", i), rates[i]);
    }
    if (has_norm) values.emplace_back("grad_norm", grad_norm());
  }
  publish(values, std::exchange(step_figures_, {}));
}

/// Of what the optimizer trains: nobody drops the gradients of other parameters, which add up from
/// step to step. `unscaled`: of this rank's, as the loss scale's unscaling has found it.
Tensor Trainer::norm_of_gradients(const Tensor& unscaled) {
  // Exactly summed, also where one rank has them all.
  if (options_.deterministic_reduce) {
    const double squares = fabric_.strategy().squares(optimizer().parameters()).value();
    return Tensor::scalar(std::sqrt(squares), DType::f64);
  }
  const bool is_alone = fabric_.size() == 1 && fabric_.data_devices() == 1;
  if (fabric_.scaler().is_enabled() && is_alone) {
    return unscaled.defined() ? unscaled : Tensor::scalar(0, DType::f64);
  }
  return optim::unread_norm(optimizer().parameters());
}

double Trainer::grad_norm() const { return grad_norm_.defined() ? grad_norm_.item() : NAN; }

size_t Trainer::peak_bytes() const {
  const size_t here = allocator(fabric_.device()).stats().peak_live;
  return was_captured_ ? std::max(here, captured_->peak_bytes()) : here;
}

/// What leaves the step out, or shortens it, where it runs.
kernels::StepGate Trainer::gate(bool judges, double max_norm) const {
  kernels::StepGate gate = {.norm = grad_norm_, .max_norm = max_norm, .needs_finite = judges};
  const bool heeds = options_.nonfinite == Nonfinite::kStop || judges;  // see is_refused()
  if (expected_.value.defined() && heeds) {
    gate.skip = Tensor::empty({}, DType::f32, expected_.value.device());
    kernels::multi_tensor_scale({.tensors = {expected_.value}, .found_inf = gate.skip});
  }
  return gate;
}

/// Whether the step at hand is to be left out. Throws where nothing would get better by it, the
/// weights themselves being lost, and where it was not asked for.
bool Trainer::is_refused(bool judges) {
  if (options_.nonfinite == Nonfinite::kTake) return false;
  std::string why = refusal_;
  if (why.empty() && expected_.value.defined()) {
    const double value = expected_.value.item();
    if (!std::isfinite(value)) {
      why = fmt::format("{} is {}", expected_.what, std::isnan(value) ? NAN : value);
    }
  }
  if (why.empty() && judges && !std::isfinite(grad_norm())) why = "a gradient is not finite";
  if (why.empty()) return false;
  const std::string lost = first_nonfinite(module_->model().named_parameters());
  if (!lost.empty()) fail_diverged(why, lost + " is not finite");
  if (options_.nonfinite == Nonfinite::kStop) fail_diverged(why, "");
  return !fabric_.scaler().is_enabled();  // which leaves it out itself, and becomes smaller
}

/// With a cause, as far as it can be told.
void Trainer::fail_diverged(const std::string& why, std::string cause) {
  if (cause.empty()) {
    NamedTensors gradients;
    for (const auto& [name, parameter] : module_->model().named_parameters()) {
      gradients.emplace_back(name, parameter.grad());
    }
    // Backward comes to the last ones first.
    std::ranges::reverse(gradients);
    const std::string gradient = first_nonfinite(gradients);
    // Several ranks would have to repeat the step together.
    if (fabric_.size() == 1) {
      const AnomalyMode checked;
      const ScopedValue phase(phase_, Phase::kTraining);
      const std::vector<Pass> passes = std::exchange(passes_, {});
      const auto suspect = std::ranges::find_if(
          passes, [](const Pass& pass) { return !std::isfinite(pass.loss.item()); });
      try {
        (suspect == passes.end() ? passes.back() : *suspect).again();
      } catch (const Error& error) {
        cause = error.what();
      }
    }
    if (!gradient.empty()) {
      cause += fmt::format("{}first in the gradient of {}", cause.empty() ? "" : "; ", gradient);
    }
  }
  WEFT_FAIL(
      "training diverged at step {}: {}{}; try a lower learning rate, or leave such steps out "
      "(nonfinite: skip)",
      global_step_ + 1, why, cause.empty() ? "" : fmt::format(" ({})", cause));
}

}  // namespace weft::train
