// How long a run goes on, what it looks at on the way, and what it keeps: what train::Trainer has,
// from the command line.
#include <algorithm>
#include <cmath>

#include "tests/program/train_runs.h"

using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

/// Images of three colours on which epochs have some 40 batches of two.
std::string images(const std::string& model = "resnet8",
                   const std::string& batch = "--batch-size 2") {
  static const std::string folder = make_colour_folders("fit_images", 30, 16, 16);
  return batch + " --data folder:" + folder + " --model " + model + " ";
}
const std::string kText = "--recipe gpt-quick --batch-size 2 ";

json state_of(const std::string& checkpoint) {
  return json::parse(read_file(checkpoint + "/state.json")).at("state");
}

std::vector<json> resume(const std::string& run) {
  const Outcome outcome = run_weft("train --json --resume " + run);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return parse_lines(outcome.out);
}

}  // namespace

TEST_CASE("Averages, the best states and early stopping go on exactly, also within an epoch") {
  const bool is_text = GENERATE(false, true);
  const std::string arguments =
      (is_text ? kText + "--limit-batches 40 " : images()) +
      "--epochs 3 --max-steps 75 --max-time 1:00:00:00 --ema 0.9 --early-stopping=50 "
      "--min-delta 0.001 --save-top-k 2 --val-check-interval 7 --limit-val-batches 3 "
      "--save-every 4 --accumulate 2";
  INFO(arguments);
  const auto whole = run_train("fit_whole", arguments);
  const std::string a = scratch("fit_whole"), b = fresh_scratch("fit_stopped");
  int stops = 0;
  for (std::string next = "--output " + b + " " + arguments; stops < 2; next = "--resume " + b) {
    BackgroundWeft weft("train --json " + next);
    for (int i = 0; i < 3; ++i) REQUIRE(!weft.line().empty());
    weft.send(SIGINT);
    const Outcome outcome = weft.finish();
    INFO(outcome.err);
    if (outcome.code == 0) break;  // a fast machine was at the end
    REQUIRE(outcome.code == 130);
    ++stops;
  }
  CHECK(stops > 0);
  const json done = resume(b).back();
  for (const char* field :
       {"step", "loss", "val_loss", "val_accuracy", "test_loss", "stop_reason", "best_score"}) {
    INFO(field);
    CHECK(done.value(field, json()) == whole.back().value(field, json()));
  }
  CHECK(diff_weights("fit_whole", "fit_stopped") == 0);
  const std::string last = done.at("checkpoint"), step = last.substr(last.rfind('/'));
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    INFO(file);
    CHECK(read_file(a + step + file) == read_file(b + step + file));
  }
  CHECK(state_of(a + step).at("callbacks") == state_of(b + step).at("callbacks"));
  const auto rows = parse_lines(read_file(a + "/metrics.jsonl"));
  const auto again = parse_lines(read_file(b + "/metrics.jsonl"));
  REQUIRE(rows.size() == again.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const char* name : {"step", "loss/step", "loss/validation", "loss/train"}) {
      CHECK(rows[i].value(name, json()) == again[i].value(name, json()));
    }
  }
  const json state = state_of(b + step);
  for (const json& kept : state.at("callbacks").at("best").at("steps")) {
    INFO(kept);
    CHECK(std::filesystem::exists(fmt::format("{}/step-{}", b, kept[0].get<int64_t>())));
  }
}

TEST_CASE("An epoch that a validation does not end has its last one's figures, resumed or not") {
  const std::string data = GENERATE(as<std::string>(), kText, images());
  INFO(data);
  const auto whole = run_train("between", data +
                                              "--epochs 1 --limit-batches 5 --save-every 1 "
                                              "--val-check-interval 4 --limit-val-batches 2");
  const auto rest = resume(scratch("between") + "/step-4");
  REQUIRE(rest.size() == 3);  // a step, the epoch, the end
  const json epoch = events_of(whole, "epoch")[0], validation = events_of(whole, "validation")[0];
  CHECK(epoch.at("val_loss") == validation.at("val_loss"));
  for (const char* field : {"step", "loss", "val_loss", "val_accuracy"}) {
    INFO(field);
    CHECK(rest[1].value(field, json()) == epoch.value(field, json()));
  }
}

TEST_CASE("A run ends after so many steps, so much time, or when nothing gets better") {
  const bool is_text = GENERATE(false, true);
  const std::string data = is_text ? kText : images();
  const auto reason = [](const std::vector<json>& events) {
    return events.back().at("stop_reason").get<std::string>();
  };
  INFO(data);
  const auto steps = run_train("by_steps", data + "--epochs 4 --max-steps 9 --limit-batches 6");
  CHECK(events_of(steps, "step").size() == 9);
  CHECK(events_of(steps, "epoch").size() == 1);
  CHECK(reason(steps) == "max_steps = 9");
  // The schedule ends where the run does.
  CHECK(events_of(steps, "step").back().at("lr").get<double>() <
        1e-3 * events_of(steps, "step")[1].at("lr").get<double>());

  const auto time =
      run_train("by_time", data + "--epochs 100000 --limit-batches 6 --max-time 0.5s");
  CHECK(reason(time) == "max_time = 0.5 s");
  CHECK(time.back().at("seconds") >= 0.5);
  // The same without a limit of epochs.
  run_train("by_steps_alone", data + "--epochs -1 --max-steps 9 --limit-batches 6");
  CHECK(diff_weights("by_steps", "by_steps_alone") == 0);
  CHECK(resume(scratch("by_steps_alone")).size() == 1);
  const auto open = run_train("by_time_alone", data +
                                                   "--epochs -1 --limit-batches 6 --max-time 0.3s "
                                                   "--schedule constant --warmup 0");
  CHECK(reason(open) == "max_time = 0.3 s");
  // Time counts over sessions.
  CHECK(resume(scratch("by_time")).size() == 1);

  // Steps of this size leave every weight as it is.
  const auto stuck = run_train("by_patience", data +
                                                  "--epochs 9 --limit-batches 3 --lr 1e-30 "
                                                  "--weight-decay 0 --early-stopping=2");
  CHECK(events_of(stuck, "epoch").size() == 3);
  CHECK_THAT(reason(stuck), Contains("loss/validation has not got better than "));
  const auto again = resume(scratch("by_patience"));
  REQUIRE(again.size() == 1);
  CHECK(reason(again) == reason(stuck));
  // A smaller loss by less than this is no better.
  const auto demanding =
      run_train("by_delta", data +
                                "--epochs 9 --limit-batches 3 --early-stopping=1 "
                                "--min-delta 100");
  CHECK(events_of(demanding, "epoch").size() == 2);
}

TEST_CASE("The best checkpoints are kept by the metric that is named") {
  const auto events =
      run_train("best", images() +
                            "--epochs 5 --limit-batches 6 --val-check-interval 3 --lr 1e-2 "
                            "--monitor accuracy/validation --save-top-k 2");
  std::vector<std::pair<double, int64_t>> scores;  // better ones, and of equals earlier ones, first
  for (const char* kind : {"validation", "epoch"}) {
    for (const json& event : events_of(events, kind)) {
      scores.emplace_back(-event.at("val_accuracy").get<double>(), event.at("step"));
    }
  }
  REQUIRE(scores.size() == 10);
  std::ranges::sort(scores);
  const std::string run = scratch("best");
  CHECK(events.back().at("best") == fmt::format("{}/step-{}", run, scores[0].second));
  CHECK(events.back().at("best_score") == -scores[0].first);
  int64_t checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    checkpoints += entry.path().filename().string().starts_with("step-");
  }
  for (const int64_t step : {scores[0].second, scores[1].second, int64_t{30}}) {
    CHECK(std::filesystem::exists(fmt::format("{}/step-{}", run, step)));
  }
  CHECK(checkpoints <= 4);  // two of them the latest
  const Outcome outcome =
      run_weft("eval --checkpoint " + events.back().at("best").get<std::string>());
  CHECK(outcome.code == 0);
}

TEST_CASE("Limits are counts or fractions, of training and of validation") {
  // 81 images to train, 9 to validate.
  const auto events =
      run_train("fractions", images() +
                                 "--epochs 1 --limit-batches 0.1 "
                                 "--limit-val-batches 1.0 --val-check-interval 0.5");
  CHECK(events_of(events, "step").size() == 4);
  CHECK(events_of(events, "validation").size() == 1);
  const json accuracy = events_of(events, "epoch")[0].at("val_accuracy");
  const double right = accuracy.get<double>() * 9;
  CHECK(right == Approx(std::round(right)));
  const auto text = run_train("text_fractions",
                              "--recipe gpt-quick --epochs 1 --limit-batches "
                              "0.005 --limit-val-batches 2 "
                              "--val-check-interval 0.25");
  CHECK(events_of(text, "step").size() == 4);
  CHECK(events_of(text, "validation").size() == 3);
}

TEST_CASE("An epoch whose end is not validated has no figures of an earlier validation there") {
  const std::string data = GENERATE(as<std::string>(), kText, images());
  INFO(data);
  run_train("uneven", data +
                          "--epochs 2 --limit-batches 5 --val-check-interval 3 "
                          "--limit-val-batches 1");
  std::vector<int64_t> validated, epochs;
  for (const json& row : parse_lines(read_file(scratch("uneven") + "/metrics.jsonl"))) {
    if (row.contains("loss/validation")) validated.push_back(row.at("step"));
    if (row.contains("loss/train")) epochs.push_back(row.at("step"));
  }
  CHECK(validated == std::vector<int64_t>{3, 8});
  CHECK(epochs == std::vector<int64_t>{5, 10});
}

TEST_CASE("Validation batches may be tried before anything is trained") {
  make_colour_folders("sanity/train", 12, 16, 16);
  make_colour_folders("sanity/val", 2, 16, 16);
  std::filesystem::resize_file(scratch("sanity/val/red/001.png"), 60);
  for (const bool is_tried : {false, true}) {
    const Outcome outcome = run_weft(
        "train --json --batch-size 2 --model resnet8 --epochs 1 --limit-batches 3 --data "
        "folder:" +
        scratch("sanity") + " --output " + fresh_scratch("sanity_run") +
        (is_tried ? " --num-sanity-val-steps -1" : ""));
    INFO(outcome.err);
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.err, Contains("001.png: damaged PNG"));
    CHECK(events_of(parse_lines(outcome.out), "step").size() == (is_tried ? 0 : 3));
  }
}

TEST_CASE("Validation batches that were tried leave no trace") {
  const std::string data = GENERATE(as<std::string>(), kText, images());
  INFO(data);
  const std::string settings = "--epochs 1 --limit-batches 5 --limit-val-batches 3 ";
  run_train("sane", data + settings + "--num-sanity-val-steps 2");
  run_train("unasked", data + settings);
  CHECK(diff_weights("sane", "unasked") == 0);
  const auto rows = parse_lines(read_file(scratch("sane") + "/metrics.jsonl"));
  const auto others = parse_lines(read_file(scratch("unasked") + "/metrics.jsonl"));
  REQUIRE(rows.size() == others.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const char* name : {"step", "loss/step", "loss/validation", "accuracy/validation"}) {
      CHECK(rows[i].value(name, json()) == others[i].value(name, json()));
    }
  }
}

TEST_CASE("A run that ended because its metric is none ends the same way when it goes on") {
  const std::string settings =
      images() +
      "--epochs 6 --limit-batches 1 --limit-val-batches 2 --early-stopping 3 --optimizer sgd "
      "--lr 1e30 --momentum 0 --clip-norm 0 --weight-decay 0 --schedule constant --warmup 0";
  const auto whole = run_train("fit_nan", settings);
  REQUIRE(whole.back().at("event") == "done");
  REQUIRE_THAT(whole.back().at("stop_reason").get<std::string>(), Contains("nan"));
  // As if it had been killed before it wrote its weights.
  const std::string bits = read_file(weights("fit_nan"));
  std::filesystem::remove(weights("fit_nan"));
  const Outcome outcome = run_weft("train --json --resume " + scratch("fit_nan"));
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(read_file(weights("fit_nan")) == bits);
  CHECK(parse_lines(outcome.out).back().at("stop_reason") == whole.back().at("stop_reason"));
}

TEST_CASE("Ranks average, stop and rank their states together") {
  const std::string settings =
      "--epochs 2 --limit-batches 4 --val-check-interval 2 --ema 0.5 --early-stopping=9 "
      "--save-top-k=-1 --global-batch-size 8 --optimizer sgd --lr 0.1 ";
  const bool is_text = GENERATE(false, true);
  const std::string data = is_text ? "--recipe gpt-quick " : images("vit_lite", "");
  const auto one = run_train("fit_one", data + settings);
  for (const std::string strategy : {"ddp", "fsdp --state-dict-type sharded", "pipeline"}) {
    INFO(data << strategy);
    const auto two = run_train("fit_two", data + settings + "--devices 2 --strategy " + strategy);
    CHECK(two.back().at("best_score") ==
          Approx(one.back().at("best_score").get<double>()).epsilon(1e-4));
    CHECK(distance("fit_one", "fit_two") < 1e-5);
    // It goes on from its first epoch's end as it did.
    const std::string run = scratch("fit_two");
    std::filesystem::rename(weights("fit_two"), scratch("before.safetensors"));
    const Outcome outcome = run_weft("train --json --resume " + run + "/step-4");
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(run_weft("diff " + weights("fit_two") + " " + scratch("before.safetensors")).code == 0);
  }
}

TEST_CASE("What these settings cannot be is said by name") {
  const auto fails = [](const std::string& arguments, int code, const std::string& message) {
    INFO(arguments);
    const std::string output = fresh_scratch("never");
    check_error(run_weft("train --output " + output + " " + arguments), code, message);
    CHECK(!std::filesystem::exists(output));
  };
  fails("--epochs -1", 2, "epochs: -1 is no limit; expected one of max-steps or max-time");
  fails("--epochs -1 --max-time 1m", 2,
        "goes by the number of all steps, which epochs -1 and max-time leave open; expected "
        "max-steps");
  fails("--max-steps=-1", 2, "max-steps: must not be negative, got -1");
  fails("--max-time 90", 2, "max-time: expected a duration, 90s, 10m, 2h, 1d or DD:HH:MM:SS");
  fails("--ema 1", 2, "ema: expected a number in [0, 1), got 1");
  fails("--limit-batches 1.5", 2,
        "limit-batches: expected a positive count or a fraction in (0, 1], got 1.5");
  fails("--limit-val-batches half", 2,
        "limit-val-batches: expected a count, 10, or a fraction, 0.1, got \"half\"");
  fails("--val-check-interval 0", 2, "val-check-interval: expected a positive count or a fraction");
  fails("--num-sanity-val-steps -2", 2,
        "num-sanity-val-steps: expected a number of batches, or -1 for all, got -2");
  fails("--early-stopping=-1", 2, "early-stopping: must not be negative, got -1");
  fails("--min-delta 0.1", 2, "min-delta: 0.1 is what --early-stopping takes for an improvement");
  fails("--save-top-k=-2", 2, "save-top-k: expected a number of checkpoints, or -1 for all");
  fails("--monitor loss/validaton", 2, "did you mean \"loss/validation\"?");
  fails("--data grammar --monitor accuracy/validation", 2,
        "\"accuracy/validation\" is not one of loss/validation, loss/train");
  // What the data decide is said before anything is trained.
  fails(images() + "--limit-batches 3 --val-check-interval 4", 1,
        "val-check-interval: 4 batches, but an epoch has 3");
  fails(kText + "--limit-batches 40 --val-check-interval 41", 1,
        "val-check-interval: 41 batches, but an epoch has 40");
  fails(images() + "--limit-val-batches 0.1", 1, "limit-val-batches: 0.1 of 5 batches is none");
  fails("--data grammar --limit-batches 1e-9", 1, "limit-batches: 1e-09 of ");
}
