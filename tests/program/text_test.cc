// A language model from the command line: trained on text, gone on with, and written with.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/philox.h"
#include "io/safetensors.h"
#include "tests/program/train_runs.h"

using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

const std::string kQuick = "--recipe gpt-quick --epochs 2 ";

std::string file_of(const std::string& name, const std::string& text) {
  write_bytes(scratch(name), {text.begin(), text.end()});
  return scratch(name);
}

std::string sentences(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("number {} follows.\n", i);
  return text;
}

}  // namespace

TEST_CASE("gpt-quick learns the grammar's text, leaves a run's files, and is written with") {
  const auto events = run_train("grammar", kQuick + "--limit-batches 12");
  const auto steps = events_of(events, "step"), epochs = events_of(events, "epoch");
  REQUIRE(steps.size() == 24);
  REQUIRE(epochs.size() == 2);
  CHECK(steps[0].at("loss") == Approx(std::log(256)).epsilon(0.05));
  CHECK(steps[23].at("loss") < 3);  // how often each byte comes leaves 2.72 nats
  CHECK(epochs[1].at("val_loss") < epochs[0].at("val_loss"));
  const json& done = events.back();
  CHECK(done.at("event") == "done");
  CHECK(done.at("entropy") == Approx(0.29).margin(0.01));
  CHECK(done.at("test_loss") == Approx(done.at("val_loss").get<double>()).epsilon(0.05));
  const std::string run = scratch("grammar");
  CHECK(done.at("checkpoint") == run + "/step-24");
  for (const char* file : {"latest", "step-24/state.json", "step-12/optimizer.safetensors",
                           "model.safetensors", "config.yaml", "metrics.csv"}) {
    INFO(file);
    CHECK(std::filesystem::exists(run + "/" + file));
  }
  // Without dropout nothing is drawn behind the weights: what would be comes after their numbers.
  const json state = json::parse(read_file(run + "/step-24/state.json"));
  CHECK(state.at("state").at("trainer").at("generators").at(0).at(2) > 0);
  const auto rows = parse_lines(read_file(run + "/metrics.jsonl"));
  REQUIRE(rows.size() == 24 + 2);
  CHECK(rows[0].at("loss/step") == steps[0].at("loss"));
  CHECK(rows[25].at("loss/validation") == epochs[1].at("val_loss"));
  CHECK(rows[25].at("epoch") == 2);
  CHECK_THAT(read_file(run + "/report.html"), Contains("bytes_per_second"));
  CHECK(run_weft("report " + run).code == 0);

  const std::string generate = "generate " + run + " --prompt 'the ' --bytes 150 ";
  const Outcome text = run_weft(generate);
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(text.out.size() == 4 + 150 + 1);
  CHECK(text.out.starts_with("the "));
  CHECK(run_weft(generate).out == text.out);
  CHECK(run_weft(generate + "--seed 1").out != text.out);
  const auto line = parse_lines(run_weft(generate + "--temperature 0 --json").out);
  REQUIRE(line.size() == 1);
  CHECK(line[0].at("prompt") == "the ");
  check_error(run_weft("generate " + run + " --prompt ''"), 2, "--prompt: is empty");
  check_error(run_weft("generate " + run + " --top-p 0"), 1, "top_p must lie in (0, 1]");
  check_error(run_weft("generate " + scratch("nowhere")), 1, "no such directory");
}

TEST_CASE("eval measures a language model as its run did, on its text and on another") {
  const auto events = run_train("measured", kQuick + "--limit-batches 6 --batch-size 8");
  const std::string run = scratch("measured"), eval = "eval --json --checkpoint " + run;
  const auto measured = [](const std::string& arguments) {
    const Outcome outcome = run_weft(arguments);
    INFO(arguments << "\n" << outcome.err);
    REQUIRE(outcome.code == 0);
    return parse_lines(outcome.out).back();
  };
  const json own = measured(eval + " --limit-batches 6");
  CHECK(own.at("data") == "grammar");
  CHECK(own.at("split") == "test");
  CHECK(own.at("bytes") == 6 * 8 * 32);  // half of each window
  const double loss = own.at("loss");
  CHECK(loss == Approx(events.back().at("test_loss").get<double>()).epsilon(1e-12));
  CHECK(own.at("perplexity") == Approx(std::exp(loss)));
  CHECK(own.at("bits_per_byte") == Approx(loss / std::log(2)));
  CHECK(own.at("entropy") == events.back().at("entropy"));
  for (const char* how : {" --devices 2", " --threads 1", " --batch-size 8"}) {
    INFO(how);
    CHECK(measured(eval + " --limit-batches 6" + how).at("loss").get<double>() ==
          Approx(loss).epsilon(1e-12));
  }
  // The run's own words count what the limit has left.
  for (const char* how : {"--limit-batches 6", "--limit-batches 3 --devices 2"}) {
    INFO(how);
    const Outcome told = run_weft("train --recipe gpt-quick --epochs 1 --batch-size 8 " +
                                  std::string(how) + " --output " + fresh_scratch("told"));
    CHECK(told.code == 0);
    CHECK_THAT(told.out, Contains(" on 1536 bytes never seen before"));
  }
  // Of another text all, and the same by the file of weights alone.
  const std::string file = file_of("another.txt", sentences(200));
  const json other = measured(eval + " --data " + file);
  CHECK(other.at("split") == "all");
  CHECK(other.at("bytes") > std::filesystem::file_size(file) - 100);
  CHECK(other.at("entropy").is_null());
  const json weights_alone =
      measured("eval --json --data " + file + " --batch-size 8 --weights " + weights("measured"));
  CHECK(weights_alone.at("loss") == other.at("loss"));
  CHECK_THAT(run_weft("eval --checkpoint " + run).out,
             Contains(" nats a byte, perplexity ") && Contains(" bits a byte; the text's entropy"));
  check_error(run_weft("eval --checkpoint " + run + " --data builtin"), 1,
              "unknown text 'builtin': expected grammar, text:FILE or FILE.txt");
  check_error(run_weft("eval --checkpoint " + run + " --max-memory cpu=1GB"), 2,
              "--max-memory spreads a model of images");
  const Outcome predict = run_weft("predict --checkpoint " + run + " x.png");
  check_error(predict, 1, run + "/step-12: a run on text (grammar)");
  CHECK_THAT(predict.err,
             Contains("\"weft eval --checkpoint " + run + "/step-12 --data FILE.txt\"") &&
                 Contains("\"weft generate " + run + "/step-12\""));
}

TEST_CASE("Activations of a language model computed twice give the same bits") {
  const std::string settings =
      kQuick + "--limit-batches 4 --batch-size 4 " +
      GENERATE(as<std::string>(), "", "--precision bf16", "--devices 2 --strategy fsdp",
               "--devices 2 --strategy dp", "--devices 2 --strategy pipeline",
               "--devices 2 --strategy tp --sequence-parallel");
  INFO(settings);
  run_train("text_kept", settings);
  run_train("text_recomputed", settings + " --checkpoint-activations");
  CHECK(diff_weights("text_kept", "text_recomputed") == 0);
  const auto memory = [](const std::string& run) {
    return parse_lines(read_file(scratch(run) + "/metrics.jsonl"))[1].at("memory_bytes");
  };
  CHECK(memory("text_recomputed") < memory("text_kept"));
}

TEST_CASE("Text has the windows, and an epoch the steps, that it has on one device") {
  // Five batches of 8, not six.
  const std::string settings = "--recipe gpt-quick --epochs 2 --optimizer sgd --lr 0.1 --data " +
                               file_of("windows.txt", sentences(170)) + " ";
  const auto alone = run_train("windows_of_one", settings + "--batch-size 16");
  const auto both =
      run_train("windows_of_two", settings + "--batch-size 8 --devices 2 --strategy ddp");
  CHECK(both.back().at("step") == alone.back().at("step"));
  CHECK(distance("windows_of_one", "windows_of_two") < 1e-5);
}

TEST_CASE("A language model's sharded states go on elsewhere, and are read") {
  const std::string settings =
      kQuick + "--limit-batches 4 --optimizer sgd --lr 0.1 --global-batch-size 8 ";
  run_train("text_full", settings);
  run_train("text_sharded", settings + "--devices 2 --strategy fsdp --state-dict-type sharded");
  CHECK(distance("text_full", "text_sharded") < 1e-5);
  const std::string run = scratch("text_sharded");
  CHECK(std::filesystem::exists(run + "/step-8/shard-1-of-2-v0.safetensors"));
  for (const char* elsewhere : {"--devices 2 --strategy ddp", "--devices 1 --strategy single"}) {
    INFO(elsewhere);
    std::filesystem::remove(weights("text_sharded"));
    const Outcome outcome = run_weft("train --json --resume " + run + "/step-4 " + elsewhere);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(distance("text_full", "text_sharded") < 1e-5);
  }
  CHECK(run_weft("generate " + run).code == 0);
  CHECK(run_weft("eval --limit-batches 1 --checkpoint " + run).code == 0);
}

TEST_CASE("A language model under tp goes on elsewhere, and one elsewhere under tp") {
  const std::string settings =
      kQuick + "--limit-batches 4 --optimizer sgd --lr 0.1 --global-batch-size 8 ";
  const std::string cut = "--devices 2 --strategy tp", alone = "--devices 1 --strategy single";
  run_train("text_alone", settings);
  for (const std::string form : {"full", "sharded"}) {
    for (const auto& [first, then] : {std::pair(cut, alone), {"--devices 1", cut}}) {
      if (form == "sharded" && first != cut) continue;
      INFO(form << ": " << first << ", then " << then);
      run_train("text_cut", settings + first + " --state-dict-type " + form);
      CHECK(distance("text_alone", "text_cut") < 1e-5);
      std::filesystem::remove(weights("text_cut"));
      const Outcome outcome =
          run_weft("train --json --resume " + scratch("text_cut") + "/step-4 " + then);
      INFO(outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK(distance("text_alone", "text_cut") < 1e-5);
    }
  }
}

namespace {

/// A directory as Hugging Face's of a GPT-2 of one layer and 16 tokens of context, with its
/// embedding of so many tokens.
std::string make_gpt2(const std::string& name, int64_t vocabulary, weft::Tensor& embedding) {
  using weft::Tensor;
  constexpr int64_t kWidth = 8, kHidden = 32, kContext = 16;
  uint64_t stream = 0;
  weft::NamedTensors state;
  const auto add = [&](const std::string& key, const weft::Shape& shape) {
    Tensor tensor = Tensor::empty(shape);
    weft::Philox random(7, ++stream);
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      tensor.data<float>()[i] = (static_cast<float>(random.below(2001)) - 1000) * 1e-4f;
    }
    state.emplace_back("transformer." + key, tensor);
    return tensor;
  };
  embedding = add("wte.weight", {vocabulary, kWidth});
  add("wpe.weight", {kContext, kWidth});
  for (const char* norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) {
    add(std::string(norm) + ".weight", {kWidth});
    add(std::string(norm) + ".bias", {kWidth});
  }
  for (const auto& [key, in, out] : {std::tuple("attn.c_attn", kWidth, 3 * kWidth),
                                     {"attn.c_proj", kWidth, kWidth},
                                     {"mlp.c_fc", kWidth, kHidden},
                                     {"mlp.c_proj", kHidden, kWidth}}) {
    add(fmt::format("h.0.{}.weight", key), {in, out});
    add(fmt::format("h.0.{}.bias", key), {out});
  }
  const std::string directory = fresh_scratch(name);
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/config.json")
      << R"({"model_type": "gpt2", "n_head": 2, "embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0})";
  weft::io::write_safetensors(directory + "/model.safetensors", state);
  return directory;
}

}  // namespace

TEST_CASE("A language model is fine-tuned from the weights of a run, or of a GPT-2") {
  // Steps that change nothing show what training starts from.
  const std::string still =
      "--epochs 1 --limit-batches 1 --lr 1e-30 --weight-decay 0 --batch-size 2 ";
  run_train("text_base", kQuick + "--limit-batches 2 --seed 3");
  const auto events =
      run_train("text_tuned", "--recipe gpt-quick " + still + "--weights " + weights("text_base"));
  CHECK(events[0].at("event") == "weights");
  CHECK(diff_weights("text_base", "text_tuned") == 0);

  weft::Tensor embedding;
  const std::string gpt2 = make_gpt2("gpt2", 50257, embedding);
  const std::string file = file_of("tuning.txt", sentences(200)), model = "--model gpt2 ";
  const auto tuned =
      run_train("gpt2_tuned", "--data " + file + " " + model + still + "--weights " + gpt2);
  CHECK(tuned[0].at("notes") == json({"of 50257 tokens those of the 256 bytes are kept"}));
  const json state = json::parse(read_file(scratch("gpt2_tuned") + "/step-1/state.json"));
  CHECK(state.at("state").at("gpt2").at("dropout") == 0);  // config.json's
  const auto read = weft::io::read_safetensors(weights("gpt2_tuned")).tensors;
  const auto rows = std::ranges::find(read, "wte.weight", &weft::NamedTensors::value_type::first);
  REQUIRE(rows != read.end());
  REQUIRE(rows->second.size(0) == 256);
  // As in the vocab.json of GPT-2: "A" is 32, a line's end 198, a space 220.
  for (const auto& [byte, token] :
       {std::pair(65, 32), {10, 198}, {32, 220}, {0, 188}, {255, 187}}) {
    for (int64_t i = 0; i < embedding.size(1); ++i) {
      CHECK(rows->second.data<float>()[byte * embedding.size(1) + i] ==
            embedding.data<float>()[token * embedding.size(1) + i]);
    }
  }
  // It learns, goes on without the file, and is written with and measured.
  const auto learned = run_train("gpt2_learned", "--data " + file + " " + model +
                                                     "--epochs 2 --limit-batches 20 --batch-size 8 "
                                                     "--lr 1e-2 --weights " +
                                                     gpt2);
  CHECK(learned.back().at("val_loss") < events_of(learned, "epoch")[0].at("val_loss"));
  CHECK(learned.back().at("val_loss") < tuned.back().at("val_loss"));
  std::filesystem::remove_all(gpt2);
  std::filesystem::rename(weights("gpt2_learned"), scratch("learned.safetensors"));
  const std::string run = scratch("gpt2_learned");
  CHECK(run_weft("train --json --resume " + run + "/step-20").code == 0);
  CHECK(run_weft("diff " + weights("gpt2_learned") + " " + scratch("learned.safetensors")).code ==
        0);
  CHECK(run_weft("generate " + run + " --bytes 40").code == 0);
  CHECK(run_weft("eval --checkpoint " + run).code == 0);
  // Its files of weights say what shapes do not: that there are two heads.
  const std::string consolidated = scratch("consolidated.safetensors");
  CHECK(run_weft("consolidate " + run + " " + consolidated).code == 0);
  const std::string other = file_of("other.txt", sentences(100));
  const auto loss_of = [&](const std::string& source) {
    const Outcome outcome = run_weft("eval --json --batch-size 8 --data " + other + " " + source);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return parse_lines(outcome.out).back().at("loss").get<double>();
  };
  const double loss = loss_of("--checkpoint " + run);
  for (const std::string& path : {weights("gpt2_learned"), consolidated}) {
    CHECK(loss_of("--weights " + path) == Approx(loss).epsilon(1e-12));
  }

  const auto fails = [&](const std::string& arguments, int code, const std::string& message) {
    INFO(arguments);
    check_error(run_weft("train --output " + fresh_scratch("refused") + " --data " + file + " " +
                         arguments),
                code, message);
  };
  const std::string few = make_gpt2("gpt2_few", 300, embedding);
  fails(model + "--weights " + few, 1, "a GPT-2 of 300 tokens; expected 256, one of each byte");
  fails("--weights " + few, 1,
        "the weights of a GPT-2, which is model gpt2; expected those of model gpt_mini");
  fails(model + "--weights " + weights("text_base"), 1, "the keys are not those of a GPT-2");
  fails("--model gpt --weights " + weights("text_base"), 1, "expected");
  fails(model, 2, "model: gpt2 is the model that its weights describe; give --weights FILE");
  fails("--weights nowhere.safetensors", 1, "nowhere.safetensors");
}

TEST_CASE("A run on text that is stopped and resumed has the bits of one that is not") {
  const std::string settings =
      GENERATE(as<std::string>(), "--accumulate 2 --save-every 3",
               "--precision fp16 --initial-loss-scale 1e12 --loss-scale-window 7 --watch=5");
  const std::string arguments = kQuick + "--limit-batches 60 --batch-size 2 " + settings;
  INFO(arguments);
  run_train("text_whole", arguments);
  const std::string a = scratch("text_whole"), b = fresh_scratch("text_stopped");
  {
    BackgroundWeft weft("train --json --output " + b + " " + arguments);
    for (int i = 0; i < 3; ++i) REQUIRE(!weft.line().empty());
    weft.send(SIGINT);
    const Outcome outcome = weft.finish();
    CHECK(outcome.code == 130);
    CHECK_THAT(outcome.err, Contains("continue with: ./weft train --resume " + b + "\n"));
    CHECK(parse_lines(outcome.out).back().at("event") == "interrupted");
    CHECK(!std::filesystem::exists(weights("text_stopped")));
  }
  const Outcome end = run_weft("train --json --resume " + b);
  INFO(end.err);
  REQUIRE(end.code == 0);
  const std::string last = parse_lines(end.out).back().at("checkpoint");
  const std::string step = last.substr(last.rfind('/'));
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    CHECK(read_file(a + step + file) == read_file(b + step + file));
  }
  CHECK(diff_weights("text_whole", "text_stopped") == 0);
  CHECK(parse_lines(read_file(a + "/metrics.jsonl")).size() ==
        parse_lines(read_file(b + "/metrics.jsonl")).size());
  CHECK(run_weft("train --json --resume " + b).code == 0);  // it says its end again
}

TEST_CASE("Ranks train a language model together as one does") {
  const std::string settings = kQuick + "--limit-batches 4 --optimizer sgd --lr 0.1 ";
  const auto one = run_train("text_one", settings + "--global-batch-size 8");
  for (const std::string strategy :
       {"ddp", "fsdp", "tp", "tp --sequence-parallel --parallel-head", "fsdp+tp --parallel-head"}) {
    INFO(strategy);
    const auto two = run_train(
        "text_two", settings + "--global-batch-size 8 --devices 2 --strategy " + strategy);
    CHECK(two.back().at("test_loss") == Approx(one.back().at("test_loss").get<double>()));
    CHECK(distance("text_one", "text_two") < 1e-5);
  }
}

TEST_CASE("A file of text is trained on without naming a recipe") {
  const std::string file = file_of("numbers.txt", sentences(1000));
  const std::string run = fresh_scratch("numbers");
  const Outcome outcome =
      run_weft("train --data " + file + " --epochs 1 --limit-batches 3 --output " + run);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("gpt-quick: 1 epoch of 3 steps") && Contains("test loss ") &&
                              Contains("./weft generate " + run) && !Contains("entropy"));
}

TEST_CASE("What does not go together with text is said by name") {
  const auto check_train_error = [](const std::string& arguments, int code,
                                    const std::string& message) {
    INFO(arguments);
    const std::string output = fresh_scratch("refused");
    check_error(run_weft("train --output " + output + " " + arguments), code, message);
    CHECK(!std::filesystem::exists(output));
  };
  check_train_error("--data grammar --model cct", 2,
                    "model: \"cct\" is not one of gpt, gpt_mini, gpt2");
  check_train_error("--recipe builtin-quick --model gpt", 2,
                    "model: gpt learns text, but data 'builtin' are images");
  check_train_error("--data grammar --mixup 0.2", 2, "mixup: a setting of images");
  check_train_error("--recipe builtin-quick --model gpt --data grammar", 2, "--recipe gpt-quick");
  // Where the recipe is that of text it is no advice to start from it.
  const Outcome flipped = run_weft("train --recipe gpt-quick --flip");
  check_error(flipped, 2, "flip: a setting of images, but data 'grammar' is text; leave it out");
  CHECK_THAT(flipped.err, !Contains("--recipe"));
  check_train_error("--data grammer", 2,
                    "or of text grammar, text:FILE or FILE.txt; did you mean grammar?");
  check_train_error("--data nothing.txt", 1, "nothing.txt");
  check_train_error("--data text:", 1, "expected a file after the colon");
  const std::string uncut = fresh_scratch("uncut");
  const Outcome ranks = run_weft("train --devices 4 --strategy tp --limit-batches 1 --output " +
                                 uncut + " " + kQuick);
  check_error(ranks, 2,
              "4 ranks do not divide 4 heads, which share 2 of keys and values, of "
              "weft::models::Gpt");
  CHECK(!std::filesystem::exists(uncut));
  const std::string few = file_of("few.txt", sentences(10));
  check_train_error("--data " + few, 1, "bytes are too few; expected 2600 or more");
  const Outcome diverged = run_weft("train --json --limit-batches 12 --lr 1e30 --optimizer sgd " +
                                    kQuick + "--output " + fresh_scratch("diverged"));
  CHECK(diverged.code == 1);
  CHECK_THAT(diverged.err, Contains("weft: error: training diverged at step "));
}
