// Others' weights in the program itself: convert, inspect, predict, eval, train, bench.
#include "io/safetensors.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "tests/program/train_runs.h"

using namespace weft;
using namespace weft::cli;
using Catch::Matchers::Contains;

namespace {

const std::string kData = "io/testdata/";

std::map<std::string, Tensor> tensors_of(const std::string& path) {
  const auto tensors = io::read_safetensors(path).tensors;
  return {tensors.begin(), tensors.end()};
}

std::string convert(const std::string& in, const std::string& name,
                    const std::string& options = "") {
  const std::string out = scratch(name);
  const Outcome outcome = run_weft("convert " + in + " " + out + " " + options);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return out;
}

int diff(const std::string& a, const std::string& b) {
  return run_weft("diff " + a + " " + b).code;
}

/// The one object that a command with --json prints.
json object_of(const Outcome& outcome) {
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return json::parse(outcome.out);
}

}  // namespace

TEST_CASE("convert goes through every set of names and comes back bit for bit") {
  const std::string ours = convert(kData + "torchvision.pth", "ours.safetensors");
  const std::string timm = convert(ours, "timm.safetensors", "--names timm");
  const std::string face = convert(timm, "face.safetensors", "--names huggingface");
  const std::string back = convert(face, "back.safetensors", "--names torchvision");
  CHECK(diff(ours, back) == 0);
  CHECK(tensors_of(timm).count("blocks.1.attn.qkv.weight") == 1);
  CHECK(tensors_of(face).count("vit.encoder.layer.1.attention.attention.key.bias") == 1);
  // Of a wrapped state dict with older names: the same model.
  CHECK(diff(ours, convert(kData + "wrapped.pth", "w.safetensors", "--names torchvision")) == 0);
  CHECK(tensors_of(convert(kData + "wrapped.pth", "v.safetensors"))
            .count("encoder.layers.encoder_layer_0.mlp.linear_1.weight") == 1);
}

TEST_CASE("convert writes a GPT-2 under transformers' names") {
  const std::string folder = "train/pretrained/testdata/gpt2/";
  const std::string theirs = convert(folder + "model.safetensors", "theirs.safetensors");
  // The first published file's names differ, and it has causal masks.
  const std::string back = convert(folder + "hub.bin", "gpt2.safetensors", "--names huggingface");
  CHECK(diff(theirs, back) == 0);
  CHECK(tensors_of(back).contains("transformer.h.1.attn.c_attn.weight"));
  check_error(run_weft("convert " + back + " " + scratch("never.safetensors") + " --names timm"), 1,
              "a GPT-2 has no names of timm, but of huggingface");
}

TEST_CASE("convert --dtype rounds the floating tensors and leaves the others") {
  const auto before = tensors_of(convert(kData + "dtypes.pth", "dtypes.safetensors"));
  const auto after = tensors_of(convert(kData + "dtypes.pth", "half.safetensors", "--dtype bf16"));
  CHECK(before.at("f64").dtype() == DType::f64);
  CHECK(after.at("f64").dtype() == DType::bf16);
  CHECK(after.at("i64").dtype() == DType::i64);
  CHECK(after.at("bool").dtype() == DType::boolean);
  CHECK(after.at("bf16").to_vector() == before.at("bf16").to_vector());
  CHECK(after.at("f32").to_vector() == before.at("bf16").to_vector());  // PyTorch's own rounding
}

TEST_CASE("convert says what it read and wrote") {
  const Outcome outcome = run_weft("convert " + kData + "wrapped.pth " + scratch("o.safetensors"));
  CHECK_THAT(outcome.out, Contains("torch.save, under the key \"state_dict\" (not read: epoch "
                                   "optimizer), 32 tensors, a vision transformer under "
                                   "torchvision's names"));
  CHECK_THAT(run_weft("convert " + kData + "huggingface_in_memory.pth " + scratch("o.safetensors") +
                      " --names timm")
                 .out,
             Contains("without pooler.dense.weight, pooler.dense.bias"));
}

TEST_CASE("convert's mistakes are one line, and leave no file") {
  const std::string out = scratch("never.safetensors"), in = kData + "torchvision.pth ";
  check_error(run_weft("convert " + in + out + " --names keras"), 2,
              "names: \"keras\" is not one of torchvision, timm, huggingface");
  check_error(run_weft("convert " + in + out + " --dtype i32"), 2, "i32 is not a floating one");
  check_error(run_weft("convert " + in + out + " --dtype half"), 2, "unknown dtype \"half\"");
  check_error(run_weft("convert " + in + "out.pth"), 2, "only safetensors files are written");
  check_error(run_weft("convert " + kData + "legacy.pth " + out), 1,
              "torch.save(torch.load(OLD), NEW)");
  check_error(run_weft("convert " + kData + "dtypes.pth " + out + " --names timm"), 1,
              "the keys are not those of a vision transformer");
  check_error(run_weft("convert /nonexistent.pth " + out), 1, "cannot read /nonexistent.pth");
  CHECK(!std::filesystem::exists(out));
}

TEST_CASE("inspect reads every format") {
  const json pth = object_of(run_weft("inspect --json " + kData + "dtypes.pth"));
  CHECK(pth.at("format") == "torch.save");
  CHECK(pth.at("names") == "");
  CHECK(pth.at("tensors").size() == 19);
  for (const json& tensor : pth.at("tensors")) {
    if (tensor.at("name") != "column") continue;  // a strided view
    const auto column = tensors_of(kData + "expected.safetensors").at("dtypes.column");
    double sum = 0;
    for (const double x : column.to_vector()) sum += x;
    CHECK(tensor.at("mean").get<double>() == Approx(sum / 4));
  }
  const json timm = object_of(run_weft("inspect --json " + kData + "timm.safetensors"));
  CHECK(timm.at("format") == "safetensors");
  CHECK(timm.at("names") == "timm");
  CHECK_THAT(run_weft("inspect " + kData + "wrapped.pth").out,
             Contains("torch.save, under the key \"state_dict\" (not read: epoch optimizer); a "
                      "vision transformer under torchvision's names"));
  check_error(run_weft("inspect " + kData + "module.pth"), 1, "\"torch.nn.modules.linear.Linear\"");
}

TEST_CASE("predict and eval take weights instead of a checkpoint") {
  const std::string folder = make_colour_folders("colours", 2, 12, 12);
  const std::string image = folder + "/red/000.png";
  const json guess =
      object_of(run_weft("predict --json --top 5 --weights " + kData + "huggingface " + image));
  REQUIRE(guess.at("top").size() == 5);
  double sum = 0;
  for (const json& row : guess.at("top")) {
    sum += row.at("probability").get<double>();
    CHECK_THAT(row.at("class").get<std::string>(), Contains("thing "));
  }
  CHECK(sum == Approx(1));
  // The same weights under other names give the same probabilities to the last digit.
  const std::string ours = convert(kData + "huggingface", "f.safetensors", "--names torchvision");
  const json again = object_of(run_weft("predict --json --top 5 --weights " + ours + " " + image));
  for (int i = 0; i < 5; ++i) {
    CHECK(again.at("top")[i].at("probability") == guess.at("top")[i].at("probability"));
  }
  CHECK_THAT(again.at("class").get<std::string>(), Contains("class "));

  // So do weights that stay in the file until their layer runs.
  const std::string map = scratch("map.json");
  std::ofstream(map) << R"({"": "disk", "encoder.ln": "cpu", "heads": "cpu"})";
  for (const std::string& places :
       {std::string("auto --max-memory cpu=1MB"), map, std::string("disk"), std::string("cpu")}) {
    const std::string arguments = " --device-map " + places + " --weights ";
    const Outcome spread = run_weft("predict --json --top 5" + arguments + ours + " " + image);
    CHECK_THAT(spread.err, Contains(" layers on "));
    const json same = object_of(spread);
    for (int i = 0; i < 5; ++i) {
      CHECK(same.at("top")[i].at("probability") == guess.at("top")[i].at("probability"));
    }
  }
  const auto fails = [&](const std::string& options, int code, const std::string& message) {
    check_error(run_weft("predict --weights " + ours + " " + options + " " + image), code, message);
  };
  fails("--device-map auto --max-memory cpu=1KB", 1,
        "cpu may take 1.0 KB of memory, but the layer");
  // Without budgets they go by the memory that there is, of which there is enough here.
  const Outcome alone =
      run_weft("predict --json --device-map auto --weights " + ours + " " + image);
  CHECK(alone.code == 0);
  CHECK_THAT(alone.err, Contains(" layers on ") && !Contains("disk"));
  fails("--max-memory cpu=1MB", 2, "--max-memory needs --device-map auto");
  fails("--device-map cpu --max-memory cpu=1MB", 2,
        "--max-memory is for --device-map auto, not for cpu");
  fails(
      "--device-map aut --max-memory cpu=1MB", 1,
      "there is no file \"aut\"; expected auto, cpu, disk, cuda:N, a GPU's number or a JSON file; "
      "did you mean \"auto\"?");
  fails("--device-map auto --max-memory cpu", 2, "--max-memory: \"cpu\": expected DEVICE=SIZE");
  fails("--device-map " + map + " --device cpu", 2, "--device excludes --device-map");
  fails("--device-map none.json", 1, "none.json");
  check_error(run_weft("eval --devices 2 --device-map " + map + " --data folder:" + folder +
                       " --weights " + ours),
              2, "--devices 2 excludes --device-map");
  check_error(
      run_weft("predict --device-map " + map + " --weights " + kData + "huggingface " + image), 1,
      "in_proj_weight\" is to stay on disk, but its file has it in another form");

  check_error(run_weft("eval --data folder:" + folder + " --weights " + ours), 1,
              "a head of 5 classes, the data has 3");
  check_error(run_weft("eval --weights " + ours), 2, "--weights needs --data");
  check_error(run_weft("predict --weights " + ours + " --checkpoint x " + image), 2,
              "--checkpoint excludes --weights");
  check_error(run_weft("predict " + image), 2, "--checkpoint is required, or --weights");
  check_error(run_weft("predict --weights " + kData + "torchvision.pth " + image), 1,
              "the number of attention heads is not known");
  check_error(run_weft("predict --weights " + kData + "dtypes.pth " + image), 1,
              "the keys are not those of a vision transformer");
}

TEST_CASE("eval of weights measures what predict sees") {
  // Five classes for a head of five: the images' colours cannot help random weights.
  const std::string colours = make_colour_folders("eval_colours", 4, 12, 12);
  const std::string folder = fresh_scratch("eval_classes");
  std::string images;
  std::vector<int> labels;
  for (int label = 0; label < 5; ++label) {
    const std::string here = fmt::format("{}/{}", folder, label);
    std::filesystem::create_directories(here);
    for (const char* colour : {"red", "green", "blue"}) {
      const std::string image = fmt::format("{}/{}.png", here, colour);
      std::filesystem::copy_file(fmt::format("{}/{}/{:03}.png", colours, colour, label % 4), image);
      images += " " + image;
      labels.push_back(label);
    }
  }
  const std::string ours = convert(kData + "huggingface", "e.safetensors", "--names torchvision");
  const Outcome predicted = run_weft("predict --json --top 5 --weights " + ours + images);
  INFO(predicted.err);
  REQUIRE(predicted.code == 0);
  const std::vector<json> guesses = parse_lines(predicted.out);
  REQUIRE(guesses.size() == labels.size());
  double loss = 0, correct = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string right = fmt::format("class {}", labels[i]);
    correct += guesses[i].at("class") == right;
    for (const json& row : guesses[i].at("top")) {
      if (row.at("class") == right) loss -= std::log(row.at("probability").get<double>());
    }
  }
  const auto n = static_cast<double>(labels.size());
  const json score = object_of(
      run_weft("eval --json --batch-size 1 --data folder:" + folder + " --weights " + ours));
  CHECK(score.at("images") == labels.size());
  CHECK(score.at("split") == "all");
  CHECK(score.at("test_accuracy") == correct / n);
  // Image by image the same logits; a softmax and a log-softmax of them, each within some roundings
  // to f32.
  CHECK(std::abs(score.at("loss").get<double>() - loss / n) <= 16 * 0x1p-24 * (1 + loss / n));
}

namespace {

/// Weights of vit_b_16's shapes, but for its depth and positions: too large to keep, made here.
/// One layer's values serve all twelve.
std::string make_vit_b_16(const std::string& name, int64_t side) {
  NamedTensors state;
  uint64_t stream = 0;
  const auto add = [&](const std::string& key, const Shape& shape) {
    Tensor tensor = Tensor::empty(shape);
    Philox random(5, ++stream);
    float* data = tensor.data<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      data[i] = (static_cast<float>(random.below(2001)) - 1000) * 2e-5f;
    }
    state.emplace_back(key, tensor);
  };
  add("cls_token", {1, 1, 768});
  add("pos_embed", {1, 1 + side * side, 768});
  add("patch_embed.proj.weight", {768, 3, 16, 16});
  add("patch_embed.proj.bias", {768});
  const size_t first = state.size();
  add("norm1.weight", {768});
  add("norm1.bias", {768});
  add("attn.qkv.weight", {2304, 768});
  add("attn.qkv.bias", {2304});
  add("attn.proj.weight", {768, 768});
  add("attn.proj.bias", {768});
  add("norm2.weight", {768});
  add("norm2.bias", {768});
  add("mlp.fc1.weight", {3072, 768});
  add("mlp.fc1.bias", {3072});
  add("mlp.fc2.weight", {768, 3072});
  add("mlp.fc2.bias", {768});
  const NamedTensors layer(state.begin() + static_cast<ptrdiff_t>(first), state.end());
  state.resize(first);
  for (int i = 0; i < 12; ++i) {
    for (const auto& [key, tensor] : layer) {
      state.emplace_back(fmt::format("blocks.{}.{}", i, key), tensor);
    }
  }
  add("norm.weight", {768});
  add("norm.bias", {768});
  add("head.weight", {1000, 768});
  add("head.bias", {1000});
  const std::string path = scratch(name);
  io::write_safetensors(path, state);
  return path;
}

}  // namespace

TEST_CASE("fine-tuning starts from the weights, freezes what it is told, and resumes bit for bit") {
  const std::string folder = make_colour_folders("fine", 10, 32, 32);
  const std::string weights = make_vit_b_16("b16.safetensors", 2);  // of images of 32 pixels
  const std::string common = "--model vit_b_16 --data folder:" + folder +
                             " --batch-size 4 --limit-batches 2 --optimizer sgd --momentum 0 "
                             "--lr 0.01 --precision bf16 --weights " +
                             weights + " --freeze 'encoder.layers' conv_proj --layer-decay 0.5 ";
  const std::vector<json> events = run_train("fine_a", common + "--epochs 2");
  const std::vector<json> notes = events_of(events, "weights");
  REQUIRE(notes.size() == 1);
  REQUIRE(notes[0].at("notes").size() == 2);
  CHECK(notes[0].at("notes")[0] == "the head of 1000 classes is replaced by a fresh one of 3");
  CHECK_THAT(notes[0].at("notes")[1].get<std::string>(),
             Contains("nothing says how images were normalised"));
  const auto before = tensors_of(weights), after = tensors_of(cli::weights("fine_a"));
  const auto same = [&](const std::string& theirs, const std::string& ours) {
    const Tensor &a = before.at(theirs), &b = after.at(ours);
    REQUIRE(a.shape() == b.shape());
    return std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0;
  };
  CHECK(same("patch_embed.proj.weight", "conv_proj.weight"));
  CHECK(same("blocks.7.attn.qkv.weight",
             "encoder.layers.encoder_layer_7.self_attention.in_proj_weight"));
  CHECK_FALSE(same("norm.weight", "encoder.ln.weight"));
  CHECK_FALSE(same("pos_embed", "encoder.pos_embedding"));

  // A run stopped after its first epoch goes on as this one did.
  run_train("fine_b", common + "--epochs 2");
  std::filesystem::remove_all(scratch("fine_b") + "/step-4");
  std::ofstream(scratch("fine_b") + "/latest") << "step-2\n";
  const Outcome resumed = run_weft("train --json --resume " + scratch("fine_b"));
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(events_of(parse_lines(resumed.out), "weights").empty());
  CHECK(diff_weights("fine_a", "fine_b") == 0);

  // The checkpoint normalises as the source does, and predict finds that again.
  const std::string image = folder + "/red/000.png";
  CHECK(run_weft("predict --checkpoint " + scratch("fine_a") + " " + image).code == 0);
  const std::string one = scratch("fine.safetensors");
  CHECK(run_weft("consolidate " + scratch("fine_a") + " " + one).code == 0);
  for (const std::string& file : {cli::weights("fine_a"), one}) {
    const io::Metadata metadata = io::read_safetensors(file).metadata;
    CHECK(metadata.at("image_mean") == "[0.5,0.5,0.5]");
    CHECK(metadata.at("image_resize") == "0");
    CHECK(metadata.at("image_fit") == "\"shorter-side\"");
    CHECK(metadata.at("attention_heads") == "12");
  }

  const json bench = object_of(
      run_weft("bench step --json --model vit_b_16 --batch-size 1 --steps 1 --image-size 32 "
               "--classes 10 --weights " +
               weights));
  CHECK(bench.at("parameters").get<int64_t>() > 85'000'000);

  const std::string bad = "train --model vit_b_16 --data folder:" + folder + " --output " +
                          scratch("never") + " --weights " + weights;
  check_error(run_weft(bad + " --freeze nothing"), 1, "freeze: \"nothing\" names no parameter");
  check_error(run_weft(bad + " --layer-decay 0"), 2, "layer-decay: expected a number in (0, 1]");
  check_error(run_weft(bad + " --interpolation none"), 2, "interpolation: \"none\"");
  check_error(run_weft("train --model cct --data folder:" + folder + " --output " +
                       scratch("never") + " --weights " + weights),
              1, "for a model of another kind");
  CHECK(!std::filesystem::exists(scratch("never")));
  std::filesystem::remove_all(folder);
  for (const char* run : {"fine_a", "fine_b"}) std::filesystem::remove_all(scratch(run));
  std::filesystem::remove(weights);
}

TEST_CASE(
    "the reference's fine-tuning recipe needs its weights and takes them at either precision") {
  check_error(run_weft("train --recipe cvpr2023-finetune"), 2, "give --weights FILE");
  const std::string folder = make_colour_folders("reference", 6, 32, 32);
  const std::string weights = make_vit_b_16("reference.safetensors", 14);
  const std::string small = make_vit_b_16("small.safetensors", 7);  // of images of 112 pixels
  for (const std::string precision : {"fp32", "bf16"}) {
    const bool resized = precision == "bf16";
    const std::vector<json> events = run_train(
        "reference_" + precision,
        "--recipe cvpr2023-finetune --batch-size 2 --limit-batches 1 --epochs 1 --data folder:" +
            folder + " --precision " + precision + " --weights " +
            (resized ? small + " --interpolation timm" : weights));
    const json notes = events_of(events, "weights")[0].at("notes");
    CHECK(notes[0] == "the head of 1000 classes is replaced by a fresh one of 3");
    CHECK(notes.size() == (resized ? 2 : 1));
    if (resized) {
      CHECK(notes[1] == "position embeddings interpolated from 49 to 196 patches (timm's rule)");
    }
    const json state =
        json::parse(read_file(scratch("reference_" + precision) + "/step-1/state.json"));
    const json& config = state.at("state").at("config");
    CHECK(config.at("optimizer") == "adam");
    CHECK(config.at("lr") == 5e-5);
    CHECK(config.at("weight_decay") == 0);
    CHECK(config.at("clip_norm") == 0);
    CHECK(config.at("schedule") == "constant");
    CHECK(config.at("normalize") == false);
    CHECK(config.at("image_size") == 224);
    CHECK(config.at("seed") == 123);
    CHECK(config.at("precision") == precision);
    std::filesystem::remove_all(scratch("reference_" + precision));
  }
  std::filesystem::remove_all(folder);
  std::filesystem::remove(weights);
  std::filesystem::remove(small);
}
