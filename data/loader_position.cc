#include "data/loader_position.h"

#include "core/error.h"

namespace weft::data {

void PositionedLoader::seek(LoaderPosition position) {
  WEFT_CHECK(position.epoch >= 0 && position.batch >= 0 && position.batch <= batches(),
             "loader: cannot continue at epoch {}, batch {}: an epoch has {} batches",
             position.epoch, position.batch, batches());
  position_ = position;
  is_sought_ = true;
  on_seek();
}

int64_t PositionedLoader::begin() {
  if (!is_sought_ && position_.batch > 0) begin_next_epoch();
  return ++iteration_;
}

}  // namespace weft::data
