// What a run says of itself before it begins and when it has ended: lines that runs of images and
// of text share.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.h"
#include "train/checkpoint.h"
#include "train/config.h"

namespace weft::train {

/// "cct: 283723 parameters, 10 classes, 32 x 32 pixels, fp16 as on h100, 2 threads", of an `input`
/// of 10 classes and so many pixels.
std::string describe_model(const Config& config, int64_t parameters, const std::string& input,
                           Device device);
/// "/6" behind the number of an epoch; nothing without a limit of them.
std::string of_epochs(const Config& config);
/// "builtin-quick: 6 epochs of 187 steps, batch 64 x 32 bytes, adamw with learning rate 0.002
/// (one-cycle)", of a `sample` of 32 bytes; none: samples count alone.
std::string describe_settings(const Config& config, int64_t steps_per_epoch,
                              const std::string& sample = {});
/// What ranks of a run have in common as they begin, in lines: the settings but for where each
/// finds data and weights, and the checkpoint that they go on from, if any.
std::string describe_start(const Config& config, const Checkpoint* checkpoint);
/// What is said of ranks that differ in it.
inline constexpr const char* kOtherRun = "the ranks were not started alike";
/// "stopped: max_steps = 500\n"; nothing of a run that has done its epochs.
std::string describe_end(const Config& config, const std::string& stop_reason);

}  // namespace weft::train
