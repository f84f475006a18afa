// Weft, all that a training program needs. What only some programs use has headers of its own:
// <weft/kernels/...>, <weft/numerics/...>, <weft/dist/...>, <weft/train/...>.
#pragma once

#include "autograd/autocast.h"               // IWYU pragma: export
#include "autograd/backward.h"               // IWYU pragma: export
#include "autograd/checkpoint.h"             // IWYU pragma: export
#include "autograd/gradcheck.h"              // IWYU pragma: export
#include "autograd/ops.h"                    // IWYU pragma: export
#include "autograd/random.h"                 // IWYU pragma: export
#include "autograd/tape.h"                   // IWYU pragma: export
#include "core/error.h"                      // IWYU pragma: export
#include "core/parallel.h"                   // IWYU pragma: export
#include "core/tensor.h"                     // IWYU pragma: export
#include "core/version.h"                    // IWYU pragma: export
#include "core/view.h"                       // IWYU pragma: export
#include "data/loader.h"                     // IWYU pragma: export
#include "data/sets/open.h"                  // IWYU pragma: export
#include "data/tensors/tensor_dataset.h"     // IWYU pragma: export
#include "io/pth_reader.h"                   // IWYU pragma: export
#include "io/safetensors.h"                  // IWYU pragma: export
#include "models/registry.h"                 // IWYU pragma: export
#include "nn/nn.h"                           // IWYU pragma: export
#include "optim/adam.h"                      // IWYU pragma: export
#include "optim/clip.h"                      // IWYU pragma: export
#include "optim/grad_scaler.h"               // IWYU pragma: export
#include "optim/registry.h"                  // IWYU pragma: export
#include "optim/schedule.h"                  // IWYU pragma: export
#include "optim/sgd.h"                       // IWYU pragma: export
#include "train/fabric.h"                    // IWYU pragma: export
#include "train/trainer/early_stopping.h"    // IWYU pragma: export
#include "train/trainer/model_checkpoint.h"  // IWYU pragma: export
#include "train/trainer/trainer.h"           // IWYU pragma: export
#include "train/trainer/weight_averaging.h"  // IWYU pragma: export
