// Which images train a model, which choose it and which report it (data/sets/open_text.h: which
// text).
//
//   builtin       the procedural set of data/sets/sets.h: no files
//   cifar10:DIR   CIFAR-10's binary batches: images 0..44999 train, 45000..49999 validation, the
//                 test batch tests. A DIR of image folders is read as folder:DIR.
//   mnist:DIR     MNIST's IDX files: of 60,000 the last 5,000 are validation, t10k tests
//   folder:DIR    DIR/train, DIR/val and DIR/test, each with one folder of images per class. With
//                 no DIR/val a stratified tenth of the training images is held out for it; with no
//                 DIR/test there is no test. Class folders directly in DIR are all training data,
//                 held out likewise.
//
// No split serves twice: validation chooses a model, test reports it.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "data/dataset.h"

namespace weft::data {

struct Splits {
  DatasetPtr train;
  DatasetPtr validation;
  DatasetPtr test;  // null where the data has none
};

/// Throws Error listing the accepted specs unless `spec` reads like one of them. Touches no file.
void check_data_spec(const std::string& spec);

/// Opens the splits that `spec` names. `seed` chooses the images held out of a folder and nothing
/// else. Labels of every split count in the training set's class names. Throws Error naming the
/// spec and the accepted ones, or the file or folder that is wrong.
Splits open_data(const std::string& spec, uint64_t seed);

/// What left_out() says of the splits, of several parts of one folder once.
std::set<std::string> left_out(const Splits& splits);

struct Evaluation {
  DatasetPtr dataset;
  std::string split;  // "test", "validation", "train", or "all"
};

/// Opens what `weft eval` measures: the test split of builtin, cifar10 and mnist; of a folder
/// DIR/test, else DIR/val, else DIR/train, whole; and a folder of class folders whole, as "all".
Evaluation open_evaluation(const std::string& spec);

}  // namespace weft::data
