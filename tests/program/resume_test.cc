// What decides a run's weights, and what does not.
#include <chrono>
#include <fstream>
#include <thread>

#include "io/safetensors.h"
#include "tests/program/train_runs.h"
#include "train/checkpoint.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

const std::string kSmall = " --epochs 1 --limit-batches 2 --batch-size 16 ";

/// Reads lines until one of `kind`, `count` times.
void await(BackgroundWeft& weft, const std::string& kind, int count) {
  while (count > 0) {
    const std::string line = weft.line();
    REQUIRE(!line.empty());
    if (json::parse(line).at("event") == kind) --count;
  }
}

json progress_of(const std::string& checkpoint) {
  return json::parse(read_file(checkpoint + "/state.json")).at("state").at("progress");
}

}  // namespace

TEST_CASE("A run that is stopped and resumed, twice, has the bits of one that is not") {
  // 243 images to train: 121 batches, of which the 61st step of an epoch takes one and the others
  // two. A page of lines is some 20 steps: the signals meet the middle of an epoch.
  static const std::string folder = make_colour_folders("resume_images", 90, 16, 16);
  const std::string settings = GENERATE(as<std::string>(), "--precision fp32 --optimizer adamw",
                                        "--precision bf16 --optimizer sgd --lr 0.01",
                                        "--precision fp16 --initial-loss-scale 1e12 "
                                        "--loss-scale-window 7 --loss-scale-hysteresis 2",
                                        "--precision fp8 --fp8-scaling delayed --fp8-level O2",
                                        "--precision fp8 --fp8-scaling delayed "
                                        "--val-check-interval 30");
  const std::string arguments = "--model vit_lite --data folder:" + folder +
                                " --batch-size 2 --accumulate 2 --epochs 2 --seed 5 "
                                "--drop-path 0.2 --mixup 0.2 --erase 0.3 " +
                                settings;
  INFO(arguments);
  const std::string a = scratch("whole"), b = fresh_scratch("stopped");
  const auto whole = run_train("whole", arguments);
  std::vector<json> epochs;
  const auto stop = [&](BackgroundWeft& weft, int signal) {
    weft.send(signal);
    const Outcome outcome = weft.finish();
    CHECK(outcome.code == 130);
    CHECK_THAT(outcome.err, Contains("continue with: ./weft train --resume " + b + "\n"));
    const auto rest = parse_lines(outcome.out);
    const json& last = rest.back();
    REQUIRE(last.at("event") == "interrupted");
    const std::string checkpoint = last.at("checkpoint");
    CHECK(checkpoint == fmt::format("{}/step-{}", b, last.at("step").get<int64_t>()));
    const json progress = progress_of(checkpoint);
    CHECK(progress.at("batch") > 0);
    CHECK(progress.at("batch") < 121);
    CHECK(!std::filesystem::exists(weights("stopped")));
    return progress;
  };
  {
    BackgroundWeft weft("train --json --output " + b + " " + arguments);
    await(weft, "step", 3);
    CHECK(stop(weft, SIGINT).at("epoch") == 0);
  }
  {
    BackgroundWeft weft("train --json --threads 1 --resume " + b);
    await(weft, "epoch", 1);
    await(weft, "step", 3);
    CHECK(stop(weft, SIGTERM).at("epoch") == 1);
  }
  const Outcome end = run_weft("train --json --resume " + b);
  REQUIRE(end.code == 0);
  const auto rest = parse_lines(end.out);
  CHECK(diff_weights("whole", "stopped") == 0);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    INFO(file);
    CHECK(read_file(a + "/step-122/" + file) == read_file(b + "/step-122/" + file));
  }
  for (const char* field : {"step", "loss", "train_accuracy", "val_accuracy"}) {
    CHECK(rest.back().at(field) == whole.back().at(field));
  }

  // A run that has ended says so again, and changes nothing.
  const auto again = parse_lines(run_weft("train --json --resume " + b + "/step-122/").out);
  REQUIRE(again.size() == 1);
  for (const char* field : {"event", "step", "loss", "train_accuracy", "val_accuracy"}) {
    CHECK(again[0].at(field) == whole.back().at(field));
  }
  CHECK(diff_weights("whole", "stopped") == 0);
}

TEST_CASE("A reader of events who goes away, or reads nothing, costs no step") {
  const std::string folder = make_colour_folders("unread_images", 90, 16, 16);
  const std::string settings =
      " --model vit_lite --batch-size 2 --epochs 200 --data folder:" + folder + " --output ";
  // The pipe's other end is closed behind the first event.
  const std::string gone = fresh_scratch("gone");
  const Outcome outcome = run_shell("{ timeout 600 " + weft_program() + " train --json" + settings +
                                    gone + "; echo $? >&2; } | head -1");
  CHECK_THAT(outcome.err, Contains("weft: cannot write the JSON events: Broken pipe\n") &&
                              Contains("continue with: ./weft train --resume " + gone + "\n130\n"));
  CHECK(std::filesystem::exists(gone + "/latest"));
  // Text stops it, too, also where whoever has started the program ignores SIGPIPE.
  const std::string ignored = fresh_scratch("ignored");
  const Outcome text = run_shell("{ (trap '' PIPE; timeout 600 " + weft_program() + " train" +
                                 settings + ignored + "); } | head -1");
  CHECK_THAT(text.err, Contains("continue with: ./weft train --resume " + ignored + "\n"));
  CHECK(std::filesystem::exists(ignored + "/latest"));
  CHECK(!std::filesystem::exists(ignored + "/model.safetensors"));
  // Nobody reads while the run is asked to stop.
  const std::string unread = fresh_scratch("unread");
  BackgroundWeft weft("train --json" + settings + unread);
  await(weft, "step", 1);
  std::this_thread::sleep_for(std::chrono::seconds(3));  // a page of steps is soon written
  weft.send(SIGTERM);
  for (int i = 0; i < 300 && !std::filesystem::exists(unread + "/latest"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  CHECK(std::filesystem::exists(unread + "/latest"));
  CHECK(weft.finish().code == 130);
}

TEST_CASE("Data that is another one when a run goes on is named") {
  const std::string folder = make_colour_folders("moved_images", 6, 16, 16);
  const std::string run = scratch("moved");
  run_train("moved",
            "--model resnet8 --batch-size 4 --epochs 1 --limit-batches 1 --data folder:" + folder);
  std::vector<std::filesystem::path> classes;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    classes.push_back(entry.path());
  }
  const auto first = std::filesystem::directory_iterator(classes[0])->path();
  std::filesystem::rename(first, classes[1] / ("moved" + first.extension().string()));
  check_error(run_weft("train --resume " + run), 1, folder + " has changed: its images have other");

  const std::string text = scratch("words.txt"), of_text = fresh_scratch("text");
  const auto write = [&](int words) {
    std::ofstream out(text);
    for (int i = 0; i < words; ++i) out << "word " << i * i % 97 << "\n";
  };
  write(9000);
  REQUIRE(run_weft("train --recipe gpt-quick --epochs 1 --limit-batches 2 --data text:" + text +
                   " --output " + of_text)
              .code == 0);
  write(9500);
  check_error(run_weft("train --resume " + of_text), 1, text + " has changed: its bytes are ");
}

TEST_CASE("A stop during validation is one before it: resuming validates all of it") {
  const std::string folder = fresh_scratch("long_validation");
  std::filesystem::create_directories(folder);
  std::filesystem::rename(make_colour_folders("few", 2, 16, 16), folder + "/train");
  std::filesystem::rename(make_colour_folders("many", 400, 16, 16), folder + "/val");
  const std::string arguments = "--model resnet8 --batch-size 3 --epochs 2 --data folder:" + folder;
  const auto whole = run_train("validated", arguments);
  const std::string run = fresh_scratch("unvalidated");
  {
    BackgroundWeft weft("train --json --output " + run + " " + arguments);
    await(weft, "step", 2);
    weft.send(SIGINT);
    const Outcome outcome = weft.finish();
    CHECK(outcome.code == 130);
    CHECK(events_of(parse_lines(outcome.out), "epoch").empty());
    CHECK(progress_of(run + "/step-2").at("epoch") == 0);
    CHECK(progress_of(run + "/step-2").at("batch") == 2);
  }
  const auto rest = parse_lines(run_weft("train --json --resume " + run).out);
  REQUIRE(rest.size() == 5);  // the epoch that was cut short, two steps, an epoch, the end
  for (const char* field : {"event", "loss", "train_accuracy", "val_loss", "val_accuracy"}) {
    CHECK(rest[0].at(field) == whole[2].at(field));
  }
  CHECK(diff_weights("validated", "unvalidated") == 0);
}

TEST_CASE("A checkpoint that lacks newer settings goes on as it would have") {
  run_train("newer", "--model resnet8 --epochs 2 --limit-batches 1 --batch-size 4");
  train::Checkpoint checkpoint = train::load_checkpoint(scratch("newer") + "/step-1");
  // What an older program wrote of its state, and no more.
  const json old =
      json::parse(read_file("train/testdata/state_before_precisions.json")).at("state");
  const auto keep_keys_of = [](const json& known, json& object) {
    const json whole = object;
    for (const auto& [key, value] : whole.items()) {
      if (!known.contains(key)) object.erase(key);
    }
    CHECK(object.size() < whole.size());
  };
  keep_keys_of(old, checkpoint.state);
  keep_keys_of(old.at("config"), checkpoint.state.at("config"));
  const std::string run = fresh_scratch("older");
  std::filesystem::create_directory(run);
  train::save_checkpoint(run, checkpoint);
  const Outcome outcome = run_weft("train --json --resume " + run);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(diff_weights("newer", "older") == 0);

  checkpoint.state.at("config")["levitation"] = 3;
  const std::string unknown = fresh_scratch("unknown");
  std::filesystem::create_directory(unknown);
  train::save_checkpoint(unknown, checkpoint);
  check_error(run_weft("eval --checkpoint " + unknown), 1,
              "configuration: unknown key \"levitation\"");
}

TEST_CASE("The seed decides the weights, the number of threads does not") {
  const std::string settings =
      "--model cct" + kSmall + GENERATE(as<std::string>(), "--precision fp32", "--precision bf16");
  INFO(settings);
  run_train("one", settings + " --threads 1");
  run_train("two", settings + " --threads 2");
  CHECK(diff_weights("one", "two") == 0);
  run_train("other", settings + " --threads 2 --seed 1");
  CHECK(diff_weights("one", "other") == 1);
}

TEST_CASE("Activations computed twice give the same bits") {
  const std::string settings = "--model vit_lite --drop-path 0.3" + kSmall +
                               GENERATE(as<std::string>(), "--precision fp32", "--precision bf16");
  INFO(settings);
  run_train("kept", settings);
  run_train("recomputed", settings + " --checkpoint-activations");
  CHECK(diff_weights("kept", "recomputed") == 0);
}

TEST_CASE("K accumulated batches make the step of one batch K times as large") {
  // One step of SGD at rate 1 with nothing that would hide a factor: no clipping, no decay. Every
  // gradient is a sum over images and tokens that the two runs round in different places.
  const std::string settings =
      "--model vit_lite --epochs 1 --optimizer sgd --momentum 0 --weight-decay 0 --clip-norm 0 "
      "--schedule constant --warmup 0 ";
  run_train("start", settings + "--lr 1e-30 --batch-size 16 --limit-batches 1");
  run_train("large", settings + "--lr 1 --batch-size 16 --limit-batches 1");
  run_train("accumulated", settings + "--lr 1 --batch-size 4 --limit-batches 4 --accumulate 4");
  run_train("first", settings + "--lr 1 --batch-size 4 --limit-batches 1");
  double largest_weight = 0;
  for (const auto& [name, tensor] : io::read_safetensors(weights("large")).tensors) {
    for (double value : tensor.to_vector()) {
      largest_weight = std::max(largest_weight, std::abs(value));
    }
  }
  const double step = distance("start", "large");
  // n additions in f32 err by n 2^-24 of the sum of magnitudes, here of the order of the largest
  // gradient; then both runs round the new weight.
  constexpr double kImages = 16, kTokens = 64;
  const double bound = kImages * kTokens * 0x1p-24 * step + 2 * 0x1p-24 * largest_weight;
  CHECK(distance("large", "accumulated") <= bound);
  CHECK(distance("large", "first") > 100 * bound);
}

TEST_CASE("bf16 computes products in bf16 and keeps weights and optimizer state in f32") {
  const std::string settings = "--model vit_lite" + kSmall;
  run_train("narrow", settings + "--precision bf16");
  run_train("wide", settings + "--precision fp32");
  CHECK(diff_weights("narrow", "wide") == 1);
  for (const std::string file : {"model", "optimizer"}) {
    int64_t elements = 0, beyond_bf16 = 0;
    const auto read = io::read_safetensors(scratch("narrow") + "/step-2/" + file + ".safetensors");
    for (const auto& [name, tensor] : read.tensors) {
      if (tensor.dtype() == DType::i64) continue;  // step counts
      INFO(name);
      REQUIRE(tensor.dtype() == DType::f32);
      elements += tensor.numel();
      const auto* bits = static_cast<const uint32_t*>(tensor.raw());
      for (int64_t i = 0; i < tensor.numel(); ++i) beyond_bf16 += (bits[i] & 0xffffu) != 0;
    }
    INFO(file);
    CHECK(elements > 100000);
    CHECK(beyond_bf16 > elements * 9 / 10);
  }
}
