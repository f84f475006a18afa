// CIFAR-10 in its binary form: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
// 2009; cifar-10-binary.tar.gz. A record is one label byte and 32 x 32 bytes each of red, green and
// blue; a file holds 10,000 records.
#pragma once

#include <string>

#include "data/dataset.h"

namespace weft::data {

enum class Cifar10Part { kTrain, kTest };  // data_batch_1..5.bin, 50,000 images; test_batch.bin

/// True when `directory`, or its subdirectory cifar-10-batches-bin, holds a binary batch.
bool has_cifar10_batches(const std::string& directory);

/// Reads one part into memory, from `directory` or its subdirectory cifar-10-batches-bin. Throws
/// Error naming the file that is missing, has another size, or holds a label above 9.
DatasetPtr load_cifar10(const std::string& directory, Cifar10Part part);

}  // namespace weft::data
