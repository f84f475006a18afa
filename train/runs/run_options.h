// Where and how a run of `weft train` happens, what it came to, and what of its Config becomes the
// Trainer's and Fabric's options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/device.h"
#include "dist/comm/communicator.h"
#include "train/config.h"
#include "train/trainer/trainer.h"

namespace weft::train {

/// What decides a run's result is in Config.
struct RunOptions {
  std::string output;  // directory of checkpoints; empty: runs/<recipe>-<n>, the first free n
  std::string resume;  // a run's directory, or one of its checkpoints
  int threads = 0;     // 0: one per core
  /// Where the model is trained; several ranks take the devices of their numbers. A resumed run may
  /// take another one.
  Device device = {};
  bool json = false;  // JSON lines on standard output instead of a table
  /// The ranks of which this process is one; null: it is alone. Rank 0 prints and writes.
  dist::CommunicatorPtr world;
  // What a resumed run changes: the number of devices, the strategy, its tensor_parallel and
  // pipeline_stages. 0 and empty leave them as they were.
  int64_t devices = 0;
  dist::StrategyOptions strategy = {.name = ""};
};

struct RunResult {
  bool interrupted = false;
  std::optional<double> test_accuracy;  // a fraction; none without a test split, nor of text
  int64_t test_images = 0;
  double validation_accuracy = 0;
  double seconds = 0;
  std::string stop_reason;  // what it ended at: "max_epochs = 6"
  std::string checkpoint;   // the last one saved
  std::string output;       // the run's directory; empty on all ranks but the first

  int exit_code() const { return interrupted ? 130 : 0; }
};

/// The same run on so many devices, 0: as many as before, under another strategy where one is
/// named, by any of its names (dist/strategy/aliases.h). The global batch stays as large as it was.
/// Throws Error where it cannot be.
Config on_other_devices(Config config, int64_t devices,
                        const dist::StrategyOptions& asked = {.name = ""});

/// The configuration of the run in options.resume, with the options' devices and strategy.
Config resumed_config(const RunOptions& options);

/// Throws Error naming what of the model cannot be shared out by tensor parallelism or a pipeline:
/// heads that so many devices do not divide, too few segments. Of a model that its weights describe
/// this shows when they are read, of a parallel head when the data's classes are known.
void check_model_is_shared(const Config& config);

/// Images or windows that all ranks take together.
int64_t global_batch_of(const Config& config);

/// What config says of device, precision, loss scale and strategy. `device` gives the kind where
/// there are several.
FabricOptions fabric_options(const Config& config, Device device);

/// A fit of config's length, silent: callbacks speak. With the callbacks that have a part in it:
/// moving averages, and early stopping.
TrainerOptions trainer_options(const Config& config, const RunOptions& options);

}  // namespace weft::train
