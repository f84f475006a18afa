// dp, tp, fsdp+tp and pipeline through the program itself: they train, evaluate, save and resume.
#include "io/safetensors.h"
#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

/// A tiny run on 3 x 30 images, two batches an epoch.
std::string tiny(const std::string& more, const std::string& model = "vit_lite",
                 const std::string& optimizer = "sgd --lr 0.01") {
  static const std::string folder = make_colour_folders("strategies_images", 30, 16, 16);
  return fmt::format(
      "--model {} --data folder:{} --limit-batches 2 --seed 5 --optimizer {} "
      "--global-batch-size 24 {}",
      model, folder, optimizer, more);
}
const std::string kFixed = "--deterministic-reduce=4 --drop-path 0.1 --epochs 1 ";

json last(const std::vector<json>& events, const std::string& kind) {
  return events_of(events, kind).back();
}

}  // namespace

TEST_CASE("dp, tp, fsdp+tp and pipeline train as one device does, and eval and inspect read them") {
  const json expected = last(run_train("alone", tiny("--epochs 1")), "done");
  const auto check = [&](const std::string& name, const std::string& more) {
    INFO(more);
    const json done = last(run_train(name, tiny("--epochs 1 --devices " + more)), "done");
    // f32 sums of other orders over four steps of 0.01: far below one step's size.
    CHECK(distance("alone", name) < 1e-5);
    CHECK(std::abs(done.at("loss").get<double>() - expected.at("loss").get<double>()) < 1e-4);
    CHECK(done.at("val_accuracy") == expected.at("val_accuracy"));
    CHECK(done.at("test_accuracy") == expected.at("test_accuracy"));
  };
  check("dp3", "3 --strategy dp");
  check("tp2", "2 --strategy tp");
  check("tp2x2", "4 --strategy tp --tensor-parallel 2");
  check("fsdptp", "4 --strategy fsdp+tp --cpu-offload");
  check("tp2seq", "2 --strategy tp --sequence-parallel --parallel-head");
  check("fsdptpseq",
        "4 --strategy fsdp+tp --sequence-parallel --parallel-head --checkpoint-activations");
  check("pipe3", "3 --strategy pipeline --micro-batches 5 --checkpoint-activations");
  check("pipe2x2", "4 --strategy pipeline --pipeline-stages 2 --pipeline-schedule gpipe");
  for (const std::string name : {"fsdptp", "pipe3"}) {
    const Outcome eval = run_weft("eval --json --checkpoint " + scratch(name));
    INFO(eval.err);
    CHECK(eval.code == 0);
    // As many tensors and elements.
    const auto last_line = [](const std::string& text) {
      return text.substr(text.rfind('\n', text.size() - 2));
    };
    CHECK(last_line(run_weft("inspect " + weights(name)).out) ==
          last_line(run_weft("inspect " + weights("alone")).out));
  }
}

TEST_CASE("with a deterministic reduction dp and pipelines have one device's bits") {
  run_train("one", tiny(kFixed));
  for (const std::string how :
       {"2 --strategy dp", "2 --strategy pipeline", "4 --strategy pipeline --pipeline-stages 2"}) {
    INFO(how);
    run_train("many", tiny(kFixed + "--devices " + how));
    CHECK(diff_weights("one", "many") == 0);
  }
}

TEST_CASE("a run goes on from tp to a pipeline to one device, with the state of its optimizer") {
  const std::string settings = tiny("--epochs 3", "vit_lite", "adamw");
  run_train("straight", settings);
  const auto first = run_train("moved", settings + " --devices 2 --strategy tp");
  // Back to the end of the first epoch, and again.
  const auto resume_after = [&](size_t epochs, const std::vector<json>& events,
                                const std::string& how) {
    const std::string step =
        fmt::format("{}/step-{}", scratch("moved"),
                    events_of(events, "epoch").at(epochs - 1).at("step").dump());
    const Outcome rest = run_weft("train --json --resume " + step + " --devices " + how);
    INFO(rest.err);
    REQUIRE(rest.code == 0);
    return parse_lines(rest.out);
  };
  // Two checkpoints are kept: those of epochs 2 and 3.
  const auto second = resume_after(2, first, "2 --strategy pipeline");
  CHECK(events_of(second, "epoch").size() == 1);
  CHECK(distance("straight", "moved") < 1e-3);
  const auto third = resume_after(1, second, "1 --strategy single");
  CHECK(events_of(third, "epoch").empty());
}

TEST_CASE("strategies that cannot be, and models that they cannot cut, are usage errors") {
  const std::string ignored = "train --output " + scratch("none") + " ";
  check_error(run_weft(ignored + "--devices 4 --strategy tp --tensor-parallel 3"), 2,
              "tensor-parallel 3 does not divide 4 devices");
  check_error(run_weft(ignored + "--devices 3 --strategy fsdp+tp"), 2,
              "3 devices are no mesh of 2 that share a layer");
  check_error(run_weft(ignored + "--devices 4 --strategy pipeline --pipeline-stages 3"), 2,
              "pipeline-stages 3 does not divide 4 devices");
  check_error(run_weft(ignored + "--devices 2 --strategy pipeline --pipeline-schedule zb"), 2,
              "is not one of gpipe, 1f1b");
  check_error(run_weft(ignored + "--devices 2 --strategy ddp --sequence-parallel"), 2,
              "sequence-parallel is a setting of tp and fsdp+tp, not of ddp");
  check_error(run_weft(ignored + "--devices 2 --strategy tp --deterministic-reduce"), 2,
              "deterministic-reduce: not with tp");
  const auto fails = [&](const std::string& how, const std::string& model,
                         const std::string& text) {
    const Outcome outcome = run_weft(ignored + tiny("--epochs 1 --devices " + how, model));
    INFO(outcome.err);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, Contains(text));
  };
  fails("3 --strategy tp", "vit_lite", "3 ranks do not divide 4 heads");
  fails("2 --strategy tp", "resnet8", "neither attention nor an MLP");
  fails("5 --strategy pipeline", "cct", "5 stages cannot be made of 4 segments");
  CHECK(!std::filesystem::exists(scratch("none")));
}
