#include "train/trainer/batch_source.h"

namespace weft::train {
namespace {

class ImageBatches : public RankBatches {
 public:
  ImageBatches(data::Loader& loader, const Fabric& fabric) : loader_(loader) {
    data::LoaderOptions options = loader.options();
    if (!options.watch) {
      fabric.setup_dataloader(loader);
    } else if (options.watch != fabric.watch()) {
      // It is shared out already, by an earlier Trainer's Fabric or by the caller.
      options.watch = fabric.watch();
      loader.set_options(std::move(options));
    }
  }

  int64_t per_epoch() const override { return loader_.batches(); }
  void seek(data::LoaderPosition position) override { loader_.seek(position); }
  std::optional<Batch> next() override {
    std::optional<data::Batch> batch = loader_.next();
    if (!batch) return std::nullopt;
    Batch tensors = {batch->images, batch->labels};
    if (batch->soft_labels.defined()) tensors.push_back(batch->soft_labels);
    return tensors;
  }

 private:
  data::Loader& loader_;
};

}  // namespace

BatchSource::BatchSource(data::Loader& loader)
    : share_([&loader](const Fabric& fabric) {
        return std::make_unique<ImageBatches>(loader, fabric);
      }) {}

}  // namespace weft::train
