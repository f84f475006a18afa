#include "data/sets/open.h"

#include <catch2/catch.hpp>
#include <set>

#include "data/fixtures.h"
#include "tests/skip.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;

// `count` images in each class folder, told apart by their width.
void make_classes(const TemporaryFolder& folder, const std::string& prefix,
                  const std::vector<std::string>& classes, int count) {
  for (const std::string& name : classes) {
    for (int i = 0; i < count; ++i) {
      write_file(folder / (prefix + name + fmt::format("/{:03}.png", i)),
                 encode_png(formula_image(1, i + 1)));
    }
  }
}

std::vector<std::pair<int64_t, int>> contents(const Dataset& set) {
  std::vector<std::pair<int64_t, int>> result;
  for (int64_t i = 0; i < set.size(); ++i) {
    const Example example = set.example(i);
    result.emplace_back(example.label, example.image.width);
  }
  return result;
}

TEST_CASE("an unknown spec lists the known ones") {
  CHECK(error_of([] { open_data("imagenet", 0); }) ==
        "unknown data 'imagenet': expected builtin, cifar10:DIR, folder:DIR or mnist:DIR, or of "
        "text grammar, text:FILE or FILE.txt");
  CHECK(error_of([] { open_evaluation("builtin:x"); }) ==
        "unknown data 'builtin:x': expected builtin, cifar10:DIR, folder:DIR or mnist:DIR, or of "
        "text grammar, text:FILE or FILE.txt; did you mean builtin?");
  for (const std::string text : {"grammar", "text:letters", "letters.txt"}) {
    CHECK(error_of([&] { open_evaluation(text); }) ==
          "data '" + text +
              "' is text: expected images, builtin, cifar10:DIR, folder:DIR or "
              "mnist:DIR");
  }
  CHECK_THAT(error_of([] { check_data_spec("cifra10:/data"); }),
             Catch::EndsWith("; did you mean cifar10:DIR?"));
  CHECK_THAT(error_of([] { check_data_spec("grammer"); }),
             Catch::EndsWith("; did you mean grammar?"));
  CHECK(error_of([] { open_data("folder:", 0); }) ==
        "data 'folder:': expected a directory after the colon");
  CHECK(error_of([] { open_data("cifar10:/nowhere", 0); }) ==
        "data 'cifar10:/nowhere': /nowhere is not a directory");
}

TEST_CASE("class folders alone: a stratified tenth is held out, nothing tests") {
  const TemporaryFolder folder;
  make_classes(folder, "", {"a", "b", "c"}, 20);
  const std::string spec = "folder:" + folder.path();
  const Splits splits = open_data(spec, 1);
  CHECK(splits.train->size() == 54);
  CHECK(splits.validation->size() == 6);
  CHECK(splits.test == nullptr);
  int held[3] = {};
  std::set<std::pair<int64_t, int>> all;
  for (const auto& entry : contents(*splits.train)) all.insert(entry);
  for (const auto& entry : contents(*splits.validation)) {
    ++held[entry.first];
    CHECK(all.insert(entry).second);
  }
  CHECK(all.size() == 60);
  for (const int count : held) CHECK(count == 2);

  CHECK(contents(*open_data(spec, 1).validation) == contents(*splits.validation));
  CHECK(contents(*open_data(spec, 2).validation) != contents(*splits.validation));
  const Evaluation whole = open_evaluation(spec);
  CHECK(whole.split == "all");
  CHECK(whole.dataset->size() == 60);
}

TEST_CASE("train, val and test folders are read where they exist") {
  const TemporaryFolder folder;
  make_classes(folder, "train/", {"a", "b"}, 10);
  const std::string spec = "folder:" + folder.path();
  Splits splits = open_data(spec, 1);
  CHECK(splits.train->size() == 18);
  CHECK(splits.validation->size() == 2);
  CHECK(splits.test == nullptr);
  CHECK(open_evaluation(spec).split == "train");
  CHECK(open_evaluation("cifar10:" + folder.path()).dataset->size() == 20);

  make_classes(folder, "val/", {"b"}, 3);
  make_classes(folder, "test/", {"a", "b"}, 4);
  splits = open_data(spec, 1);
  CHECK(splits.train->size() == 20);
  CHECK(splits.validation->size() == 3);
  CHECK(splits.validation->label(0) == 1);  // b, although val's only class
  CHECK(splits.test->size() == 8);
  const Evaluation evaluation = open_evaluation(spec);
  CHECK(evaluation.split == "test");
  CHECK(evaluation.dataset->size() == 8);

  make_classes(folder, "val/", {"zebra"}, 1);
  CHECK(error_of([&] { open_data(spec, 1); }) ==
        folder.path() + "/val: class 'zebra' of the data is not one of 'a', 'b'");
}

TEST_CASE("folders that cannot be split say so") {
  const TemporaryFolder folder;
  make_classes(folder, "val/", {"a"}, 2);
  CHECK(error_of([&] { open_data("folder:" + folder.path(), 0); }) ==
        folder.path() + ": has a folder val or test but no folder train");
  const TemporaryFolder small;
  make_classes(small, "", {"a", "b"}, 1);
  CHECK(error_of([&] { open_data("folder:" + small.path(), 0); }) ==
        small.path() + ": needs a class of at least two images, to hold some out for validation");
}

TEST_CASE("CIFAR-10's batches split 45,000 to 5,000, MNIST's by a twelfth") {
  const TemporaryFolder cifar10;
  for (const char* name : {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4",
                           "data_batch_5", "test_batch"}) {
    // Sparse: zeros, but for the label of the last record.
    const std::string path = cifar10 / (std::string(name) + ".bin");
    write_file(path, {});
    fs::resize_file(path, 30730000);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3073 * 9999).put(name[0] == 't' ? 9 : static_cast<char>(name[11] - '0'));
  }
  const Splits splits = open_data("cifar10:" + cifar10.path(), 0);
  CHECK(splits.train->size() == 45000);
  CHECK(splits.validation->size() == 5000);
  CHECK(splits.test->size() == 10000);
  CHECK(splits.train->label(39999) == 4);
  CHECK(splits.train->label(44999) == 0);
  CHECK(splits.validation->label(4999) == 5);
  CHECK(splits.test->label(9999) == 9);

  const TemporaryFolder mnist;
  const auto idx = [](uint8_t rank, uint8_t count, size_t values) {
    std::vector<uint8_t> bytes = {0, 0, 8, rank, 0, 0, 0, count};
    for (int d = 1; d < rank; ++d) bytes.insert(bytes.end(), {0, 0, 0, 2});
    bytes.resize(bytes.size() + values);
    return bytes;
  };
  for (const char* part : {"train", "t10k"}) {
    write_file(mnist / (std::string(part) + "-images-idx3-ubyte"), idx(3, 36, 144));
    write_file(mnist / (std::string(part) + "-labels-idx1-ubyte"), idx(1, 36, 36));
  }
  const Splits digits = open_data("mnist:" + mnist.path(), 0);
  CHECK(digits.train->size() == 33);
  CHECK(digits.validation->size() == 3);
  CHECK(digits.test->size() == 36);
  CHECK(open_evaluation("mnist:" + mnist.path()).split == "test");
}

TEST_CASE("the CIFAR-10 images split 45,000 to 5,000") {
  const char* data = std::getenv("WEFT_TEST_DATA");
  const std::string archive = std::string(data ? data : "") + "/cifar10-train-jpeg.tar.xz";
  if (!data || !fs::exists(archive)) {
    WEFT_SKIP("CIFAR-10 images: WEFT_TEST_DATA has no cifar10-train-jpeg.tar.xz");
  }
  const TemporaryFolder folder;
  const std::string command =
      fmt::format("timeout 120 tar xf '{}' -C '{}'", archive, folder.path());
  REQUIRE(std::system(command.c_str()) == 0);
  const Splits splits = open_data("folder:" + folder.path(), 0);
  CHECK(splits.train->size() == 45000);
  CHECK(splits.validation->size() == 5000);
  CHECK(splits.test == nullptr);
  CHECK(splits.train->class_names() == std::vector<std::string>{"airplane", "automobile", "bird",
                                                                "cat", "deer", "dog", "frog",
                                                                "horse", "ship", "truck"});
  std::vector<int64_t> held(10);
  for (int64_t i = 0; i < 5000; ++i) ++held[splits.validation->label(i)];
  CHECK(held == std::vector<int64_t>(10, 500));
  for (int64_t i = 0; i < 45000; i += 97) {
    const Image image = splits.train->example(i).image;
    REQUIRE((image.height == 32 && image.width == 32));
  }
}

}  // namespace
}  // namespace weft::data
