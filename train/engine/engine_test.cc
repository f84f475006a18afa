// DeepSpeed's loop, against a plain one and against itself on several ranks.
#include "train/engine/engine.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "dist/comm/in_process.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/optimizer_state.h"
#include "tests/json_damage.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

using Json = nlohmann::json;

std::unique_ptr<nn::Sequential> make_model() {
  manual_seed(5);
  auto model = std::make_unique<nn::Sequential>();
  model->append<nn::Linear>(6, 12);
  model->append<nn::GELU>();
  model->append<nn::Linear>(12, 4);
  return model;
}

/// Row `begin` to `end` of 8 that belong to a step.
std::pair<Tensor, Tensor> rows(int64_t step, int64_t begin, int64_t end) {
  Philox random(7, static_cast<uint64_t>(step));
  std::vector<float> values(8 * 6);
  for (float& v : values) v = static_cast<float>(random.normal());
  const Tensor labels = Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 3, 2, 1, 0}, {8});
  return {ops::contiguous(ops::narrow(Tensor::from(values, {8, 6}), 0, begin, end - begin)),
          ops::contiguous(ops::narrow(labels, 0, begin, end - begin))};
}

std::vector<double> weights_of(nn::Module& model) {
  std::vector<double> all;
  for (const Tensor& p : model.parameters()) {
    for (const double v : p.to_vector()) all.push_back(v);
  }
  return all;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

/// Of eight rows: `devices` take theirs in two micro-batches each.
Json config(int64_t devices, Json more = Json::object()) {
  Json all = {{"train_batch_size", 8},
              {"train_micro_batch_size_per_gpu", 4 / devices},
              {"gradient_accumulation_steps", 2},
              {"gradient_clipping", 0.5},
              {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}, {"betas", {0.8, 0.9}}}}}},
              {"scheduler",
               {{"type", "WarmupLR"},
                {"params",
                 {{"warmup_max_lr", 0.01}, {"warmup_num_steps", 3}, {"warmup_type", "linear"}}}}}};
  all.update(more);
  return all;
}

/// Steps `begin` to `end`. Throws Error where a boundary is not where it belongs.
void run(Engine& engine, int64_t begin, int64_t end) {
  const int64_t size = engine.train_micro_batch_size_per_gpu();
  const int64_t count = engine.gradient_accumulation_steps();
  const Fabric& fabric = engine.fabric();
  for (int64_t step = begin; step < end; ++step) {
    for (int64_t micro = 0; micro < count; ++micro) {
      const bool is_last = micro + 1 == count;
      WEFT_CHECK(engine.is_gradient_accumulation_boundary() == is_last, "micro-batch {}", micro);
      const int64_t first = size * (micro * fabric.data_devices() + fabric.data_rank());
      const auto [x, labels] = rows(step, first, first + size);
      engine.backward(ops::cross_entropy(engine(x), labels));
      engine.step();
      WEFT_CHECK(engine.was_step_applied() == is_last, "a step after micro-batch {}", micro);
    }
  }
}

std::string fresh(const std::string& name) {
  const auto place = std::filesystem::temp_directory_path() / ("engine_test_" + name);
  std::filesystem::remove_all(place);
  return place.string();
}

}  // namespace

TEST_CASE("the engine's steps are those of a plain loop") {
  const auto model = make_model();
  Engine engine(*model, config(1));
  CHECK(engine.train_batch_size() == 8);
  const auto plain = make_model();
  optim::AdamW optimizer(plain->named_parameters(),
                         {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0});
  const std::vector<double> rates = {0, 0, 0.01 / 3, 0.02 / 3, 0.01};
  for (int64_t step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    for (int64_t micro = 0; micro < 2; ++micro) {
      const auto [x, labels] = rows(step, 4 * micro, 4 * micro + 4);
      backward(ops::cross_entropy((*plain)(x), labels) * 0.5);
    }
    const double norm = optim::clip_grad_norm(plain->parameters(), 0.5);
    const double rate = engine.get_lr().at(0);
    CHECK(rate == Approx(rates[step]).margin(1e-15));
    optimizer.set_lr(rate);
    optimizer.step();
    run(engine, step, step + 1);
    CHECK(engine.get_global_grad_norm() == norm);
  }
  CHECK(distance(weights_of(*model), weights_of(*plain)) == 0);
  CHECK(engine.global_steps() == 5);
  CHECK(engine.micro_steps() == 10);
  CHECK(engine.global_samples() == 40);
  CHECK(engine.skipped_steps() == 0);
}

TEST_CASE("the engine's norm is that of the gradients that its optimizer has") {
  const auto model = make_model();
  const NamedTensors all = model->named_parameters();
  optim::AdamW last(NamedTensors(all.end() - 2, all.end()));
  Engine engine(*model, config(1, {{"gradient_clipping", 0}}), {.optimizer = &last});
  std::vector<double> norms;
  for (int step = 0; step < 2; ++step) {  // of rate 0
    run(engine, 0, 1);
    norms.push_back(engine.get_global_grad_norm().value());
  }
  // Nobody drops the gradients of the first layer, which add up.
  CHECK(norms[0] == norms[1]);
}

TEST_CASE("every stage of ZeRO on two ranks takes the steps of one") {
  const auto alone = make_model();
  Engine one(*alone, config(1));
  run(one, 0, 4);
  for (const int stage : {0, 1, 2, 3}) {
    INFO("stage " << stage);
    const std::string directory = fresh("stages");
    dist::run_ranks(2, [&](dist::Communicator& c) {
      const auto model = make_model();
      Engine engine(*model, config(2, {{"zero_optimization", {{"stage", stage}}}}),
                    {.world = {&c, [](dist::Communicator*) {}}});
      run(engine, 0, 3);
      engine.save_checkpoint(directory, {.client_state = {{"epoch", 3}}});
    });
    // Taken up by one rank: the client's state, the counts, the schedule and the weights.
    const auto model = make_model();
    Engine engine(*model, config(1));
    const auto loaded = engine.load_checkpoint(directory);
    REQUIRE(loaded);
    CHECK(loaded->client_state == Json{{"epoch", 3}});
    CHECK_THAT(loaded->path, Contains("global_step3"));
    CHECK(engine.global_steps() == 3);
    run(engine, 3, 4);
    CHECK(distance(weights_of(*model), weights_of(*alone)) < 1e-6);
  }
}

TEST_CASE("gradients travel in the file's format, of copies and of shards, and not on one device") {
  const Json bf16 = {{"communication_data_type", "bf16"}};
  const auto model = make_model();
  Engine alone(*model, config(1, bf16));
  CHECK(alone.fabric().options().strategy.compress_dtype.empty());
  CHECK(alone.fabric().options().strategy.reduce_dtype.empty());
  dist::run_ranks(2, [&](dist::Communicator& c) {
    for (const int stage : {0, 2}) {
      Json all = config(2, bf16);
      all["zero_optimization"] = {{"stage", stage}};
      const auto mine = make_model();
      Engine engine(*mine, all, {.world = {&c, [](dist::Communicator*) {}}});
      const dist::StrategyOptions& strategy = engine.fabric().options().strategy;
      WEFT_CHECK(strategy.compress_dtype == (stage == 0 ? "bf16" : "") &&
                     strategy.reduce_dtype == (stage == 0 ? "" : "bf16"),
                 "stage {}: \"{}\" and \"{}\"", stage, strategy.compress_dtype,
                 strategy.reduce_dtype);
    }
  });
}

TEST_CASE("trap: forward passes beside a micro-batch's own leave the boundary's sums as they are") {
  const auto alone = make_model();
  Engine one(*alone, config(1));
  run(one, 0, 3);
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool is_set_by_hand : {false, true}) {
      INFO("stage " << stage << (is_set_by_hand ? ", the boundary set by hand" : ""));
      const std::string directory = fresh("forward_passes");
      dist::run_ranks(2, [&](dist::Communicator& c) {
        const auto model = make_model();
        Engine engine(*model, config(2, {{"zero_optimization", {{"stage", stage}}}}),
                      {.world = {&c, [](dist::Communicator*) {}}});
        const int64_t size = engine.train_micro_batch_size_per_gpu();
        for (int64_t step = 0; step < 3; ++step) {
          for (int64_t micro = 0; micro < 2; ++micro) {
            const int64_t first = size * (2 * micro + c.rank());
            const auto [x, labels] = rows(step, first, first + size);
            if (is_set_by_hand) engine.set_gradient_accumulation_boundary(false);
            {
              const NoGrad guard;
              engine(x);
            }
            if (is_set_by_hand) {
              engine.set_gradient_accumulation_boundary(micro == 1);
              engine(x);
            }
            engine.backward(ops::cross_entropy(engine(x), labels));
            engine.step();
          }
        }
        engine.save_checkpoint(directory);
      });
      const auto model = make_model();
      Engine engine(*model, config(1));
      REQUIRE(engine.load_checkpoint(directory));
      CHECK(engine.global_steps() == 3);
      CHECK(distance(weights_of(*model), weights_of(*alone)) < 1e-6);
    }
  }
}

TEST_CASE("a checkpoint goes on under another accumulation, the same batch on other ranks") {
  const auto micro_batches = [](int64_t size, int64_t count) {
    return Json{{"train_micro_batch_size_per_gpu", size}, {"gradient_accumulation_steps", count}};
  };
  const auto alone = make_model();
  Engine one(*alone, config(1));
  run(one, 0, 4);
  const std::string directory = fresh("accumulation");
  dist::run_ranks(2, [&](dist::Communicator& c) {
    const auto model = make_model();
    Engine engine(*model, config(2, micro_batches(4, 1)),
                  {.world = {&c, [](dist::Communicator*) {}}});
    run(engine, 0, 3);
    engine.save_checkpoint(directory);
  });
  // After three micro-batches a count of all of them would end a step in the middle of a batch.
  for (const auto& [size, count] : {std::pair(4, 2), {2, 4}, {8, 1}}) {
    INFO(count << " micro-batches of " << size);
    const auto model = make_model();
    Engine engine(*model, config(1, micro_batches(size, count)));
    REQUIRE(engine.load_checkpoint(directory));
    CHECK(engine.micro_steps() == 3);
    run(engine, 3, 4);
    CHECK(engine.global_steps() == 4);
    CHECK(distance(weights_of(*model), weights_of(*alone)) < 1e-6);
  }
}

TEST_CASE("a load drops what has begun of a step") {
  const auto whole = make_model();
  Engine engine(*whole, config(1));
  run(engine, 0, 4);
  const std::string directory = fresh("interrupted");
  const auto model = make_model();
  Engine interrupted(*model, config(1));
  run(interrupted, 0, 2);
  interrupted.save_checkpoint(directory);
  const auto [x, labels] = rows(7, 0, 4);
  interrupted.backward(ops::cross_entropy(interrupted(x), labels));
  interrupted.step();
  interrupted(x);
  REQUIRE(interrupted.load_checkpoint(directory));
  CHECK_FALSE(interrupted.is_gradient_accumulation_boundary());
  CHECK_NOTHROW(interrupted.save_checkpoint(directory));
  run(interrupted, 2, 4);
  CHECK(distance(weights_of(*whole), weights_of(*model)) == 0);
}

TEST_CASE("an engine that goes on from its checkpoint ends with the same bits") {
  const auto whole = make_model();
  Engine engine(*whole, config(1));
  run(engine, 0, 2);
  const std::string directory = fresh("goes_on");
  engine.save_checkpoint(directory, {.tag = "half"});
  run(engine, 2, 4);
  const auto other = make_model();
  Engine continued(*other, config(1));
  REQUIRE(continued.load_checkpoint(directory));
  CHECK(continued.get_lr().at(0) == Approx(0.01 / 3));
  run(continued, 2, 4);
  CHECK(distance(weights_of(*whole), weights_of(*other)) == 0);

  CHECK(!continued.load_checkpoint(fresh("nothing")));
  CHECK_THROWS_WITH(continued.load_checkpoint(directory, "third"), Contains("third"));
  CHECK_THROWS_WITH(continued.save_checkpoint(directory, {.tag = "../x"}),
                    "engine: " + directory +
                        ": tag: expected a name of a file other than \"latest\", got \"../x\"");
  const auto [x, labels] = rows(4, 0, 4);
  continued.backward(ops::cross_entropy(continued(x), labels));
  CHECK_THROWS_WITH(continued.save_checkpoint(directory), Contains("in the middle of a step"));
}

TEST_CASE("a tag has the state that was saved last, whole or sharded") {
  const std::string directory = fresh("kinds");
  const EngineCheckpoint best = {.tag = "best"};
  std::vector<double> saved;
  const auto train_on = [&](const std::string& type) {
    const auto model = make_model();
    Engine engine(*model, config(1), {.state_dict_type = type});
    const int64_t steps = engine.load_checkpoint(directory) ? engine.global_steps() : 0;
    run(engine, steps, steps + 2);
    engine.save_checkpoint(directory, best);
    saved = weights_of(*model);
  };
  int64_t steps = 0;
  for (const std::string type : {"full", "sharded", "full"}) {
    INFO(type);
    train_on(type);
    steps += 2;
    for (const std::string other : {"full", "sharded"}) {
      const auto model = make_model();
      Engine engine(*model, config(1), {.state_dict_type = other});
      REQUIRE(engine.load_checkpoint(directory, "best"));
      CHECK(engine.global_steps() == steps);
      CHECK(weights_of(*model) == saved);
    }
  }
}

TEST_CASE("a load takes those parts of a checkpoint that it is asked for") {
  const auto saved = make_model();
  Engine engine(*saved, config(1));
  run(engine, 0, 2);
  const std::string directory = fresh("parts");
  engine.save_checkpoint(directory);
  const auto check = [&](const EngineLoadOptions& options, bool optimizer, int64_t schedule,
                         int64_t steps) {
    const auto model = make_model();
    Engine other(*model, config(1));
    run(other, 0, 1);
    const auto moment = [&] {
      return other.optimizer().state_dict().tensors.at(0).second.to_vector();
    };
    const std::vector<double> before = moment();
    REQUIRE(other.load_checkpoint(directory, {}, options));
    CHECK(distance(weights_of(*saved), weights_of(*model)) == 0);
    CHECK(other.global_steps() == steps);
    CHECK(other.lr_scheduler()->step_count() == schedule);
    CHECK((distance(moment(), before) > 0) == optimizer);
  };
  check({}, true, 2, 2);
  check({.optimizer_states = false}, false, 2, 2);
  check({.lr_scheduler_states = false}, true, 1, 2);
  check({.module_only = true}, false, 1, 1);
}

TEST_CASE("a boundary set by hand says where an engine's step ends, to its checkpoints, too") {
  const std::string directory = fresh("boundary");
  const auto model = make_model();
  Engine engine(*model, config(1, {{"gradient_accumulation_steps", 2}}));
  const auto micro_batch = [&] {
    const auto [x, labels] = rows(0, 0, 4);
    engine.backward(ops::cross_entropy(engine(x), labels));
    engine.step();
  };
  engine.set_gradient_accumulation_boundary(true);
  micro_batch();
  CHECK(engine.was_step_applied());
  CHECK_NOTHROW(engine.save_checkpoint(directory));
  engine.set_gradient_accumulation_boundary(false);
  for (int i = 0; i < 2; ++i) {
    micro_batch();
    CHECK_THROWS_WITH(engine.save_checkpoint(directory), Contains("in the middle of a step"));
  }
}

TEST_CASE("an engine's checkpoint that is damaged is named") {
  const std::string directory = fresh("damaged");
  const auto model = make_model();
  Engine engine(*model, config(1));
  run(engine, 0, 1);
  engine.save_checkpoint(directory, {.tag = "one", .client_state = {{"epoch", 3}}});
  const io::Path latest = io::Path(directory) / "latest";
  const std::string tag = io::read_text(latest);
  for (size_t size = 0; size + 1 < tag.size(); ++size) {  // but for the end of the line
    std::ofstream(latest) << tag.substr(0, size);
    CHECK_THROWS_WITH(engine.load_checkpoint(directory), Contains(directory));
  }
  std::ofstream(latest) << tag;
  const std::string file = engine.load_checkpoint(directory)->path;
  const io::SafeTensors saved = io::read_safetensors(file);
  const Json whole = Json::parse(saved.metadata.at("weft.state"));
  int errors = 0;
  for_each_damage(whole.at("engine"), [&](const Json& damaged, const std::string& key) {
    Json all = whole;
    all["engine"] = damaged;
    io::Metadata metadata = saved.metadata;
    metadata["weft.state"] = all.dump();
    io::write_safetensors(file, saved.tensors, metadata);
    INFO(damaged.dump());
    try {
      engine.load_checkpoint(directory);
    } catch (const Error& error) {
      ++errors;
      CHECK_THAT(error.what(), Contains(file) && Contains(key == "value" ? "engine" : key));
    }
  });
  CHECK(errors > 20);
  io::write_safetensors(file, saved.tensors, saved.metadata);
  for (uintmax_t size = std::filesystem::file_size(file); size-- > 0;) {
    std::filesystem::resize_file(file, size);
    CHECK_THROWS_WITH(engine.load_checkpoint(directory), Contains(file));
  }
}

TEST_CASE("a step whose gradients overflow is left out and counted") {
  const auto model = make_model();
  Engine engine(
      *model,
      config(1, {{"fp16", {{"enabled", true}, {"initial_scale_power", 100}, {"hysteresis", 1}}}}));
  const std::vector<double> before = weights_of(*model);
  const std::vector<double> rate = engine.get_lr();
  for (int64_t micro = 0; micro < 2; ++micro) {
    const auto [x, labels] = rows(0, 4 * micro, 4 * micro + 4);
    engine.backward(ops::cross_entropy(engine(x), labels));
    engine.step();
  }
  CHECK(!engine.was_step_applied());
  CHECK(engine.skipped_steps() == 1);
  CHECK(engine.global_steps() == 1);
  CHECK(engine.loss_scale() == std::exp2(99));
  CHECK(engine.get_lr() == rate);
  CHECK(distance(before, weights_of(*model)) == 0);
}

TEST_CASE("the caller's optimizer, schedule and boundary take the file's place") {
  const auto model = make_model();
  optim::AdamW optimizer(model->named_parameters(), {.lr = 0.5});
  Json bare = config(1);
  bare.erase("optimizer");
  bare.erase("scheduler");
  Engine engine(*model, bare,
                {.optimizer = &optimizer, .lr_scheduler = [](int64_t step) { return 1.0 + step; }});
  CHECK(engine.get_lr() == std::vector<double>{0.5});
  engine.set_gradient_accumulation_boundary(true);
  const auto [x, labels] = rows(0, 0, 4);
  engine.backward(ops::cross_entropy(engine(x), labels));
  engine.step();
  CHECK(engine.was_step_applied());
  CHECK(engine.get_lr() == std::vector<double>{1.0});
  CHECK_THROWS_WITH(engine.step(), Contains("without a backward()"));
}

TEST_CASE("the file's schedule gives a caller's optimizer DeepSpeed's rates") {
  const auto rates = [](const std::string& type, const Json& params) {
    const auto model = make_model();
    optim::AdamW optimizer(model->named_parameters(), {.lr = 0.5});
    Engine engine(*model, config(1, {{"scheduler", {{"type", type}, {"params", params}}}}),
                  {.optimizer = &optimizer});
    std::vector<double> all;
    for (int64_t step = 0; step < 4; ++step) {
      all.push_back(engine.get_lr().at(0));
      run(engine, step, step + 1);
    }
    return all;
  };
  const auto check = [](const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).margin(1e-12));
  };
  const Json linear = {{"warmup_min_lr", 0.1}, {"warmup_num_steps", 2}, {"warmup_type", "linear"}};
  Json peak = linear;
  peak["warmup_max_lr"] = 0.2;
  check(rates("WarmupLR", peak), {0.1, 0.1, 0.15, 0.2});
  // Without a peak of its own it rises to the optimizer's rate.
  check(rates("WarmupLR", linear), {0.1, 0.1, 0.3, 0.5});
}

TEST_CASE("what an engine cannot take is named") {
  const auto model = make_model();
  const auto refuse = [&](const Json& json, const std::string& error) {
    CHECK_THROWS_WITH(Engine(*model, json), Contains(error));
  };
  Json bare = config(1);
  bare.erase("optimizer");
  refuse(bare, "there is no \"optimizer\"");
  refuse({{"batch-size", 4}}, "expected DeepSpeed's JSON, got weft's");
  refuse(config(1, {{"train_batch_size", 9}}), "train_batch_size");
  refuse(config(1, {{"fp61", {{"enabled", true}}}}), "fp61");
  refuse(config(1, {{"zero_optimization", {{"stage", 4}}}}), "0, 1, 2 or 3");
}

TEST_CASE("schedules of the file are DeepSpeed's, step by step") {
  const auto rates = [](const std::string& type, const Json& params, int64_t steps) {
    const auto model = make_model();
    Engine engine(*model, config(1, {{"scheduler", {{"type", type}, {"params", params}}}}));
    std::vector<double> all;
    for (int64_t step = 0; step < steps; ++step) {
      all.push_back(engine.get_lr().at(0));
      run(engine, step, step + 1);
    }
    return all;
  };
  const auto check = [](const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).margin(1e-12));
  };
  // From the formulas of deepspeed/runtime/lr_schedules.py, with last_batch_iteration = step - 1.
  check(rates("WarmupLR",
              {{"warmup_min_lr", 0.001}, {"warmup_max_lr", 0.01}, {"warmup_num_steps", 3}}, 5),
        {0.001, 0.001, 0.001 + 0.009 * std::log(2) / std::log(3), 0.01, 0.01});
  check(rates("WarmupDecayLR",
              {{"warmup_max_lr", 0.01},
               {"warmup_num_steps", 2},
               {"total_num_steps", 4},
               {"warmup_type", "linear"}},
              6),
        {0, 0, 0.005, 0.01, 0.005, 0});
  check(rates("WarmupCosineLR",
              {{"warmup_num_steps", 2},
               {"total_num_steps", 4},
               {"warmup_type", "linear"},
               {"cos_min_ratio", 0.1}},
              6),
        {0, 0, 0.005, 0.0055, 0.001, 0.001});
  check(rates("OneCycle",
              {{"cycle_min_lr", 0.002}, {"cycle_max_lr", 0.01}, {"cycle_first_step_size", 2}}, 6),
        {0.002, 0.006, 0.01, 0.006, 0.002, 0.002});
}
