// Files of strangers: random changes of valid ones, read in a process of their own.
#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "cli/torture/mutation.h"
#include "cli/torture/small_run.h"
#include "core/error.h"
#include "data/image.h"
#include "data/sets/open.h"
#include "io/safetensors.h"
#include "io/safetensors_index.h"
#include "io/sharded_safetensors.h"
#include "train/checkpoint.h"
#include "train/config.h"

namespace weft::cli {
namespace {

/// A valid file, and what reads it from its place. Reading throws Error or succeeds.
struct Seed {
  std::string name;
  io::Path place;
  std::string bytes;
  std::function<void()> read;
};

std::vector<Seed> seeds_of(Rack& rack) {
  SmallRun small(rack, {}, 1);
  const io::Path step = train::find_checkpoint(small.reference());
  const io::Path scratch = rack.scratch;
  std::vector<Seed> seeds;
  const auto add = [&](const std::string& name, const io::Path& place, const std::string& bytes,
                       std::function<void()> read) {
    io::make_directories(place.parent_path());
    seeds.push_back({name, place, bytes, std::move(read)});
  };
  const io::Path weights = scratch / "seed.safetensors";
  const std::string trained = io::read_text(small.reference() / "model.safetensors");
  // Its header, which is all that a reader interprets, and a little of the tensors.
  add("safetensors", weights, trained.substr(0, 1 << 16), [=] { io::read_safetensors(weights); });
  add("checkpoint", step / "state.json", io::read_text(step / "state.json"),
      [=] { train::load_checkpoint(step, train::CheckpointParts::kModel); });
  add("configuration", scratch / "config.json", to_json(train::recipe("builtin-quick")).dump(),
      [=] {
        try {
          train::config_from_json(nlohmann::json::parse(io::read_text(scratch / "config.json")));
        } catch (const nlohmann::json::exception&) {  // told by who reads it
        }
      });
  data::Image image(13, 9);
  Philox random(7);
  for (uint8_t& pixel : image.pixels) pixel = static_cast<uint8_t>(random.next_u32());
  const auto text = [](const std::vector<uint8_t>& bytes) {
    return std::string(bytes.begin(), bytes.end());
  };
  for (const auto& [name, bytes] : {std::pair("image.png", text(data::encode_png(image))),
                                    std::pair("image.jpg", text(data::encode_jpeg(image, 80)))}) {
    const io::Path place = scratch / name;
    add(name, place, bytes, [=] { data::read_image(place.string()); });
  }
  const io::Path cifar = scratch / "cifar" / "test_batch.bin";
  std::string records(size_t{3073} * 4, '\3');
  for (int part = 1; part <= 5; ++part) {
    io::make_directories(cifar.parent_path());
    write_file(cifar.parent_path() / fmt::format("data_batch_{}.bin", part), records);
  }
  add("CIFAR-10", cifar, records,
      [=] { data::open_data("cifar10:" + cifar.parent_path().string(), 0); });
  const io::Path shards = scratch / "shards";
  io::make_directories(shards);
  io::write_shard_index(shards, {{io::write_shard(shards / io::shard_name(0, 1, 0),
                                                  {{"a", {4, 2}, {0, 0}, Tensor::zeros({3, 2})},
                                                   {"a", {4, 2}, {3, 0}, Tensor::zeros({1, 2})}})},
                                 "single",
                                 {}});
  nlohmann::json index = nlohmann::json::parse(io::read_text(shards / io::kShardIndex));
  index.erase("crc32");
  add("shards", shards / "changed.json", index.dump(), [=] {
    const io::Path changed = shards / "changed.json";
    const nlohmann::json object = io::parse_foreign_json(io::read_text(changed), changed);
    // Of what a checksum would let pass.
    if (!object.is_object() || object.empty() || object.begin().key() <= "crc32") return;
    write_file(shards / io::kShardIndex, io::checked_json_text(object));
    io::ShardedReader reader(shards);
    for (const auto& [name, entry] : reader.index().tensors) reader.read(name);
  });
  const io::Path weight_index = scratch / "spread" / "model.safetensors.index.json";
  io::write_indexed(weight_index.parent_path(), {{"a", DType::f32, {4}}, {"b", DType::f32, {4}}},
                    16, [](const std::string&) { return Tensor::zeros({4}); });
  add("weight index", weight_index, io::read_text(weight_index), [=] {
    io::read_indexed(io::read_weight_index(weight_index),
                     [](const io::Path& part) { return io::read_safetensors(part).tensors; });
  });
  return seeds;
}

/// How many trials the process that reads them has finished, where the parent sees it.
struct Progress {
  volatile int64_t done = 0;
  volatile int64_t strange = 0;  // exceptions that are no Error
};

}  // namespace

void read_hostile_files(Rack& rack, Tally& tally) {
  const std::vector<Seed> seeds = seeds_of(rack);
  auto* const progress = static_cast<Progress*>(
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  WEFT_CHECK(progress != MAP_FAILED, "torture: no memory: {}", std::strerror(errno));
  constexpr int64_t kTrials = 2000;  // of a process
  constexpr rlim_t kMemory = rlim_t{4} << 30;
  constexpr unsigned kSeconds = 120;
  for (size_t i = 0; rack.goes_on(static_cast<int64_t>(i), static_cast<int64_t>(seeds.size()));
       ++i) {
    const Seed& seed = seeds[i % seeds.size()];
    const uint64_t stream = rack.random.next_u64();
    *progress = {};
    const pid_t reader = ::fork();
    WEFT_CHECK(reader >= 0, "torture: cannot start a process: {}", std::strerror(errno));
    if (reader == 0) {
      const rlimit memory = {kMemory, kMemory};
      ::setrlimit(RLIMIT_AS, &memory);
      ::alarm(kSeconds);
      for (int64_t trial = 0; trial < kTrials; ++trial) {
        Philox random(stream, static_cast<uint64_t>(trial));
        try {
          write_file(seed.place, mutated(seed.bytes, random));
          seed.read();
        } catch (const Error&) {
        } catch (const std::exception&) {
          progress->strange = progress->strange + 1;
        }
        progress->done = trial + 1;
      }
      ::_exit(0);
    }
    int status = 0;
    while (::waitpid(reader, &status, 0) < 0 && errno == EINTR) {
    }
    tally.tried += progress->done + (status != 0);
    tally.held += progress->done - progress->strange;
    const auto lose = [&](const std::string& what) {
      tally.losses.push_back(fmt::format("{}, stream {}: {}", seed.name, stream, what));
    };
    if (status != 0) {
      lose(fmt::format("trial {} ended the program (status {:#x})", int64_t{progress->done},
                       status));
    }
    if (progress->strange > 0)
      lose(fmt::format("{} errors of other kinds", int64_t{progress->strange}));
  }
  ::munmap(progress, sizeof(Progress));
}

}  // namespace weft::cli
