// Machines that a training could be planned for: what a device computes, what links carry.
//
//   const Cluster cluster = {find_accelerator("h100"), find_network("infiniband-ndr"), 8};
//   cluster.seconds({.ranks = 1024, .neighbours = 8})(Collective::kAllReduce, bytes);
//
// Links are alpha-beta: a step of a collective takes its latency, and its bytes their time. Among m
// nodes with g ranks in each an all_gather or reduce_scatter of n bytes takes
//
//     ceil(log2 g) a + (g-1)/g n/b  +  ceil(log2 m) A + (m-1)/m (n/g)/B
//
// with a, b inside a node and A, B between nodes, per device; an all_reduce twice that. Latencies
// are those of trees; the bandwidth terms are the least possible (Thakur, Rabenseifner, Gropp
// 2005). Computation is a roofline: a product takes the longer of its FLOPs and its bytes, each at
// the share of the data sheet's figure that large kernels reach.
#pragma once

#include <string>
#include <vector>

#include "dist/plan/step_time.h"

namespace weft::dist {

struct Link {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes per second, per device and direction
};

/// Data-sheet figures, dense.
struct Accelerator {
  std::string name, title;
  double bf16_flops = 0, fp32_flops = 0;  // per second; fp32: on the general cores
  double memory_bandwidth = 0;            // bytes per second
  double memory = 0;                      // bytes
  Link inside;                            // to the other devices of its node
};

struct Network {
  std::string name, title;
  Link between;
};

/// Throws Error listing the known names.
const Accelerator& find_accelerator(const std::string& name);
/// A known name, or "LATENCYus,BANDWIDTHGB/s" per device: "5us,25GB/s".
Network find_network(const std::string& name);
std::vector<std::string> accelerator_names();
std::vector<std::string> network_names();

/// Where the ranks of a group stand: `neighbours` of them in each node.
struct Placement {
  int ranks = 1, neighbours = 1;
};

struct Cluster {
  Accelerator accelerator;
  Network network;
  int devices_per_node = 1;

  CollectiveSeconds seconds(const Placement& placement) const;
  /// Of a mesh whose shard groups are neighbouring ranks.
  GroupSeconds seconds(const Sharing& sharing) const;
};

/// Shares of the data sheet's figures that large kernels reach in practice.
struct Efficiency {
  double products = 0.6, memory = 0.8;
};

/// A matrix product [m, k] x [k, n], `count` times.
struct Product {
  double m = 0, n = 0, k = 0, count = 1;
};

/// Seconds of forward and backward over all products (backward has two for each), and of
/// `elementwise_bytes` read or written besides in forward, twice that in backward.
StepWork::Pass roofline(const Accelerator& accelerator, const std::vector<Product>& products,
                        double elementwise_bytes, int bytes_per_element,
                        const Efficiency& efficiency = {});

/// A model's pass dealt out to its units by their parameters; the optimizer reads and writes 28
/// bytes for each parameter that the rank updates.
StepWork deal_out(const StepWork::Pass& pass, const ModelLayout& layout, double optimizer_seconds);

}  // namespace weft::dist
