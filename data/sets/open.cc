#include "data/sets/open.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "data/files.h"
#include "data/random.h"
#include "data/sets/open_text.h"
#include "data/sets/sets.h"
#include "io/nearest.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;

enum class Kind { kBuiltin, kCifar10, kFolder, kMnist };

struct Source {
  Kind kind;
  std::string directory;
};

// What the words of a spec say, before anything is looked up.
Source parse(const std::string& spec) {
  if (spec == "builtin") return {Kind::kBuiltin, ""};
  constexpr std::pair<const char*, Kind> kPrefixes[] = {
      {"cifar10:", Kind::kCifar10}, {"folder:", Kind::kFolder}, {"mnist:", Kind::kMnist}};
  for (const auto& [prefix, kind] : kPrefixes) {
    if (!spec.starts_with(prefix)) continue;
    const std::string directory = spec.substr(std::string(prefix).size());
    WEFT_CHECK(!directory.empty(), "data '{}': expected a directory after the colon", spec);
    return {kind, directory};
  }
  WEFT_CHECK(!is_text(spec),
             "data '{}' is text: expected images, builtin, cifar10:DIR, folder:DIR or mnist:DIR",
             spec);
  const std::string word = spec.substr(0, spec.find(':'));
  const std::string guess = io::nearest(word, {"builtin", "cifar10", "folder", "mnist", "grammar"});
  const bool has_directory = guess != "builtin" && guess != "grammar";
  WEFT_FAIL(
      "unknown data '{}': expected builtin, cifar10:DIR, folder:DIR or mnist:DIR, or of text "
      "grammar, text:FILE or FILE.txt{}",
      spec,
      guess.empty()   ? ""
      : has_directory ? fmt::format("; did you mean {}:DIR?", guess)
                      : fmt::format("; did you mean {}?", guess));
}

// The source that a spec stands for on this disk.
Source locate(const std::string& spec) {
  const Source source = parse(spec);
  if (source.kind == Kind::kBuiltin) return source;
  WEFT_CHECK(is_folder(source.directory), "data '{}': {} is not a directory", spec,
             source.directory);
  // CIFAR-10 is also passed on as images: one folder per class instead of the binary batches.
  if (source.kind == Kind::kCifar10 && !has_cifar10_batches(source.directory)) {
    for (const fs::path& entry : sorted_entries(source.directory)) {
      if (is_folder(entry)) return {Kind::kFolder, source.directory};
    }
  }
  return source;
}

// Which of DIR/train, DIR/val and DIR/test exist; none means that DIR holds class folders.
struct FolderSplits {
  explicit FolderSplits(const fs::path& directory)
      : train(existing(directory / "train")),
        validation(existing(directory / "val")),
        test(existing(directory / "test")) {}
  static std::string existing(const fs::path& path) { return is_folder(path) ? path.string() : ""; }
  bool none() const { return train.empty() && validation.empty() && test.empty(); }

  std::string train, validation, test;  // empty where absent
};

struct HoldOut {
  std::vector<int64_t> kept, held_out;  // ascending
};

/// Holds out a tenth of each class, rounded to the nearest image, and at least one of a class of
/// two or more. The choice depends on seed, class and the class's count.
HoldOut hold_out_tenth(const Dataset& dataset, uint64_t seed) {
  std::vector<std::vector<int64_t>> by_class(dataset.class_names().size());
  for (int64_t i = 0; i < dataset.size(); ++i) by_class.at(dataset.label(i)).push_back(i);
  HoldOut parts;
  for (size_t label = 0; label < by_class.size(); ++label) {
    std::vector<int64_t>& members = by_class[label];
    const auto count = static_cast<int64_t>(members.size());
    int64_t held = std::lround(0.1 * static_cast<double>(count));
    if (held == 0 && count >= 2) held = 1;
    Philox random = random_stream(seed, Purpose::kHoldOut, static_cast<int64_t>(label));
    for (int64_t i = 0; i < held; ++i) {
      std::swap(members[i], members[i + random.below(count - i)]);
    }
    parts.held_out.insert(parts.held_out.end(), members.begin(), members.begin() + held);
    parts.kept.insert(parts.kept.end(), members.begin() + held, members.end());
  }
  std::ranges::sort(parts.kept);
  std::ranges::sort(parts.held_out);
  return parts;
}

Splits open_folder(const std::string& directory, uint64_t seed) {
  const FolderSplits found(directory);
  WEFT_CHECK(found.none() || !found.train.empty(),
             "{}: has a folder val or test but no folder train", directory);
  const DatasetPtr all = open_image_folder(found.none() ? directory : found.train);
  const auto open_split = [&](const std::string& path) -> DatasetPtr {
    if (path.empty()) return nullptr;
    try {
      return relabel(open_image_folder(path), all->class_names());
    } catch (const Error& error) {
      WEFT_FAIL("{}: {}", path, error.what());
    }
  };
  Splits splits{all, open_split(found.validation), open_split(found.test)};
  if (!splits.validation) {
    HoldOut parts = hold_out_tenth(*all, seed);
    WEFT_CHECK(!parts.held_out.empty(),
               "{}: needs a class of at least two images, to hold some out for validation",
               directory);
    splits.train = subset(all, std::move(parts.kept));
    splits.validation = subset(all, std::move(parts.held_out));
  }
  return splits;
}

// A part of a source that is no folder.
DatasetPtr load(const Source& source, Part part) {
  if (source.kind == Kind::kBuiltin) return builtin_images(part);
  const auto load_part = source.kind == Kind::kCifar10 ? load_cifar10 : load_mnist;
  return load_part(source.directory, part);
}

}  // namespace

void check_data_spec(const std::string& spec) { parse(spec); }

Splits open_data(const std::string& spec, uint64_t seed) {
  const Source source = locate(spec);
  if (source.kind == Kind::kFolder) return open_folder(source.directory, seed);
  const DatasetPtr test = load(source, Part::kTest), all = load(source, Part::kTrain);
  if (source.kind == Kind::kBuiltin) return {all, load(source, Part::kValidation), test};
  const int64_t cut = all->size() - all->size() / (source.kind == Kind::kCifar10 ? 10 : 12);
  return {subset(all, 0, cut), subset(all, cut, all->size()), test};
}

std::set<std::string> left_out(const Splits& splits) {
  std::set<std::string> lines;
  for (const DatasetPtr& part : {splits.train, splits.validation, splits.test}) {
    if (part && !part->left_out().empty()) lines.insert(part->left_out());
  }
  return lines;
}

Evaluation open_evaluation(const std::string& spec) {
  const Source source = locate(spec);
  if (source.kind != Kind::kFolder) return {load(source, Part::kTest), "test"};
  const FolderSplits found(source.directory);
  for (const auto& [path, split] :
       {std::pair(found.test, "test"), {found.validation, "validation"}, {found.train, "train"}}) {
    if (!path.empty()) return {open_image_folder(path), split};
  }
  return {open_image_folder(source.directory), "all"};
}

}  // namespace weft::data
