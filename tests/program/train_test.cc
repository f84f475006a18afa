#include <algorithm>

#include "data/transforms.h"
#include "tests/program/train_runs.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

bool is_fraction(const json& value, int64_t of) {
  const double count = value.get<double>() * static_cast<double>(of);
  return count >= 0 && count <= static_cast<double>(of) &&
         std::abs(count - std::round(count)) < 1e-6;
}

/// `weft eval --json`'s last line.
json evaluate(const std::string& arguments) {
  const Outcome outcome = run_weft("eval --json " + arguments);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return parse_lines(outcome.out).back();
}

}  // namespace

TEST_CASE("train --json tells steps, epochs and the end; eval and predict read its checkpoint") {
  const std::string run = scratch("events");
  const auto events = run_train(
      "events", "--model vit_lite --epochs 2 --limit-batches 3 --batch-size 16 --test-time-flip");
  std::vector<std::string> order;
  for (const json& event : events) order.push_back(event.at("event"));
  CHECK(order == std::vector<std::string>{"step", "step", "step", "epoch", "step", "step", "step",
                                          "epoch", "done"});
  int64_t number = 0;
  for (const json& step : events_of(events, "step")) {
    INFO(step);
    CHECK(step.at("step") == ++number);
    CHECK(step.at("epoch") == (number + 2) / 3);
    CHECK(std::isfinite(step.at("loss").get<double>()));
    CHECK(is_fraction(step.at("train_accuracy"), (number - 1) % 3 * 16 + 16));
    CHECK(step.at("val_accuracy").is_null() == (number <= 3));
    CHECK(step.at("images_per_second").get<double>() > 0);
  }
  for (const json& epoch : events_of(events, "epoch")) {
    INFO(epoch);
    CHECK(std::isfinite(epoch.at("loss").get<double>()));
    CHECK(is_fraction(epoch.at("train_accuracy"), 48));
    CHECK(is_fraction(epoch.at("val_accuracy"), 48));
    CHECK(epoch.at("images_per_second").get<double>() > 0);
  }
  const json &done = events.back(), &last = events[7];
  for (const char* field : {"loss", "train_accuracy", "val_accuracy", "images_per_second"}) {
    CHECK(done.at(field) == last.at(field));
  }
  CHECK(is_fraction(done.at("test_accuracy"), 48));
  CHECK(done.at("seconds").get<double>() > 0);
  CHECK(done.at("checkpoint") == run + "/step-6");
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    CHECK(std::filesystem::exists(run + "/step-6/" + file));
  }
  CHECK_THAT(read_file(run + "/latest"), StartsWith("step-6\n"));
  CHECK(run_weft("diff " + weights("events") + " " + run + "/step-6/model.safetensors").code == 0);

  const json score = evaluate("--limit-batches 3 --checkpoint " + run);
  CHECK(score.at("test_accuracy") == done.at("test_accuracy"));
  CHECK(score.at("images") == 48);
  CHECK(evaluate("--limit-batches 3 --checkpoint " + run + "/step-6") == score);
  CHECK(evaluate("--limit-batches 3 --threads 1 --checkpoint " + run) == score);
  for (const std::string devices : {"2", "4"}) {  // of four one has no batch
    const json shared = evaluate("--limit-batches 3 --devices " + devices + " --checkpoint " + run);
    CHECK(shared.at("test_accuracy") == score.at("test_accuracy"));
    CHECK(shared.at("images") == 48);
    CHECK(shared.at("loss").get<double>() == Approx(score.at("loss").get<double>()).epsilon(1e-12));
  }

  const std::string a = scratch("a.png"), b = scratch("b c.png");
  write_bytes(a, data::encode_png(data::Image(32, 32)));
  write_bytes(b, data::encode_png(data::Image(45, 80)));
  const Outcome predicted =
      run_weft("predict --json --top 10 --checkpoint " + run + " " + a + " '" + b + "'");
  CHECK(predicted.code == 0);
  const auto lines = parse_lines(predicted.out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("image") == a);
  CHECK(lines[1].at("image") == b);
  for (const json& line : lines) {
    REQUIRE(line.at("top").size() == 10);
    CHECK(line.at("class") == line.at("top")[0].at("class"));
    CHECK(line.at("probability") == line.at("top")[0].at("probability"));
    double sum = 0, previous = 1;
    for (const json& guess : line.at("top")) {
      const double p = guess.at("probability");
      CHECK(p <= previous);
      sum += previous = p;
    }
    // Each of the ten is rounded to f32, after a division by a sum of ten: relative 2^-20 at most.
    CHECK(sum == Approx(1).margin(0x1p-20));
  }
  const auto one_by_one =
      parse_lines(run_weft("predict --json --top 10 --batch-size 1 --checkpoint " + run + " " + a +
                           " '" + b + "'")
                      .out);
  REQUIRE(one_by_one.size() == 2);
  for (size_t i : {0, 1}) {
    CHECK(one_by_one[i].at("class") == lines[i].at("class"));
    // Sums of a product may be taken in another order for another number of rows.
    CHECK(one_by_one[i].at("probability").get<double>() ==
          Approx(lines[i].at("probability").get<double>()).epsilon(1e-4));
  }
  // The run classifies by an image and its mirror image, which therefore look the same to it.
  data::Image half(32, 32);
  for (int y = 0; y < 32; ++y) std::fill_n(half.at(y, 0), 3 * 16, uint8_t{255});
  const std::string left = scratch("left.png"), right = scratch("right.png");
  write_bytes(left, data::encode_png(half));
  write_bytes(right, data::encode_png(data::flip_horizontal(half)));
  const auto mirrored =
      parse_lines(run_weft("predict --json --checkpoint " + run + " " + left + " " + right).out);
  REQUIRE(mirrored.size() == 2);
  CHECK(mirrored[0].at("class") == mirrored[1].at("class"));
  CHECK(mirrored[0].at("probability").get<double>() ==
        Approx(mirrored[1].at("probability").get<double>()).epsilon(1e-5));
  const Outcome table = run_weft("predict --checkpoint " + run + " " + a);
  CHECK(table.code == 0);
  CHECK_THAT(table.out, StartsWith("image") && Contains("probability") && Contains(a));
  CHECK(std::count(table.out.begin(), table.out.end(), '\n') ==
        5);  // two of heading, three guesses
  std::istringstream rows(table.out);
  for (std::string line; std::getline(rows, line);) CHECK(line.size() == table.out.find('\n'));
}

TEST_CASE("Without --json a table is printed; runs get directories of their own") {
  const std::string folder = fresh_scratch("elsewhere");
  std::filesystem::create_directories(folder);
  for (const char* run : {"runs/builtin-quick-1", "runs/builtin-quick-2"}) {
    const Outcome outcome =
        run_shell("cd " + folder + " && " + weft_program() +
                  " train --model resnet8 --epochs 1 --limit-batches 1 --batch-size 8");
    CHECK(outcome.code == 0);
    CHECK(outcome.err == "");
    CHECK_THAT(outcome.out, StartsWith("resnet8: ") && Contains("\n  epoch  ") &&
                                Contains("\n    1/1  ") && Contains("\ntest accuracy ") &&
                                Contains(std::string("\ncheckpoint ") + run + "/step-1\n") &&
                                Contains(std::string("\nweights    ") + run));
  }
}

TEST_CASE("The batch that is told is the one that is trained with") {
  const Outcome outcome = run_weft("train --model resnet8 --epochs 1 --limit-batches 1 --output " +
                                   fresh_scratch("told_batch") + " --global-batch-size 6");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains(" of 1 steps, global batch 6, ") && !Contains("batch 64"));
}

TEST_CASE("A folder of class folders trains, is held out from, and is evaluated whole") {
  const std::string folder = make_colour_folders("colours", 20, 12, 20);
  const auto events = run_train("colour_run", "--model vit_lite --data folder:" + folder +
                                                  " --epochs 4 --batch-size 9 --no-flip --lr 1e-3");
  const json& done = events.back();
  CHECK(done.at("event") == "done");
  CHECK(done.at("test_accuracy").is_null());
  CHECK(is_fraction(done.at("val_accuracy"), 6));
  const auto epochs = events_of(events, "epoch");
  CHECK(epochs.back().at("loss").get<double>() < epochs.front().at("loss").get<double>());
  CHECK(events_of(events, "step").size() == 4 * (54 / 9));

  const json state = json::parse(read_file(scratch("colour_run") + "/step-24/state.json"));
  CHECK(state.at("state").at("classes") == json({"blue", "green", "red"}));
  CHECK(state.at("state").at("preprocess").at("size") == 12);
  const json score = evaluate("--checkpoint " + scratch("colour_run") + " --data folder:" + folder);
  CHECK(score.at("split") == "all");
  CHECK(score.at("images") == 60);
  CHECK(is_fraction(score.at("test_accuracy"), 60));
  // Fewer classes, in an order of their own, still count by name.
  std::filesystem::remove_all(folder + "/blue");
  CHECK(
      evaluate("--checkpoint " + scratch("colour_run") + " --data folder:" + folder).at("images") ==
      40);
  std::filesystem::rename(folder + "/green", folder + "/violet");
  check_error(run_weft("eval --checkpoint " + scratch("colour_run") + " --data folder:" + folder),
              1, "violet");
}

TEST_CASE("An image size other than the data's is kept in the checkpoint") {
  run_train("resized",
            "--model vit_lite --image-size 16 --epochs 1 --limit-batches 1 --batch-size 8");
  const json state = json::parse(read_file(scratch("resized") + "/step-1/state.json"));
  CHECK(state.at("state").at("preprocess").at("size") == 16);
  CHECK(evaluate("--limit-batches 1 --checkpoint " + scratch("resized")).at("images") == 8);
}

TEST_CASE("CIFAR-10's binary batches are split 45,000 / 5,000 / 10,000") {
  // Holes read as zeros: black aeroplanes.
  const std::string folder = fresh_scratch("cifar");
  std::filesystem::create_directories(folder);
  for (const char* name : {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4",
                           "data_batch_5", "test_batch"}) {
    const std::string file = folder + "/" + name + ".bin";
    std::ofstream(file).flush();
    std::filesystem::resize_file(file, 10000 * 3073);
  }
  const std::string arguments =
      "train --model resnet8 --epochs 1 --limit-batches 1 --batch-size 8" +
      (" --data cifar10:" + folder) + " --output ";
  const Outcome outcome = run_weft(arguments + fresh_scratch("cifar_run"));
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains(": 45000 images to train, 5000 to validate, 10000 to test\n") &&
                              Contains("32 x 32 pixels"));

  const std::string test = folder + "/test_batch.bin", never = fresh_scratch("never");
  std::fstream batch(test, std::ios::in | std::ios::out);
  batch.seekp(7 * 3073);
  batch.put(char(11));
  batch.close();
  check_error(run_weft(arguments + never), 1, test + ": record 7 has label 11, expected 0 to 9");
  std::filesystem::resize_file(test, 30729999);
  check_error(run_weft(arguments + never), 1, test + ": expected 30730000 bytes");
  std::filesystem::remove(test);
  check_error(run_weft(arguments + never), 1, test + ": cannot open: No such file");
  CHECK(!std::filesystem::exists(never));
  std::filesystem::remove_all(folder);
}
