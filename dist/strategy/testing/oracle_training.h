// One training loop for the oracle of every strategy (dist/strategy/testing/oracle.h).
//
//   const OracleResult one = train_oracle({}, {});                    // one rank, the whole batch
//   for (const OracleResult& r : train_oracle_ranks({}, ddp, 4)) ...   // must be the same
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dist/data_parallel/fsdp.h"
#include "dist/strategy/strategy.h"
#include "dist/strategy/testing/oracle.h"

namespace weft::dist {

struct OracleSetting {
  DType dtype = DType::f64;
  DType autocast = DType::f32;
  bool is_transformer = false;  // OracleTransformer instead of OracleModel
  int64_t rows = 11;            // of a batch of all ranks; 8 ranks: 2 2 2 2 2 1 0 0
  int64_t accumulate = 1;
  bool checkpoints = false;
  double dropout = 0;
  int64_t deterministic = 0;  // micro-batches in the fixed tree
  double loss_scale = 0;      // the first one of a GradScaler's; 0: none
  int steps = 4;
  double clip_norm = 0.5;
  ops::CrossEntropyOptions loss = {};
  std::vector<std::string> frozen;  // names of parameters
  bool on_device = false;           // ranks on the CUDA devices of their numbers
  /// Their collectives; null: through the host.
  std::function<CommunicatorPtr(const CommunicatorPtr& host, Device device)> communicator = {};
  WrapPolicy units = wrap_modules<nn::Linear, nn::LayerNorm>();
};

/// States are rank 0's, elsewhere possibly empty.
struct OracleResult {
  NamedTensors parameters, optimizer;
  NamedTensors first_gradients;  // where they are whole on every rank
  std::vector<double> losses, norms, scales;
};

/// Makes the strategy of a rank; `world` is null on one rank.
using MakeStrategy = std::function<std::unique_ptr<Strategy>(const CommunicatorPtr& world)>;

OracleResult train_oracle(const OracleSetting& setting, const MakeStrategy& make,
                          const CommunicatorPtr& world = nullptr);
/// On so many ranks as threads.
std::vector<OracleResult> train_oracle_ranks(const OracleSetting& setting, const MakeStrategy& make,
                                             int ranks);
/// One rank, strategy "single".
OracleResult train_oracle_alone(const OracleSetting& setting);

/// Requires that K steps on `ranks` ranks are K steps on one to within 1e-10: parameters, the
/// optimizer's state, losses and gradient norms.
void check_against_one_rank(const OracleSetting& setting, const MakeStrategy& make, int ranks);

/// Requires that the f32 gradients of the first step, read from AdamW's first moments, differ from
/// those of one rank by no more than two orders of summation may.
///
/// Two orders of adding n terms differ by at most 2 gamma_{n-1} sum |terms| (Higham, "Accuracy and
/// Stability of Numerical Algorithms", 2nd ed., equation 4.4). The terms of a gradient are those of
/// the rows, and each is a chain of sums whose lengths add up: the inner lengths of all products
/// and the widths of the norms, forward and backward. The scale of a row's own roundings is that of
/// the tensor's largest term.
void check_first_gradients(const MakeStrategy& make, int ranks, bool is_transformer);

bool same_bits(const NamedTensors& a, const NamedTensors& b);

}  // namespace weft::dist
