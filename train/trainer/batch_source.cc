#include "train/trainer/batch_source.h"

namespace weft::train {
namespace {

class ImageBatches : public RankBatches {
 public:
  ImageBatches(data::Loader& loader, const Fabric& fabric) : loader_(loader) {
    data::LoaderOptions options = loader.options();
    if (options.watch == fabric.watch()) return;
    if (!options.watch || loader.unshared()) {
      // An earlier Trainer's shares may be those of other devices.
      const data::LoaderOptions own = loader.unshared().value_or(options);
      if (loader.unshared()) loader.set_options(own);
      fabric.setup_dataloader(loader);
      loader.keep_unshared(own);
    } else {
      // It is shared out already, by the caller.
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
    : loader_(&loader), share_([&loader](const Fabric& fabric) {
        return std::make_unique<ImageBatches>(loader, fabric);
      }) {}

}  // namespace weft::train
