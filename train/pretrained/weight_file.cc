#include <fmt/ranges.h>

#include <algorithm>

#include "io/pth_reader.h"
#include "io/quote.h"
#include "io/safetensors_index.h"
#include "train/pretrained/pretrained.h"

namespace weft::train {
namespace {

/// The length of a header of at most 100 MB, then its brace.
bool looks_like_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() >= 9 && bytes[8] == std::byte{'{'} &&
         std::ranges::all_of(bytes.subspan(4, 4), [](std::byte b) { return b == std::byte{0}; });
}

constexpr const char* kIndexSuffix = ".index.json";

io::Path file_in(const io::Path& directory) {
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    if (std::filesystem::exists(directory / name)) return directory / name;
    const io::Path index = directory / (std::string(name) + kIndexSuffix);
    if (std::filesystem::exists(index)) return index;
  }
  WEFT_CHECK(!std::filesystem::exists(directory / "index.json"),
             "{}: a sharded state; weft consolidate makes a file of it", directory.string());
  WEFT_FAIL(
      "{}: the directory holds no model.safetensors and no pytorch_model.bin, nor an index of "
      "either",
      directory.string());
}

WeightFile read_one(const io::Path& path) {
  WeightFile result{.path = path};
  const auto mapping = std::make_shared<io::MappedFile>(path);
  const std::span<const std::byte> bytes = mapping->bytes();
  if (!looks_like_safetensors(bytes) && io::looks_like_pth(bytes)) {
    io::PthFile pth = io::read_pth(mapping);
    result.is_pth = true;
    result.tensors = std::move(pth.tensors);
    result.wrapper = std::move(pth.wrapper);
    result.others = std::move(pth.others);
  } else {
    io::SafeTensors safetensors = io::read_safetensors(mapping);
    result.tensors = std::move(safetensors.tensors);
    result.metadata = std::move(safetensors.metadata);
  }
  return result;
}

}  // namespace

WeightFile read_weight_file(const io::Path& path) {
  std::error_code ignored;
  const io::Path file = std::filesystem::is_directory(path, ignored) ? file_in(path) : path;
  if (!file.string().ends_with(kIndexSuffix)) return read_one(file);
  const io::WeightIndex index = io::read_weight_index(file);
  WeightFile result{.path = file, .files = index.files.size()};
  result.tensors = io::read_indexed(index, [&](const io::Path& part) {
    WeightFile one = read_one(part);
    result.is_pth = one.is_pth;
    if (result.metadata.empty()) result.metadata = std::move(one.metadata);
    return std::move(one.tensors);
  });
  return result;
}

std::string describe_format(const WeightFile& file) {
  std::string text = file.is_pth ? "torch.save" : "safetensors";
  if (file.files > 1) text += fmt::format(" in {} files", file.files);
  if (!file.wrapper.empty()) text += ", under the key " + io::quote(file.wrapper);
  std::vector<std::string> others;
  for (const std::string& name : file.others) others.push_back(io::printable(name));
  if (!file.others.empty()) text += fmt::format(" (not read: {})", fmt::join(others, " "));
  return text;
}

}  // namespace weft::train
