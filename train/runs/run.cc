#include "train/runs/run.h"

#include "train/checkpoint.h"

#include "train/runs/image_run.h"
#include "train/runs/text_run.h"

namespace weft::train {

RunResult train(const Config& config, const RunOptions& options) {
  validate(config);
  return is_of_text(config) ? train_text(config, options) : train_images(config, options);
}

RunResult resume(const RunOptions& options) {
  const Config config = resumed_config(options);
  const io::Path step = find_checkpoint(options.resume);
  return is_of_text(config) ? resume_text(config, options, step)
                            : resume_images(config, options, step);
}

}  // namespace weft::train
