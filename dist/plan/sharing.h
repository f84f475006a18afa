// How devices share a model and a batch: what the formulas of this folder are about.
#pragma once

#include <cstdint>

#include "dist/model_parallel/micro_batch.h"

namespace weft::dist {

/// N = shard * replicas * tensor * stages processes.
struct Sharing {
  int shard = 1, replicas = 1;  // ranks to a copy, and copies
  int tensor = 1;               // ranks that share a layer
  bool deals_out_tokens = false, cuts_head = false;
  int stages = 1;             // of a pipeline,
  int64_t micro_batches = 1;  // that a batch goes through it in
  Schedule schedule = Schedule::kUsual;
  int threads = 1;  // of dp, in one process
  // Bytes of an element: of sharded parameters (FsdpOptions) while they are whole, of their
  // gradients on their way, and, on their way, of weights that products alone read and of tp's
  // activations.
  int whole_bytes = 4, gradient_bytes = 4, product_bytes = 4;

  /// Processes.
  int ranks() const { return shard * replicas * tensor * stages; }
  /// Devices that work on different samples; the others share layers or stages with them.
  int data_devices() const { return shard * replicas * threads; }
  /// Where a rank stands.
  int tensor_index(int rank) const { return rank % tensor; }
  int stage_index(int rank) const { return rank % stages; }
  /// Among the ranks that share a copy, and among the copies.
  int shard_index(int rank) const { return rank / (tensor * stages) % shard; }
  int replica_index(int rank) const { return rank / (tensor * stages) / shard; }
};

}  // namespace weft::dist
