// weft convert IN OUT: weights of any kind that is read, as safetensors; under other names, in
// another dtype.
#include <fmt/ranges.h>

#include "autograd/ops.h"
#include "cli/command.h"
#include "train/pretrained/gpt2.h"
#include "train/pretrained/pretrained.h"

namespace weft::cli {
namespace {

struct Arguments {
  std::string in, out, names, dtype;
};

int run_convert(const Arguments& a) {
  std::optional<train::VitNames> names;
  std::optional<DType> dtype;
  as_usage([&] {
    if (!a.names.empty()) names = train::parse_vit_names(a.names);
    if (!a.dtype.empty()) dtype = parse_dtype(a.dtype);
    WEFT_CHECK(!dtype || is_floating(*dtype), "dtype: {} is not a floating one", a.dtype);
    WEFT_CHECK(std::filesystem::path(a.out).extension() == ".safetensors",
               "{}: only safetensors files are written; PyTorch reads them with "
               "safetensors.torch.load_file",
               a.out);
  });
  const train::Pretrained in = train::read_pretrained(a.in);
  const bool is_gpt2 = train::recognise_gpt2(in.state);
  WEFT_CHECK(in.names || !names || is_gpt2,
             "{}: the keys are not those of a vision transformer of torchvision, timm or Hugging "
             "Face, or of a GPT-2; without --names they stay as they are",
             a.in);
  WEFT_CHECK(!is_gpt2 || !names || names == train::VitNames::kHuggingFace,
             "{}: a GPT-2 has no names of {}, but of huggingface", a.in, a.names);
  NamedTensors tensors = !names    ? train::without_wrapper_prefixes(in.file.tensors)
                         : is_gpt2 ? train::from_gpt2(in.state)
                                   : train::from_torchvision(in.state, *names);
  if (dtype) {
    const NoGrad guard;
    for (auto& [name, tensor] : tensors) {
      if (is_floating(tensor.dtype())) tensor = ops::cast(tensor, *dtype);
    }
  }
  io::Metadata metadata = in.file.metadata;
  for (const auto& [key, value] : train::source_metadata(in)) metadata[key] = value;
  metadata["format"] = "pt";  // Hugging Face's readers want to know
  const io::FileSummary written = io::write_safetensors(a.out, tensors, metadata);

  fmt::print("read    {}: {}, {} tensors{}\n", a.in, train::describe_format(in.file),
             in.file.tensors.size(),
             in.names
                 ? fmt::format(", a vision transformer under {}'s names", train::name(*in.names))
             : is_gpt2 ? ", a GPT-2"
                       : "");
  if (names && !in.dropped.empty()) {
    fmt::print("without {}\n", fmt::join(in.dropped, ", "));
  }
  if (!in.guess.empty()) fmt::print("note    {}\n", in.guess);
  fmt::print("wrote   {}: {} tensors, {} bytes\n", a.out, tensors.size(), written.bytes);
  return 0;
}

}  // namespace

void add_convert(Command& app, Action& action) {
  const auto [command, a] =
      add_command<Arguments>(app, action, run_convert, "convert",
                             "Write weights of torch.save or safetensors as "
                             "safetensors, under other names or in another dtype",
                             kFileCommands);
  command.option(
      "IN", a.in,
      "The weights to read: a .safetensors, .pth, .pt or .bin file, the .index.json of several, or "
      "a directory that holds model.safetensors or pytorch_model.bin, or the index of one",
      {.required = true});
  command.option("OUT", a.out, "The .safetensors file to write", {.required = true});
  command.option("--names", a.names,
                 "Names for a vision transformer's parameters: torchvision, timm or huggingface; "
                 "for a GPT-2's: huggingface",
                 {.takes = "WHOSE", .usual = "as they are"});
  command.option("--dtype", a.dtype,
                 "Format for the floating-point tensors: f64, f32, f16, bf16, ...",
                 {.takes = "DTYPE", .usual = "as they are"});
}

}  // namespace weft::cli
