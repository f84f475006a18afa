// Sharded states: from every strategy to every other, written while training goes on.
#include "train/sharded_state.h"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include "autograd/ops.h"
#include "core/scoped_value.h"
#include "dist/comm/in_process.h"
#include "dist/strategy/testing/oracle.h"
#include "optim/optimizer_state.h"
#include "train/checkpoint.h"
#include "train/fabric.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

io::Path fresh(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  const io::Path path = io::Path(directory ? directory : "/tmp") / name;
  std::filesystem::remove_all(path);
  return path;
}

struct Setting {
  dist::StrategyOptions strategy;
  int ranks = 1;
};
const std::vector<Setting>& settings() {
  static const auto& all = *new std::vector<Setting>{
      {{.name = "single"}, 1},
      {{.name = "ddp"}, 3},
      {{.name = "fsdp"}, 2},
      {{.name = "fsdp"}, 3},
      {{.name = "zero1"}, 3},
      {{.name = "zero2"}, 2},
      {{.name = "hsdp", .shard_size = 2}, 4},
      {{.name = "tp", .tensor_parallel = 2, .parallel_head = true}, 4},
      {{.name = "fsdp+tp", .tensor_parallel = 2, .parallel_head = true}, 4},
      {{.name = "pipeline", .pipeline_stages = 2}, 4}};
  return all;
}

/// A rank with a model of odd sizes, attention and tied names, and its optimizer.
struct Worker {
  Worker(const Setting& setting, dist::Communicator& c, uint64_t seed = 3)
      : fabric({.devices = setting.ranks,
                .strategy = setting.strategy,
                .state_dict_type = "SHARDED_STATE_DICT"}),
        model((manual_seed(seed), std::make_unique<dist::OracleTransformer>())),
        optimizer(model->named_parameters(), {.lr = 0.01}) {
    fabric.launch(setting.ranks == 1 ? nullptr
                                     : dist::CommunicatorPtr(&c, [](dist::Communicator*) {}));
    nn::ModelStructure structure(nn::wrap_modules<nn::Linear, nn::LayerNorm>());
    structure.mlps = model->mlps();
    structure.head = model->last_layer();
    structure.segments = model->segments();
    fabric.setup(*model, optimizer, structure);
  }

  void step(int number) {
    optimizer.zero_grad();
    const dist::OracleBatch batch = dist::oracle_batch(number, 8, DType::f32);
    const auto micro_batch = [&](int64_t) {
      return dist::MicroBatch{batch.x, [&](const Tensor& logits) {
                                return fabric.scaled(fabric.cross_entropy(logits, batch.labels));
                              }};
    };
    fabric.run({.count = fabric.strategy().micro_batches(), .at = micro_batch});
    optimizer.step();
  }
  std::vector<NamedState> states() { return {{"model", model.get()}, {"optimizer", &optimizer}}; }
  /// Rank 0's.
  std::map<std::string, std::vector<double>> whole() {
    std::map<std::string, std::vector<double>> all;
    for (const auto& [name, tensor] : fabric.strategy().model_state(*model)) {
      all["model." + name] = tensor.to_vector();
    }
    for (const auto& [name, tensor] : fabric.strategy().optimizer_state(optimizer).tensors) {
      all["optimizer." + name] = tensor.to_vector();
    }
    return all;
  }

  Fabric fabric;
  std::unique_ptr<dist::OracleTransformer> model;
  optim::AdamW optimizer;
};

/// The whole of a sharded state.
std::map<std::string, std::vector<double>> read_whole(const io::Path& path) {
  std::map<std::string, std::vector<double>> all;
  io::ShardedReader reader(path);
  for (const auto& [name, entry] : reader.index().tensors) {
    all[name] = reader.read(name).to_vector();
  }
  return all;
}

/// Sets the hook of files for as long as it lives.
struct Hook {
  explicit Hook(io::FileOperationHook hook) { io::set_file_operation_hook(std::move(hook)); }
  ~Hook() { io::set_file_operation_hook(nullptr); }
};

}  // namespace

TEST_CASE("a state of any strategy and number of ranks is taken up by others, bit for bit") {
  for (size_t i = 0; i < settings().size(); ++i) {
    const Setting& from = settings()[i];
    const io::Path path = fresh("states");
    std::map<std::string, std::vector<double>> saved;
    std::vector<int64_t> bytes(from.ranks);
    dist::run_ranks(from.ranks, [&](dist::Communicator& c) {
      Worker worker(from, c);
      worker.step(0);
      worker.step(1);
      worker.fabric.save(path, worker.states());
      auto all = worker.whole();
      if (worker.fabric.is_main()) saved = std::move(all);
    });
    INFO("from " << from.strategy.name << " on " << from.ranks);
    CHECK(read_whole(path) == saved);
    const io::ShardIndex index = io::ShardedReader(path).index();
    CHECK(index.world_size == from.ranks);
    CHECK(index.strategy == from.strategy.name);
    // Every rank has written its share of the bytes, but for what cannot be cut.
    uint64_t total = 0, most = 0;
    for (const auto& file : index.files) {
      total += file.bytes;
      most = std::max(most, file.bytes);
    }
    CHECK(most < 1.6 * static_cast<double>(total) / from.ranks);
    // Each from two others.
    for (const size_t distance : {3, 8}) {
      const Setting& to = settings()[(i + distance) % settings().size()];
      INFO("to " << to.strategy.name << " on " << to.ranks);
      std::map<std::string, std::vector<double>> loaded;
      dist::run_ranks(to.ranks, [&](dist::Communicator& c) {
        Worker worker(to, c, 4);
        const auto left = worker.fabric.load(path, worker.states());
        WEFT_CHECK(left.empty(), "{} are left", left.size());
        auto all = worker.whole();
        if (worker.fabric.is_main()) loaded = std::move(all);
      });
      CHECK(loaded == saved);
    }
  }
}

TEST_CASE("buffers leave it alone which ranks write the parameters") {
  struct Net : nn::Module {
    Net() : fc1(add<nn::Linear>("fc1", 4, 8)), fc2(add<nn::Linear>("fc2", 8, 4)) {
      buffer("mean", Tensor::zeros({5}));
    }
    Tensor forward(const Tensor& x) override { return fc2(fc1(x)); }
    nn::Linear &fc1, &fc2;
  };
  for (const Setting& setting : settings()) {
    // Two copies of what is cut over two ranks: as many as there are ranks with the same buffer.
    if (setting.strategy.tensor_parallel != 2) continue;
    INFO(setting.strategy.name);
    std::mutex mutex;
    std::map<std::string, int64_t> written;  // elements
    dist::run_ranks(setting.ranks, [&](dist::Communicator& c) {
      Net net;
      const auto strategy =
          dist::make_strategy({.name = setting.strategy.name, .tensor_parallel = 2},
                              dist::CommunicatorPtr(&c, [](dist::Communicator*) {}));
      nn::ModelStructure structure;
      structure.mlps = {{&net.fc1, &net.fc2}};
      strategy->wrap(net, structure);
      SliceCopies copies;
      for (const char* name : {"model", "again"}) copies.add(name, strategy->local_state(net));
      const std::lock_guard lock(mutex);
      for (const io::Slice& slice : copies.take()) written[slice.name] += slice.values.numel();
    });
    for (const auto& [name, tensor] : Net().state_dict()) {
      INFO(name);
      CHECK(written["model." + name] == tensor.numel());
      CHECK(written["again." + name] == tensor.numel());
    }
  }
}

TEST_CASE("a state that goes on is that of one who never stopped") {
  for (const Setting& setting : settings()) {
    INFO(setting.strategy.name << " on " << setting.ranks);
    const io::Path path = fresh("goes_on");
    std::map<std::string, std::vector<double>> whole, resumed;
    dist::run_ranks(setting.ranks, [&](dist::Communicator& c) {
      Worker worker(setting, c);
      worker.step(0);
      worker.fabric.save(path, worker.states());
      worker.step(1);
      auto all = worker.whole();
      if (worker.fabric.is_main()) whole = std::move(all);
    });
    dist::run_ranks(setting.ranks, [&](dist::Communicator& c) {
      Worker worker(setting, c, 4);
      worker.fabric.load(path, worker.states());
      worker.step(1);
      auto all = worker.whole();
      if (worker.fabric.is_main()) resumed = std::move(all);
    });
    CHECK(whole == resumed);
  }
}

TEST_CASE("parts are written while training goes on, and are there together") {
  const io::Path path = fresh("async");
  std::mutex mutex;
  std::condition_variable condition;
  bool may_write = false;
  const Hook hook([&](std::string_view, const io::Path& file) {
    if (file.filename().string().starts_with("shard-1-of-2")) {
      std::unique_lock lock(mutex);
      condition.wait(lock, [&] { return may_write; });
    }
  });
  std::map<std::string, std::vector<double>> at_save;
  dist::run_ranks(2, [&](dist::Communicator& c) {
    Worker worker({{.name = "fsdp"}, 2}, c);
    worker.step(0);
    auto all = worker.whole();
    if (worker.fabric.is_main()) at_save = std::move(all);
    bool is_there = false;
    worker.fabric.async_save(path, worker.states(), [&] { is_there = true; });
    // Rank 1 cannot write yet: three steps change what was copied in nothing.
    for (int i = 1; i < 4; ++i) worker.step(i);
    WEFT_CHECK(!is_there && !io::is_sharded_state(path), "it is there before all parts are");
    worker.fabric.barrier();
    {
      const std::lock_guard lock(mutex);
      may_write = true;
      condition.notify_all();
    }
    // Some step finds that all have written; the next save would wait for it.
    for (int i = 4; i < 5000 && !io::is_sharded_state(path); ++i) {
      worker.fabric.barrier();
      worker.step(i);
      worker.fabric.barrier();
    }
    worker.fabric.wait_for_save();
    WEFT_CHECK(is_there == worker.fabric.is_main(), "rank {}: {}", c.rank(), is_there);
  });
  CHECK(read_whole(path) == at_save);
}

TEST_CASE("a rank that cannot write is named on all, and the older state stays") {
  const io::Path path = fresh("failing");
  std::map<std::string, std::vector<double>> before;
  dist::run_ranks(2, [&](dist::Communicator& c) {
    Worker worker({{.name = "zero2"}, 2}, c);
    worker.step(0);
    worker.fabric.save(path, worker.states());
    auto all = worker.whole();
    if (worker.fabric.is_main()) before = std::move(all);
  });
  for (const char* file : {"shard-0-of-2", "shard-1-of-2", ".index.json"}) {
    INFO(file);
    const Hook hook([&](std::string_view operation, const io::Path& at) {
      if (at.filename().string().starts_with(file)) {
        WEFT_FAIL("cannot {} {}: disk gone", operation, at.string());
      }
    });
    const std::string rank = file[0] == 's' ? fmt::format("rank {}: ", file[6]) : "";
    dist::run_ranks(2, [&](dist::Communicator& c) {
      Worker worker({{.name = "zero2"}, 2}, c);
      dist::expect_error([&] { worker.fabric.save(path, worker.states()); },
                         rank + "cannot " + (rank.empty() ? "" : "create"));
      // It surfaces at a step, too, or at the end; then all can go on.
      worker.fabric.async_save(path, worker.states());
      dist::expect_error(
          [&] {
            for (int i = 0; i < 1000; ++i) worker.step(i);
            worker.fabric.wait_for_save();
          },
          "disk gone");
      worker.step(0);
    });
    CHECK(read_whole(path) == before);
  }
  // The directory's own failure is one of all ranks.
  dist::run_ranks(2, [&](dist::Communicator& c) {
    Worker worker({{.name = "ddp"}, 2}, c);
    dist::expect_error([&] { worker.fabric.save(path / "none" / "x", worker.states()); },
                       "cannot create the directory");
  });
}

TEST_CASE("trap: what fails on rank 0 alone fails on all, who can go on; there as what it was") {
  struct Own : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const auto nowhere = (fresh("nowhere") / "none" / "x").string();
  for (const char* type : {"full", "sharded"}) {
    INFO(type);
    const io::Path path = fresh("then");
    dist::run_ranks(2, [&](dist::Communicator& c) {
      Fabric fabric({.devices = 2, .strategy = {.name = "ddp"}, .state_dict_type = type});
      fabric.launch(dist::CommunicatorPtr(&c, [](dist::Communicator*) {}));
      nn::Linear model(3, 2);
      optim::AdamW optimizer(model.named_parameters(), {.lr = 0.1});
      fabric.setup(model, optimizer);
      dist::expect_error([&] { fabric.save(nowhere); }, nowhere);
      dist::expect_error([&] { fabric.save(nowhere, {{"model", &model}}); }, nowhere);
      const auto fails_as = [&](const std::function<void()>& save) {
        try {
          save();
        } catch (const Own& error) {
          return fabric.is_main() && error.what() == std::string("not now");
        } catch (const Error& error) {
          return !fabric.is_main() && error.what() == std::string("not now");
        }
        return false;
      };
      const auto then = [] { throw Own("not now"); };
      WEFT_CHECK(fails_as([&] {
                   fabric.async_save(path.string(), {{"model", &model}}, then);
                   fabric.wait_for_save();
                 }),
                 "another error of then() on rank {}", c.rank());
      fabric.wait_for_save();
      if (type == std::string("full")) return;
      // At a step: before that has changed anything.
      fabric.async_save(path.string(), {{"model", &model}}, then);
      bool has_failed = false;
      while (!has_failed) {
        optimizer.zero_grad();
        fabric.backward(ops::sum(model(Tensor::full({1, 3}, 1))));
        const std::vector<double> before = model.bias.to_vector();
        has_failed = fails_as([&] { optimizer.step(); });
        WEFT_CHECK((model.bias.to_vector() == before) == has_failed, "the step was taken");
      }
      WEFT_CHECK(optimizer.step(), "the step cannot be taken again");
    });
  }
}

TEST_CASE("a state of another model is refused by name before anything changes") {
  const io::Path path = fresh("another");
  Fabric fabric({.state_dict_type = "sharded"});
  fabric.launch(nullptr);
  nn::Sequential narrow, wide, deep;
  narrow.append<nn::Linear>(3, 2);
  wide.append<nn::Linear>(3, 4);
  deep.append<nn::Linear>(3, 2);
  deep.append<nn::Linear>(2, 2);
  int64_t epoch = 5, other = 0;
  Tensor mean = Tensor::full({2}, 0.5);
  fabric.save(path, {{"model", &narrow}, {"epoch", &epoch}, {"mean", &mean}});
  const auto before = wide.state_dict()[0].second.to_vector();
  CHECK_THROWS_WITH(fabric.load(path, {{"model", &wide}}),
                    Contains("another: tensor \"model.0.weight\" has the shape [2, 3], expected "
                             "[4, 3]"));
  CHECK(wide.state_dict()[0].second.to_vector() == before);
  CHECK_THROWS_WITH(fabric.load(path, {{"model", &deep}}),
                    Contains("another holds no tensor \"model.1.weight\""));
  nn::Sequential empty;
  CHECK_THROWS_WITH(fabric.load(path, {{"model", &empty}}), Contains("is none of the model's"));
  CHECK_THROWS_WITH(fabric.load(path, {{"epoch", &mean}}), Contains("of kind integer"));
  mean = Tensor::zeros({2});
  CHECK(fabric.load(path, {{"epoch", &other}, {"mean", &mean}}) ==
        std::vector<std::string>{"model"});
  CHECK(other == 5);
  CHECK(mean.to_vector() == std::vector<double>{0.5, 0.5});
  CHECK_THROWS_WITH(Fabric({.state_dict_type = "half"}),
                    Contains("state-dict-type: expected full or sharded, got \"half\""));
}

TEST_CASE("a sharded checkpoint of a run is read whole, and offers the one before") {
  const io::Path run = fresh("run");
  std::filesystem::create_directories(run);
  std::map<std::string, std::vector<double>> saved;
  for (const int64_t step : {1, 2, 3}) {
    dist::run_ranks(3, [&](dist::Communicator& c) {
      Worker worker({{.name = "fsdp"}, 3}, c);
      worker.step(0);
      const auto draft = worker.fabric.is_main() ? std::make_shared<CheckpointDraft>(run, step)
                                                 : std::shared_ptr<CheckpointDraft>();
      worker.fabric.async_save(draft ? draft->directory().string() : "", worker.states(),
                               [&, draft] {
                                 draft->commit({{"number", step}}, 2);
                               });
      worker.fabric.wait_for_save();
      auto all = worker.whole();
      if (worker.fabric.is_main()) saved = std::move(all);
    });
  }
  CHECK(!std::filesystem::exists(run / "step-1"));
  const Checkpoint all = load_checkpoint(run);
  CHECK(all.is_sharded);
  CHECK(all.step == 3);
  CHECK(all.state == nlohmann::json{{"number", 3}});
  for (const auto& [name, tensor] : all.model) {
    CHECK(tensor.to_vector() == saved.at("model." + name));
  }
  for (const auto& [name, tensor] : all.optimizer) {
    CHECK(tensor.to_vector() == saved.at("optimizer." + name));
  }
  CHECK(all.model.size() + all.optimizer.size() == saved.size());
  CHECK(load_checkpoint(run, CheckpointParts::kModel).optimizer.empty());
  CHECK(load_checkpoint(run, CheckpointParts::kState).model.empty());
  const io::Path step = run / "step-3";
  const std::string before = "; the checkpoint before it is " + (run / "step-2").string();
  std::filesystem::rename(step / io::shard_name(1, 3, 0), run / "away");
  CHECK_THROWS_WITH(load_checkpoint(run), Contains(io::shard_name(1, 3, 0)) && Contains(before));
  std::filesystem::remove(step / "state.json");
  CHECK_THROWS_WITH(load_checkpoint(run), Contains("latest names step-3, which is not there"));
}

TEST_CASE("a full state and a sharded one hold the same") {
  const io::Path full = fresh("full.safetensors"), sharded = fresh("sharded");
  std::map<std::string, std::vector<double>> expected;
  dist::run_ranks(2, [&](dist::Communicator& c) {
    Worker worker({{.name = "fsdp"}, 2}, c);
    worker.step(0);
    worker.fabric.save(sharded, worker.states());
    auto all = worker.whole();
    if (worker.fabric.is_main()) expected = std::move(all);
  });
  Fabric fabric({});
  fabric.launch(nullptr);
  dist::OracleTransformer model;
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1});
  fabric.setup(model, optimizer, nn::ModelStructure());
  fabric.load(sharded, {{"model", &model}, {"optimizer", &optimizer}});
  fabric.save(full, {{"model", &model}, {"optimizer", &optimizer}});
  std::map<std::string, std::vector<double>> found;
  for (const auto& [name, tensor] : io::read_safetensors(full).tensors) {
    found[name] = tensor.to_vector();
  }
  CHECK(found == expected);
}
