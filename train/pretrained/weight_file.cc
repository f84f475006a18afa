#include <fmt/format.h>

#include <algorithm>

#include "io/pth_reader.h"
#include "io/quote.h"
#include "train/pretrained/pretrained.h"

namespace weft::train {
namespace {

/// The length of a header of at most 100 MB, then its brace.
bool looks_like_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() >= 9 && bytes[8] == std::byte{'{'} &&
         std::ranges::all_of(bytes.subspan(4, 4), [](std::byte b) { return b == std::byte{0}; });
}

io::Path file_in(const io::Path& directory) {
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    if (std::filesystem::exists(directory / name)) return directory / name;
    WEFT_CHECK(!std::filesystem::exists(directory / (std::string(name) + ".index.json")),
               "{}: the weights are spread over several files; give one of them",
               directory.string());
  }
  WEFT_FAIL("{}: the directory holds no model.safetensors and no pytorch_model.bin",
            directory.string());
}

}  // namespace

WeightFile read_weight_file(const io::Path& path) {
  WeightFile result;
  std::error_code ignored;
  result.path = std::filesystem::is_directory(path, ignored) ? file_in(path) : path;
  auto mapping = std::make_shared<io::MappedFile>(result.path);
  const std::span<std::byte> bytes = mapping->bytes();
  const std::string file = result.path.string();
  if (!looks_like_safetensors(bytes) && io::looks_like_pth(bytes)) {
    io::PthFile pth = io::read_pth(bytes, std::move(mapping), file);
    result.is_pth = true;
    result.tensors = std::move(pth.tensors);
    result.wrapper = std::move(pth.wrapper);
    result.others = std::move(pth.others);
  } else {
    io::SafeTensors safetensors = io::read_safetensors(bytes, std::move(mapping), file);
    result.tensors = std::move(safetensors.tensors);
    result.metadata = std::move(safetensors.metadata);
  }
  return result;
}

std::string describe_format(const WeightFile& file) {
  if (!file.is_pth) return "safetensors";
  std::string text = "torch.save";
  if (!file.wrapper.empty()) text += ", under the key " + io::quote(file.wrapper);
  std::vector<std::string> others;
  for (const std::string& name : file.others) others.push_back(io::printable(name));
  if (!file.others.empty()) text += fmt::format(" (not read: {})", fmt::join(others, " "));
  return text;
}

}  // namespace weft::train
