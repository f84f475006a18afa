// Bad input of the commands that train and use models: each is one line that names the thing, and
// leaves nothing behind.
#include <sys/stat.h>
#include <unistd.h>

#include "io/files.h"
#include "tests/program/train_runs.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

const std::string kTiny = " --epochs 1 --limit-batches 1 --batch-size 4 ";

void check_train_error(const std::string& arguments, int code, const std::string& message) {
  INFO(arguments);
  const std::string output = fresh_scratch("never");
  check_error(run_weft("train --json --output " + output + " " + arguments), code, message);
  CHECK(!std::filesystem::exists(output));
}

/// A run of resnet8, made once.
const std::string& resnet_run() {
  static const std::string run = [] {
    run_train("resnet", "--model resnet8" + kTiny);
    return scratch("resnet");
  }();
  return run;
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

TEST_CASE("Mistakes in train's command line exit with 2") {
  check_train_error("--frobnicate", 2, "--frobnicate");
  check_train_error("--recipe nope", 2,
                    "unknown recipe \"nope\": expected one of builtin-quick, cifar10-quick");
  check_train_error("--model nope", 2, "model: \"nope\" is not one of vit_b_16, ");
  for (const auto& [typo, guess] : {std::pair("--model resnet5", "resnet50"),
                                    {"--recipe builtin-quik", "builtin-quick"},
                                    {"--optimizer admaw", "adamw"},
                                    {"--schedule cosin", "cosine"},
                                    {"--precision bf61", "bf16"}}) {
    check_train_error(typo, 2, fmt::format("; did you mean \"{}\"?", guess));
  }
  check_train_error("--optimizer lion", 2, "optimizer: \"lion\" is not one of adamw, adam, sgd");
  check_train_error("--nesterov", 2, "nesterov: optimizer adamw has none");
  check_train_error("--optimizer sgd --momentum 0 --nesterov", 2,
                    "nesterov: needs a momentum, got 0");
  check_train_error("--optimizer sgd --eps 1e-3", 2, "eps: optimizer sgd has none");
  check_train_error("--betas 0.9", 2, "betas: expected two numbers, got 1");
  check_train_error("--betas 0.9 1.5", 2, "betas: expected a number in [0, 1), got 1.5");
  check_train_error("--vector-lr 0", 2, "vector-lr: expected a positive number, got 0");
  check_train_error("--schedule steps", 2, "schedule: \"steps\" is not one of one-cycle");
  check_train_error("--data imagenet", 2,
                    "unknown data 'imagenet': expected builtin, cifar10:DIR, folder:DIR");
  check_train_error("--data folder:", 2, "expected a directory after the colon");
  check_train_error("--strategy --devices 2", 2, "--strategy: expected a value, got --devices");
  check_train_error("--wrap --strategy fsdp", 2, "--wrap: expected a value, got --strategy");
  check_train_error("--precision --max-steps 1", 2,
                    "--precision: expected a value, got --max-steps");
  check_train_error("--max-steps 1 --max-steps 2", 2, "--max-steps: expected once, got 2 times");
  check_train_error("--epochs 0", 2,
                    "epochs: expected a positive number, or -1 for no limit, got 0");
  check_train_error("--batch-size -4", 2, "batch-size: expected a positive number, got -4");
  check_train_error("--accumulate 0", 2, "accumulate");
  check_train_error("--limit-batches -1", 2,
                    "limit-batches: expected a positive count or a fraction in (0, 1], got -1");
  check_train_error("--image-size 100000", 2, "image-size: expected a number of pixels up to");
  check_train_error("--precision int8", 2, "precision: \"int8\" is not one of fp32, tf32");
  check_train_error("--matmul-numerics h300", 2,
                    "matmul-numerics: \"h300\" is not one of ieee, exact, v100");
  check_train_error("--matmul-numerics v100 --precision bf16", 2,
                    "--matmul-numerics v100 has no bf16 products; use --precision fp16");
  check_train_error("--precision bf16 --loss-scale 8", 2,
                    "loss-scale: only precision fp16 scales the loss, not bf16");
  check_train_error("--precision fp16 --loss-scale much", 2,
                    "loss-scale: expected dynamic, none or a positive number, got \"much\"");
  check_train_error("--precision fp16 --loss-scale 0", 2, "loss-scale: expected dynamic");
  check_train_error("--precision fp16 --min-loss-scale 1e9", 2, "min-loss-scale");
  check_train_error("--precision fp16 --loss-scale-window 0", 2, "loss-scale-window");
  check_train_error("--precision fp8 --fp8-scaling late", 2,
                    "fp8-scaling: \"late\" is not one of current, delayed");
  check_train_error("--lr 0", 2, "lr: expected a positive number, got 0");
  check_train_error("--lr nan", 2, "lr");
  check_train_error("--lr much", 2, "--lr");
  check_train_error("--label-smoothing 1", 2, "label-smoothing: expected a number in [0, 1)");
  check_train_error("--seed -1", 2, "--seed");
  check_train_error("--threads 0", 2, "--threads");
  check_train_error("--epochs", 2, "--epochs");
  check_error(run_weft("train --resume x --epochs 3"), 2, "--resume continues a run with its own");
  check_error(run_weft("train --resume x --output y"), 2, "--output");
}

TEST_CASE("Mistakes in the command lines of eval and predict exit with 2") {
  check_error(run_weft("eval"), 2, "--checkpoint is required");
  check_error(run_weft("eval --checkpoint x --data imagenet"), 2, "unknown data 'imagenet'");
  check_error(run_weft("eval --checkpoint x --precision int8"), 2,
              "precision: \"int8\" is not one of fp32, tf32, bf16");
  check_error(run_weft("eval --checkpoint x --matmul-numerics h300"), 2, "h300");
  check_error(run_weft("bench step --precision int8"), 2, "int8");
  check_error(run_weft("bench step --graph --device cpu"), 2,
              "--graph: expected a CUDA device, got cpu");
  check_error(run_weft("bench step --precision fp8 --matmul-numerics a100"), 2,
              "use --precision bf16");
  check_error(run_weft("predict --checkpoint x"), 2, "IMAGE is required");
  check_error(run_weft("predict --checkpoint x --top 0 a.png"), 2, "--top");
}

TEST_CASE("A device that does not exist or cannot be used is named with the reason") {
  for (const std::string command :
       {"train", "eval --checkpoint x", "predict --checkpoint x a.png", "bench step"}) {
    check_error(run_weft(command + " --device gpu"), 2,
                "--device: unknown device \"gpu\": expected cpu, cpu:N, cuda, cuda:N, "
                "emulated or emulated:N");
    check_error(run_weft(command + " --device cuda:99"), 1, "device cuda:99 is not available: ");
  }
}

TEST_CASE("Data that is missing or damaged is named") {
  check_train_error("--data cifar10:/nowhere", 1, "/nowhere is not a directory");
  check_train_error("--data folder:/nowhere", 1, "/nowhere is not a directory");

  const std::string folder = fresh_scratch("images");
  std::filesystem::create_directories(folder + "/a");
  check_train_error("--data folder:" + folder, 1,
                    folder + "/a: class folder without a .jpg, .jpeg or .png file");
  write_bytes(folder + "/a/0.jpg", bytes_of("This is a letter, not a photograph."));
  check_train_error("--data folder:" + folder, 1, folder + "/a/0.jpg: ");
  const std::vector<uint8_t> jpeg = data::encode_jpeg(data::Image(32, 32));
  write_bytes(folder + "/a/0.jpg", jpeg);
  check_train_error("--data folder:" + folder, 1, "needs a class of at least two images");
  for (int i = 1; i < 8; ++i) write_bytes(fmt::format("{}/a/{}.jpg", folder, i), jpeg);
  check_train_error("--batch-size 8 --model resnet8 --data folder:" + folder, 1,
                    "batch size 8 is larger than the data set of 7 images");
  check_train_error("--batch-size 2 --image-size 30 --model vit_lite --data folder:" + folder, 1,
                    "30");
  check_train_error(
      "--batch-size 2 --model resnet8 --checkpoint-activations --data folder:" + folder, 2,
      "checkpoint-activations: true is set, but model resnet8 has none");

  // Found only when its turn comes: the run has begun.
  const std::vector<uint8_t> half(jpeg.begin(),
                                  jpeg.begin() + static_cast<int64_t>(jpeg.size() / 2));
  for (int i = 1; i < 8; ++i) write_bytes(fmt::format("{}/a/{}.jpg", folder, i), half);
  const Outcome outcome =
      run_weft("train --json --batch-size 4 --model resnet8 --data folder:" + folder +
               " --output " + fresh_scratch("begun"));
  check_error(outcome, 1, folder + "/a/");
}

TEST_CASE("A loss scale that sticks at its minimum ends the run") {
  check_error(run_weft("train --json --model resnet8 --precision 16-mixed --min-loss-scale 1e30 "
                       "--initial-loss-scale 1e30" +
                       kTiny + "--output " + fresh_scratch("stuck")),
              1, "gradients are infinite at the smallest loss scale");
}

TEST_CASE(
    "A run whose numbers are none says what first was not finite, or goes on without the step") {
  const std::string settings =
      "train --json --model resnet8 --epochs 1 --limit-batches 3 --batch-size 4 --lr 1e37 "
      "--schedule constant --warmup 0 --output ";
  const Outcome stopped = run_weft(settings + fresh_scratch("diverged"));
  INFO(stopped.err);
  CHECK(stopped.code == 1);
  CHECK_THAT(stopped.err, Contains("training diverged at step 2: ") && Contains("anomaly: ") &&
                              Contains("nonfinite: skip"));
  const Outcome skipped = run_weft(settings + fresh_scratch("skipped") + " --nonfinite skip");
  INFO(skipped.err);
  REQUIRE(skipped.code == 0);
  const std::vector<json> steps = events_of(parse_lines(skipped.out), "step");
  REQUIRE(steps.size() == 3);
  CHECK(!steps[0].at("skipped"));
  CHECK(steps[1].at("skipped"));
  check_error(run_weft("train --nonfinite perhaps"), 2, "nonfinite: ");
}

TEST_CASE("predict names what is no image") {
  const std::string text = scratch("letter.jpg"), half = scratch("half.png");
  write_bytes(text, bytes_of("Dear Sir"));
  std::vector<uint8_t> png = data::encode_png(data::Image(32, 32));
  png.resize(png.size() / 2);
  write_bytes(half, png);
  const std::string command = "predict --checkpoint " + resnet_run() + " ";
  check_error(run_weft(command + text), 1, text + ": ");
  check_error(run_weft(command + half), 1, half + ": ");
  check_error(run_weft(command + "/nowhere/x.png"), 1, "/nowhere/x.png: cannot open: No such file");
  check_error(run_weft(command + scratch("")), 1, "not a regular file");
}

TEST_CASE("A directory that is no run, and one that already is, are named") {
  const std::string empty = fresh_scratch("empty");
  for (const std::string command :
       {"train --resume ", "eval --checkpoint ", "predict x.png --checkpoint "}) {
    INFO(command);
    check_error(run_weft(command + "/nowhere"), 1, "no checkpoint /nowhere: no such directory");
    std::filesystem::create_directories(empty);
    check_error(run_weft(command + empty), 1, "no checkpoint in " + empty);
  }
  const std::string before = read_file(resnet_run() + "/latest");
  check_error(run_weft("train --model resnet8 --output " + resnet_run()), 2,
              resnet_run() + " already holds a run; continue it with --resume " + resnet_run());
  CHECK(read_file(resnet_run() + "/latest") == before);
  write_bytes(scratch("file"), {1});
  check_error(run_weft("train --model resnet8 --output " + scratch("file") + "/run"), 1,
              "cannot create the directory " + scratch("file") + "/run: Not a directory");
  check_error(run_weft("train --model resnet8 --output /proc/run"), 1, "/proc/run");
}

TEST_CASE("What would overwrite a checkpoint, a run or something else is refused") {
  const std::string run = fresh_scratch("kept");
  std::filesystem::copy(resnet_run(), run, std::filesystem::copy_options::recursive);
  const std::string step = run + "/step-1";
  const auto all = [&] {
    std::string text;
    for (const char* file : {"/latest", "/step-1/model.safetensors", "/metrics.jsonl"}) {
      text += read_file(run + file);
    }
    return text;
  };
  const std::string before = all();
  check_error(run_weft("consolidate " + run + " " + step + "/model.safetensors"), 1,
              "expected a place outside of checkpoints, " + step + " is one");
  check_error(run_weft("consolidate --max-shard-size 1MB " + run + " " + step), 1,
              "expected a place outside of checkpoints");
  check_error(run_weft("report --no-evaluation " + run + " --output " + run + "/latest"), 1,
              "--output: " + run + "/latest is there and no page");
  CHECK(all() == before);
  // A run whose first save was interrupted has no `latest`, and is one.
  std::filesystem::rename(run + "/latest", run + "/other");
  check_error(run_weft("train --model resnet8 --output " + run), 2, run + " already holds a run");
  // A checkpoint alone is of no run that could go on around it.
  const std::string home = fresh_scratch("home");
  std::filesystem::create_directories(home);
  std::filesystem::copy(step, home + "/best", std::filesystem::copy_options::recursive);
  std::filesystem::copy(step, home + "/step-1", std::filesystem::copy_options::recursive);
  write_bytes(home + "/config.yaml", {'m', 'i', 'n', 'e'});
  for (const char* copy : {"/best", "/step-1"}) {
    check_error(run_weft("train --resume " + home + copy), 1,
                home + copy + " is a checkpoint outside of its run's directory");
  }
  CHECK(read_file(home + "/config.yaml") == "mine");
  CHECK(!std::filesystem::exists(home + "/metrics.jsonl"));
}

TEST_CASE("Names that are not UTF-8 are refused before anything is trained") {
  const std::string folder = make_colour_folders("latin", 4, 16, 16);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::filesystem::rename(entry.path(), folder + "/\xff");
    break;
  }
  const std::string output = fresh_scratch("latin_run");
  check_error(run_weft("train --model resnet8 --data folder:" + folder + " --output " + output), 1,
              "expected classes whose names are UTF-8, got ");
  CHECK(!std::filesystem::exists(output));
  check_error(run_weft("train --model resnet8 --data 'folder:\xff' --output " + output), 2,
              "data: expected UTF-8, got ");
}

TEST_CASE("A number that mixes nothing, or is too large, is refused") {
  for (const char* setting : {"mixup", "cutmix"}) {
    for (const char* alpha : {"inf", "1e300", "1e-320", "-1"}) {
      check_error(run_weft(fmt::format("train --model resnet8 --{} {}", setting, alpha)), 2,
                  fmt::format("{}: expected 0, or a number in [0.001, 1000], got ", setting));
    }
  }
  check_error(run_weft("train --model resnet8 --accumulate 9223372036854775807"), 2,
              "accumulate: expected up to 1073741824");
}

TEST_CASE("Nobody waits for a pipe in the place of a file") {
  const std::string pipe = fresh_scratch("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0666) == 0);
  for (const std::string& arguments :
       {"train --data text:" + pipe, "predict --checkpoint " + resnet_run() + " " + pipe,
        "launch --devices 2 --hosts " + pipe + " -- true"}) {
    const Outcome outcome = run_shell("timeout 300 " + weft_program() + " " + arguments);
    INFO(arguments << "\n" << outcome.err);
    CHECK(outcome.code != 124);
    CHECK(outcome.code != 0);
    CHECK_THAT(outcome.err, Contains(pipe));
  }
}

TEST_CASE("A checkpoint with another model's weights is refused") {
  run_train("vit", "--model vit_lite --image-size 16" + kTiny);
  const std::string step = scratch("vit") + "/step-1", file = step + "/model.safetensors";
  std::filesystem::copy_file(resnet_run() + "/step-1/model.safetensors", file,
                             std::filesystem::copy_options::overwrite_existing);
  const std::vector<std::string> commands = {"train --resume ", "eval --checkpoint ",
                                             "predict x.png --checkpoint "};
  for (const std::string& command : commands) {
    check_error(run_weft(command + scratch("vit")), 1, file + " is damaged: it has ");
  }
  // With checksums that fit, of the whole as of before there was one, the names do not.
  json state = json::parse(read_file(step + "/state.json"));
  const json other = json::parse(read_file(resnet_run() + "/step-1/state.json"));
  state["files"]["model.safetensors"] = other["files"]["model.safetensors"];
  state.erase("crc32");
  const std::string summed = state["state"].dump();
  state["state_crc32"] =
      weft::io::checksum_text(weft::io::crc32_of(std::as_bytes(std::span(summed))));
  write_bytes(step + "/state.json", bytes_of(state.dump()));
  for (const std::string& command : commands) {
    check_error(run_weft(command + scratch("vit")), 1, step + ": load_state_dict: missing keys: ");
  }
}

TEST_CASE("A file that may not grow is named") {
  const std::string output = fresh_scratch("limited");
  const Outcome outcome = run_shell("ulimit -f 64; exec " + weft_program() +
                                    " train --json --model resnet8" + kTiny + "--output " + output);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, Contains("weft: error: cannot write " + output) &&
                              Contains("model.safetensors: File too large\n"));
  CHECK(!std::filesystem::exists(output + "/latest"));
  for (const auto& entry : std::filesystem::directory_iterator(output)) {
    INFO(entry.path());  // the curves and metrics so far are whole records
    const std::string name = entry.path().filename().string();
    CHECK((name == "config.yaml" || name.starts_with("metrics.") ||
           name.starts_with("events.out.tfevents.")));
  }
}

TEST_CASE("On a full disk the last checkpoint stays good") {
  const std::string disk = fresh_scratch("disk");
  std::filesystem::create_directories(disk);
  const auto on_small_disk = [&](const std::string& size, const std::string& commands) {
    const std::string unshare = ::geteuid() == 0 ? "unshare -m" : "unshare -rm";
    return run_shell(unshare + " sh -c 'mount -t tmpfs -o size=" + size + " tmpfs " + disk +
                     " && { " + commands + "; }'");
  };
  if (on_small_disk("64k", "true").code != 0) {
    WEFT_SKIP("a full disk: mounting a small one is not permitted");
  }
  const std::string train = weft_program() + " train --json --model resnet8 --optimizer sgd" +
                            " --epochs 3 --limit-batches 1 --batch-size 4 --output " + disk +
                            "/run";
  check_error(on_small_disk("512k", train), 1,
              "cannot save checkpoints in " + disk + "/run: No space left on device");
  // Room for one checkpoint, not for two.
  const Outcome full =
      on_small_disk("1m", train + "; echo $? >&2; " + weft_program() +
                              " eval --json --limit-batches 1 --checkpoint " + disk + "/run");
  INFO(full.err);
  CHECK(full.code == 0);
  CHECK_THAT(full.err, Contains("weft: error: cannot write " + disk + "/run/.step-2.tmp/") &&
                           Contains(": No space left on device\n1\n"));
  CHECK(parse_lines(full.out).back().at("images") == 4);
}

TEST_CASE("A file of several hosts is an error where nothing has started ranks on them") {
  const std::string file = scratch("hosts.yaml"), hosts = scratch("nowhere/hosts");
  const std::string several = "distributed_type: MULTI_CPU\nnum_processes: 4\nnum_machines: 2\n";
  write_bytes(file, bytes_of(several));
  check_train_error("--config " + file, 2,
                    "key \"num_machines\": 2 hosts, and nothing has started");
  write_bytes(file, bytes_of(several + "mpirun_config: {mpirun_hostfile: " + hosts + "}\n"));
  check_train_error("--config " + file, 2, "key \"mpirun_hostfile\": " + hosts + " is not there");
}
