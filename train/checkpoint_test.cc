#include "train/checkpoint.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "io/checked_json.h"
#include "tests/json_damage.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

io::Path fresh_directory(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  const io::Path path = io::Path(directory ? directory : "/tmp") / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

/// A checkpoint whose tensors and state all say `step`.
Checkpoint checkpoint_of(int64_t step, double marker = 0) {
  const double value = static_cast<double>(step) + marker;
  return {.step = step,
          .model = {{"weight", Tensor::full({8, 8}, value)}, {"bias", Tensor::full({8}, value)}},
          .optimizer = {{"weight.m", Tensor::full({8, 8}, -value)}},
          .state = {{"value", value}, {"seed", 0xffffffffffffffffu}}};
}

/// The step of a checkpoint after checking that all its parts belong together.
double consistent_value(const Checkpoint& checkpoint) {
  const double value = checkpoint.state.at("value");
  REQUIRE(checkpoint.step == static_cast<int64_t>(value));
  for (const auto& [name, tensor] : checkpoint.model) {
    for (double x : tensor.to_vector()) REQUIRE(x == value);
  }
  for (double x : checkpoint.optimizer.at(0).second.to_vector()) REQUIRE(x == -value);
  return value;
}

std::vector<std::string> listing(const io::Path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Runs save_checkpoint in a child process that dies before its k-th file operation. True when it
/// got through all of them.
bool save_and_die(const io::Path& output, const Checkpoint& checkpoint, int keep_last, int k) {
  const pid_t child = ::fork();
  if (child == 0) {
    int operations = 0;
    io::set_file_operation_hook([&](std::string_view, const io::Path&) {
      if (operations++ == k) ::_exit(1);
    });
    save_checkpoint(output, checkpoint, keep_last);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("A checkpoint is read back whole, by its own name and by its parent's") {
  const io::Path output = fresh_directory("whole");
  const io::Path saved = save_checkpoint(output, checkpoint_of(5));
  CHECK(saved == output / "step-5");
  CHECK(listing(output) == std::vector<std::string>{"latest", "step-5"});
  CHECK(listing(saved) ==
        std::vector<std::string>{"model.safetensors", "optimizer.safetensors", "state.json"});
  save_checkpoint(output, checkpoint_of(10));
  CHECK(consistent_value(load_checkpoint(output)) == 10);
  CHECK(consistent_value(load_checkpoint(output / "step-5")) == 5);
  CHECK(load_checkpoint(output).state.at("seed") == 0xffffffffffffffffu);
  const Checkpoint model_only = load_checkpoint(output, CheckpointParts::kModel);
  CHECK(model_only.model.size() == 2);
  CHECK(model_only.optimizer.empty());
}

TEST_CASE("`latest` decides, not the highest number") {
  const io::Path output = fresh_directory("latest");
  save_checkpoint(output, checkpoint_of(20));
  save_checkpoint(output, checkpoint_of(15));
  CHECK(find_checkpoint(output) == output / "step-15");
}

TEST_CASE("Of older checkpoints the last and those that are named stay") {
  const io::Path output = fresh_directory("kept");
  for (int step = 1; step <= 6; ++step)
    save_checkpoint(output, checkpoint_of(step), {2, {2, 3, 9}});
  CHECK(listing(output) ==
        std::vector<std::string>{"latest", "step-2", "step-3", "step-5", "step-6"});
  save_checkpoint(output, checkpoint_of(6), {1, {5}});
  CHECK(listing(output) == std::vector<std::string>{"latest", "step-5", "step-6"});
}

TEST_CASE("Saving a step again replaces it") {
  const io::Path output = fresh_directory("again");
  save_checkpoint(output, checkpoint_of(3));
  Checkpoint other = checkpoint_of(3, 0.5);
  save_checkpoint(output, other);
  CHECK(consistent_value(load_checkpoint(output)) == 3.5);
  CHECK(listing(output) == std::vector<std::string>{"latest", "step-3"});
}

TEST_CASE("Files of before there was a checksum of all are read") {
  const io::Path output = fresh_directory("before");
  const io::Path step = save_checkpoint(output, checkpoint_of(7));
  const auto write = [](const io::Path& path, const std::string& text) {
    io::write_file_atomically(path, [&](io::FileWriter& writer) { writer.write(text); });
  };
  nlohmann::json all = nlohmann::json::parse(io::read_text(step / "state.json"));
  all.erase("crc32");
  const std::string state = all["state"].dump();
  all["state_crc32"] = io::checksum_text(io::crc32_of(std::as_bytes(std::span(state))));
  write(step / "state.json", all.dump(2) + "\n");
  write(output / "latest", "step-7\n");
  CHECK(consistent_value(load_checkpoint(output)) == 7);
  // Nor does such a file nest without end.
  const std::string deep(2000000, '['), ends(2000000, ']');
  write(
      step / "state.json",
      R"({"format":"weft-checkpoint","state_crc32":"x","version":1,"step":7,"files":{},"state":)" +
          deep + ends + "}");
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("state.json: JSON nested more than 32 deep"));
  all["state"]["value"] = 8;
  write(step / "state.json", all.dump(2) + "\n");
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("state.json is damaged: its state's CRC-32"));
}

TEST_CASE("Any flipped bit of any file is found and its file named") {
  const io::Path output = fresh_directory("rot");
  save_checkpoint(output, checkpoint_of(2));
  const io::Path step = save_checkpoint(output, checkpoint_of(6));  // '2' and '6' differ by a bit
  for (const io::Path& file : {step / "model.safetensors", step / "optimizer.safetensors",
                               step / "state.json", output / "latest"}) {
    const std::string whole = io::read_text(file);
    for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
      INFO(file.string() << ", bit " << bit);
      {
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekp(static_cast<std::streamoff>(bit / 8));
        stream.put(static_cast<char>(whole[bit / 8] ^ 1 << bit % 8));
      }
      CHECK_THROWS_WITH(load_checkpoint(output), Contains(file.filename().string()));
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream << whole;
    }
  }
}

TEST_CASE("Any file that is cut short is found and named") {
  const io::Path output = fresh_directory("cut");
  const io::Path step = save_checkpoint(output, checkpoint_of(6));
  for (const io::Path& file : {step / "model.safetensors", step / "optimizer.safetensors",
                               step / "state.json", output / "latest"}) {
    const std::string whole = io::read_text(file);
    for (size_t size = whole.size(); size-- > 0;) {
      INFO(file.string() << ", cut to " << size << " bytes");
      std::filesystem::resize_file(file, size);
      // "step-6\n" is what was written before there was a checksum of it.
      if (file.filename() == "latest" && size == 7) {
        CHECK(consistent_value(load_checkpoint(output)) == 6);
      } else {
        CHECK_THROWS_WITH(load_checkpoint(output), Contains(file.filename().string()));
      }
    }
    std::ofstream(file, std::ios::binary) << whole;
  }
}

TEST_CASE("A state.json with a key left out, one too many, or a value of another type") {
  const io::Path output = fresh_directory("other_json");
  const io::Path file = save_checkpoint(output, checkpoint_of(6)) / "state.json";
  nlohmann::json whole = nlohmann::json::parse(io::read_text(file));
  whole.erase("crc32");
  int errors = 0;
  for_each_damage(whole, [&](const nlohmann::json& damaged, const std::string& key) {
    if (!damaged.is_object()) return;  // which has no place for the checksum
    std::ofstream(file) << io::checked_json_text(damaged, 2);
    INFO(damaged.dump());
    try {
      const Checkpoint read = load_checkpoint(output);
      // Of what the state says the checkpoint knows nothing.
      CHECK((key == "levitation" || read.state != whole.at("state")));
    } catch (const Error& error) {
      ++errors;
      CHECK_THAT(error.what(), Contains("state.json") &&
                                   (Contains(key) || Contains("is not a Weft checkpoint's")));
    }
  });
  CHECK(errors > 50);
}

TEST_CASE("Only the last k checkpoints stay, and steps to come are left alone") {
  const io::Path output = fresh_directory("keep");
  save_checkpoint(output, checkpoint_of(100));
  for (int step = 1; step <= 4; ++step) save_checkpoint(output, checkpoint_of(step), 2);
  CHECK(listing(output) == std::vector<std::string>{"latest", "step-100", "step-3", "step-4"});
}

TEST_CASE("Wherever a save is interrupted, a complete checkpoint can be loaded") {
  struct Scenario {
    const char* name;
    int64_t step;
    double marker;
  };
  for (const Scenario& scenario :
       {Scenario{"a new step", 3, 0}, Scenario{"the same step", 2, 0.5}}) {
    int interruptions = 0;
    for (bool completed = false; !completed; ++interruptions) {
      INFO(scenario.name << ", operation " << interruptions);
      const io::Path output = fresh_directory("crash");
      save_checkpoint(output, checkpoint_of(1), 2);
      save_checkpoint(output, checkpoint_of(2), 2);
      completed =
          save_and_die(output, checkpoint_of(scenario.step, scenario.marker), 2, interruptions);
      const double value = consistent_value(load_checkpoint(output));
      const double fresh = static_cast<double>(scenario.step) + scenario.marker;
      CHECK((value == 2 || value == fresh));
      if (completed) CHECK(value == fresh);
      // The next save cleans up and works.
      save_checkpoint(output, checkpoint_of(4), 2);
      CHECK(consistent_value(load_checkpoint(output)) == 4);
      CHECK(listing(output).size() == 3);
      if (interruptions > 100) FAIL("the save never completes");
    }
    CHECK(interruptions > 15);
  }
}

TEST_CASE("Interrupting the very first save leaves nothing or a complete checkpoint") {
  int loadable = 0;
  bool completed = false;
  for (int k = 0; !completed; ++k) {
    INFO("operation " << k);
    const io::Path output = fresh_directory("first");
    completed = save_and_die(output, checkpoint_of(1), 0, k);
    try {
      const Checkpoint loaded = load_checkpoint(output);
      CHECK(consistent_value(loaded) == 1);
      ++loadable;
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Contains("no checkpoint"));
      CHECK(loadable == 0);  // once one is there, it stays
    }
  }
  CHECK(loadable > 1);
}

TEST_CASE("A disk that fails at any operation is an Error and harms nothing") {
  int failures = 0;
  for (bool completed = false; !completed; ++failures) {
    INFO("operation " << failures);
    const io::Path output = fresh_directory("failing");
    save_checkpoint(output, checkpoint_of(1));
    int operations = 0;
    io::set_file_operation_hook([&](std::string_view operation, const io::Path& path) {
      if (operations++ == failures) WEFT_FAIL("{} {}: disk gone", operation, path.string());
    });
    try {
      save_checkpoint(output, checkpoint_of(2));
      completed = true;
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Contains("disk gone"));
    }
    io::set_file_operation_hook(nullptr);
    const double value = consistent_value(load_checkpoint(output));
    CHECK((value == 1 || value == 2));
    for (const std::string& name : listing(output)) CHECK(name[0] != '.');
  }
  CHECK(failures > 10);
}

TEST_CASE("A damaged file is named") {
  const io::Path output = fresh_directory("damaged");
  const auto damage = [&](const std::string& file, size_t offset, const std::string& bytes) {
    const io::Path step = save_checkpoint(output, checkpoint_of(1));
    std::fstream stream(step / file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream << bytes;
  };
  damage("model.safetensors", 200, "?");
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("/model.safetensors is damaged: its CRC-32"));
  damage("optimizer.safetensors", 100, "?");
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("/optimizer.safetensors is damaged"));
  CHECK_NOTHROW(load_checkpoint(output, CheckpointParts::kModel));

  const auto edit = [&](const std::string& from, const std::string& to, bool sums_again = true) {
    const io::Path state = save_checkpoint(output, checkpoint_of(1)) / "state.json";
    std::string text = io::read_text(state);
    text.replace(text.find(from), from.size(), to);
    constexpr size_t kChecksum = sizeof("{\n  \"crc32\": \"") - 1;
    if (sums_again) {
      text.replace(kChecksum, 8, io::checksum_around(std::as_bytes(std::span(text)), kChecksum));
    }
    io::write_file_atomically(state, [&](io::FileWriter& writer) { writer.write(text); });
  };
  edit("\"value\": 1.0", "\"value\": 1.5", false);
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("state.json is damaged: its CRC-32"));
  edit("\"version\": 1", "\"version\": 3");
  CHECK_THROWS_WITH(load_checkpoint(output),
                    Contains("has format version 3; this program reads versions 1 and 2"));
  edit("weft-checkpoint", "else");
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("state.json is not a Weft checkpoint's"));
  edit("{", "[");
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("state.json is damaged"));
  edit("\"bytes\"", "\"bites\"");
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("state.json: \"bytes\" is missing"));

  const io::Path model = save_checkpoint(output, checkpoint_of(1)) / "model.safetensors";
  std::filesystem::resize_file(model, 50);
  CHECK_THROWS_WITH(load_checkpoint(output),
                    Contains("model.safetensors is damaged: it has 50 bytes"));
  std::filesystem::remove(model);
  CHECK_THROWS_WITH(load_checkpoint(output),
                    Contains("cannot read ") && Contains("model.safetensors: No such file"));
}

TEST_CASE("A directory that has vanished does not come back with half a run in it") {
  const io::Path output = fresh_directory("vanished"), away = output.string() + "-away";
  std::filesystem::remove_all(away);
  save_checkpoint(output, checkpoint_of(1));
  int failures = 0;
  for (bool completed = false; !completed; ++failures) {
    INFO("vanished before operation " << failures);
    int operations = 0;
    io::set_file_operation_hook([&](std::string_view, const io::Path&) {
      if (operations++ == failures) std::filesystem::rename(output, away);
    });
    try {
      save_checkpoint(output, checkpoint_of(2));
      completed = operations <= failures;
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Contains("vanished") && Contains("No such file or directory"));
    }
    io::set_file_operation_hook(nullptr);
    REQUIRE(std::filesystem::exists(output) == completed);
    if (completed) break;
    std::filesystem::rename(away, output);
    const double value = consistent_value(load_checkpoint(output));
    CHECK((value == 1 || value == 2));
  }
  CHECK(failures > 5);
}

TEST_CASE("Places without a checkpoint say what is missing") {
  const io::Path output = fresh_directory("none");
  CHECK_THROWS_WITH(load_checkpoint(output / "not"), Contains("none/not: no such directory"));
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("holds neither state.json nor step-N"));
  io::write_file_atomically(output / "latest",
                            [](io::FileWriter& writer) { writer.write("step-9\n"); });
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("latest names step-9, which is not there"));
  io::write_file_atomically(output / "latest",
                            [](io::FileWriter& writer) { writer.write("../step-9"); });
  CHECK_THROWS_WITH(load_checkpoint(output), Contains("latest is damaged"));
}
