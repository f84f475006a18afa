// Loaders of a program's own: any iterable of Python's, shared out to ranks.
#pragma once

#include <functional>
#include <optional>

#include "data/loader.h"
#include "python/casters.h"
#include "train/fabric.h"

namespace weft::python {

/// Tensors, and tuples, lists, dicts and dataclasses of them, nested. What speaks DLPack counts as
/// a tensor; other leaves stay what they are. Whoever handles one holds the interpreter's lock.
struct ObjectBatch {
  nb::object object;
};

/// A part of one that is no tensor: a list or tuple with an entry for each sample, or a leaf or
/// key.
struct ObjectPart {
  nb::object object;
};

/// The containers of tensors anew, with what f makes of each.
nb::object with_each_tensor(nb::handle part, const std::function<void(Tensor&)>& f);

/// The same with what f makes of the other parts of a batch of so many samples.
nb::object with_each_part(nb::handle batch, int64_t rows, const std::function<void(Tensor&)>& f,
                          const std::function<void(ObjectPart&)>& other);

/// What train::SharedLoader asks of a batch, and of its parts.
template <class F>
void for_each_tensor(ObjectBatch& batch, F&& f) {
  if constexpr (requires { f.rows; }) {
    batch.object = with_each_part(batch.object, f.rows, f, f);
  } else {
    batch.object = with_each_tensor(batch.object, f);
  }
}
int64_t rows_in(const ObjectPart& part);
ObjectPart joined(const std::vector<ObjectPart>& pieces);
void keep_rows(ObjectPart& part, int64_t begin, int64_t count);
bool is_same(const ObjectPart& a, const ObjectPart& b);
std::string text_of(const ObjectPart& part);

/// What an iterable gives, epoch by epoch: it is iterated anew for each.
class ObjectSource {
 public:
  explicit ObjectSource(nb::object batches) : batches_(std::move(batches)) {}
  /// Throws what the iterable raises.
  std::optional<ObjectBatch> next();

 private:
  nb::object batches_, iterator_;
};

/// The same as a Trainer's loader, which calls without the interpreter's lock. A loader, or its
/// sampler, with a set_epoch() hears of each epoch; what comes before the batch that a seek() names
/// is skipped.
class TrainerLoader {
 public:
  /// Throws a TypeError naming the class where it has no __iter__ or no __len__, a ValueError where
  /// there are no batches.
  explicit TrainerLoader(nb::object loader);
  ~TrainerLoader();
  TrainerLoader(const TrainerLoader&) = delete;
  TrainerLoader& operator=(const TrainerLoader&) = delete;

  /// Throws a TypeError where a batch is neither a tensor nor a tuple or list of tensors.
  std::optional<Tensors> next();
  int64_t batches() const;
  void seek(data::LoaderPosition position);

 private:
  void begin();

  nb::object loader_;
  std::optional<ObjectSource> source_;  // once the epoch has begun
  data::LoaderPosition position_;
};

void bind_shared_batches(nb::module_& m);
/// This rank's share of an iterable of batches, or all of them where it does not deal out, as an
/// iterable, with a length where that has one; on this rank's device where it moves. Throws a
/// TypeError for what cannot be iterated, or is a share already.
nb::object share_batches(nb::handle_t<train::Fabric> fabric, nb::handle batches, bool deals_out,
                         bool moves);

}  // namespace weft::python
