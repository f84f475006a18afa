#include "io/safetensors_index.h"

#include <fmt/format.h>

#include <charconv>
#include <unordered_map>

#include "io/checked_json.h"
#include "io/quote.h"

namespace weft::io {
namespace {

using json = nlohmann::json;

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_weights(const std::string& name) {
  return name == kWhole || name == kIndex ||
         (name.starts_with("model-") && name.ends_with(".safetensors"));
}

}  // namespace

WeightIndex read_weight_index(const Path& path) {
  const std::string file = path.string();
  const json all = parse_foreign_json(read_text(path), path);
  WEFT_CHECK(all.is_object() && all.contains("weight_map") && all["weight_map"].is_object(),
             "{}: expected an object with a \"weight_map\" from tensors to files", file);
  WeightIndex index{.path = path, .files = {}};
  for (const auto& [name, value] : all["weight_map"].items()) {
    WEFT_CHECK(value.is_string(), "{}: tensor {} lies in {}, expected a file's name", file,
               quote(name), quote(value.dump()));
    const auto part = value.get<std::string>();
    WEFT_CHECK(!part.empty() && Path(part).filename() == part && part != "." && part != "..",
               "{}: tensor {} lies in {}, expected a file beside the index", file, quote(name),
               quote(part));
    index.files[part].push_back(name);
  }
  WEFT_CHECK(!index.files.empty(), "{}: the \"weight_map\" is empty", file);
  return index;
}

NamedTensors read_indexed(const WeightIndex& index,
                          const std::function<NamedTensors(const Path&)>& read) {
  NamedTensors all;
  for (const auto& [part, names] : index.files) {
    const Path path = index.path.parent_path() / part;
    std::unordered_map<std::string, Tensor> there;
    for (auto& [name, tensor] : read(path)) there.emplace(name, tensor);
    for (const std::string& name : names) {
      const auto found = there.find(name);
      WEFT_CHECK(found != there.end(), "{} lacks the tensor {}, which {} places there",
                 path.string(), quote(name), index.path.string());
      all.emplace_back(name, found->second);
    }
  }
  return all;
}

int64_t parse_bytes(const std::string& text) {
  static const std::unordered_map<std::string, double> units = {
      {"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30}, {"TIB", 0x1p40}};
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  std::string unit(rest, end);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto known = units.find(unit);
  const double bytes = known == units.end() ? 0 : number * known->second;
  WEFT_CHECK(error == std::errc() && bytes >= 1 && bytes < 0x1p62,
             "expected a size such as 100MB or 2GiB, got {}", quote(text));
  return static_cast<int64_t>(bytes);
}

std::vector<std::string> write_indexed(const Path& directory,
                                       const std::vector<PendingTensor>& tensors,
                                       int64_t most_bytes,
                                       const std::function<Tensor(const std::string& name)>& make,
                                       const Metadata& metadata) {
  std::vector<std::vector<const PendingTensor*>> parts(1);
  int64_t total = 0, in_part = 0;
  for (const PendingTensor& tensor : tensors) {
    const auto bytes = static_cast<int64_t>(nbytes(tensor.shape, tensor.dtype));
    if (!parts.back().empty() && in_part + bytes > most_bytes) {
      parts.emplace_back();
      in_part = 0;
    }
    parts.back().push_back(&tensor);
    in_part += bytes;
    total += bytes;
  }
  make_directories(directory);
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    WEFT_CHECK(!is_weights(name), "{} already holds {}; choose another directory",
               directory.string(), name);
  }
  std::vector<std::string> names;
  json map = json::object();
  for (size_t i = 0; i < parts.size(); ++i) {
    names.push_back(parts.size() == 1
                        ? kWhole
                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size()));
    NamedTensors made;
    for (const PendingTensor* tensor : parts[i]) {
      made.emplace_back(tensor->name, make(tensor->name));
      map[tensor->name] = names.back();
    }
    write_safetensors(directory / names.back(), made, metadata);
  }
  if (parts.size() > 1) {
    const json all = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    write_file_atomically(directory / kIndex,
                          [&](FileWriter& writer) { writer.write(all.dump(2) + "\n"); });
    names.emplace_back(kIndex);
  }
  return names;
}

}  // namespace weft::io
