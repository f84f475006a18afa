// A state that each rank saves its part of, while training goes on, and loads its part of.
//
// Saving has three steps. start: in the step at hand each rank copies its slices, and a thread of
// its own writes them to a file and brings that to the disk. vote: at the steps' ends the ranks ask
// each other, by one small collective, whether all are done. commit: when all are, rank 0 gets to
// know what lies where, writes the index, and whatever makes the state the latest.
//
// Collectives run in the training's own thread, one after another with its others: a thread of the
// writer's would need a communicator of its own, and a rank that dies would be missed by two. Files
// that tell each other's state would need a deadline of their own and a file system without delay;
// a collective has the deadline and names who is missing.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "dist/comm/communicator.h"
#include "dist/strategy/local_state.h"
#include "io/sharded_safetensors.h"

namespace weft::train {

/// Copies of the slices that this rank writes. Ranks that have the same bits share them out, the
/// next one to whoever has least.
class SliceCopies {
 public:
  /// Tensors under "<prefix>.<name>".
  void add(const std::string& prefix, const dist::LocalTensors& tensors);
  /// Whole tensors under their names, all of them this rank's.
  void add(const NamedTensors& tensors);
  std::vector<io::Slice> take() { return std::move(slices_); }

 private:
  std::vector<io::Slice> slices_;
  // Bytes of each of the ranks that have the same, by how many they are: all of them come to the
  // same numbers.
  std::map<int, std::vector<int64_t>> written_;
};

/// An optimizer's tensors, of state_dict(), with the places of their parameters.
dist::LocalTensors optimizer_tensors(const NamedTensors& state,
                                     const dist::LocalTensors& parameters);

/// Reads into the tensors what lies under "<prefix>.<name>", of other dtypes too. Throws Error
/// naming a tensor that is missing or of another shape, before any has changed.
void read_into(io::ShardedReader& reader, const std::string& prefix,
               const dist::LocalTensors& tensors);

/// This rank's part of an optimizer's tensors, as its load_state_dict() takes them.
NamedTensors read_optimizer(io::ShardedReader& reader, const std::string& prefix,
                            const dist::LocalTensors& parameters);

/// A save under way. Every rank has one, and calls the same.
class PendingSave {
 public:
  /// Runs `write`, which returns what write_shard() does, in a thread. `commit` is called on rank 0
  /// with what that returned on all ranks. `world` may be null; `path` is for what is said.
  PendingSave(dist::CommunicatorPtr world, std::string path, std::function<nlohmann::json()> write,
              std::function<void(const std::vector<nlohmann::json>&)> commit);
  /// Waits for the thread. What was not committed is not there, which rank 0 then says on stderr:
  /// the ranks cannot agree here, and who is told of it may be gone.
  ~PendingSave();
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;

  /// Commits when all ranks have written; true then. Throws Error on every rank with the reasons of
  /// those that could not write, and what on_rank_0() throws where that is the commit.
  bool poll();
  /// Polls until that is so. Ranks ask again and again: no collective waits for a disk.
  void wait();

 private:
  void finish();

  const dist::CommunicatorPtr world_;
  const std::string path_;
  const std::function<void(const std::vector<nlohmann::json>&)> commit_;
  nlohmann::json shard_;  // of the thread, as these
  std::string failure_;
  std::atomic<bool> is_done_{false};
  std::thread thread_;
};

/// A text of rank 0's, on all ranks. `world` may be null.
std::string broadcast_text(const std::string& text, const dist::CommunicatorPtr& world);

/// Calls `function` on rank 0; the others wait. What it throws is thrown there as it is, and on the
/// others as an Error with its words: no rank goes on alone. `world` may be null.
void on_rank_0(const std::function<void()>& function, const dist::CommunicatorPtr& world);

}  // namespace weft::train
