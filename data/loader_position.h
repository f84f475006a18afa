// Where a loader of batches stands, and when an iteration over it begins.
#pragma once

#include <cstdint>

namespace weft::data {

/// The next batch to come. Saved and sought, it continues a run exactly.
struct LoaderPosition {
  int64_t epoch = 0;
  int64_t batch = 0;
  bool operator==(const LoaderPosition&) const = default;
};

/// What every loader has in common. Its next() gives the batch of position(), or nothing once at
/// the end of an epoch, after which the next epoch begins.
class PositionedLoader {
 public:
  /// Of this rank, in an epoch.
  virtual int64_t batches() const = 0;
  /// After the last batch of an epoch has been taken: (epoch, batches()).
  LoaderPosition position() const { return position_; }
  /// Continues at `position`, its batch in [0, batches()]. Throws Error outside.
  void seek(LoaderPosition position);
  /// An iteration begins: at the position that was sought last where nothing was taken since, else
  /// with the next epoch where one was begun. Returns its number.
  int64_t begin();
  /// Of the iteration that began last.
  int64_t iteration() const { return iteration_; }

 protected:
  ~PositionedLoader() = default;
  /// The batch of position() was taken.
  void advance() {
    ++position_.batch;
    is_sought_ = false;
  }
  void begin_next_epoch() { seek({position_.epoch + 1, 0}); }

 private:
  /// The position has changed, but not by a batch that was taken.
  virtual void on_seek() {}

  LoaderPosition position_;
  bool is_sought_ = false;  // and nothing was taken since
  int64_t iteration_ = 0;
};

}  // namespace weft::data
