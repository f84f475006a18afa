#include "dist/plan/cluster.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "io/nearest.h"

namespace weft::dist {
namespace {

// NVIDIA's data sheets; the latencies are those that NCCL's own model assumes for NVLink.
const std::vector<Accelerator>& accelerators() {
  static const auto& list = *new std::vector<Accelerator>{
      {"a100-40g", "A100 SXM, 40 GB", 312e12, 19.5e12, 1.555e12, 40e9, {2e-6, 300e9}},
      {"a100-80g", "A100 SXM, 80 GB", 312e12, 19.5e12, 2.039e12, 80e9, {2e-6, 300e9}},
      {"h100", "H100 SXM, 80 GB", 989e12, 67e12, 3.35e12, 80e9, {2e-6, 450e9}},
      {"h200", "H200 SXM, 141 GB", 989e12, 67e12, 4.8e12, 141e9, {2e-6, 450e9}},
      {"b200", "B200, 180 GB", 2250e12, 75e12, 7.7e12, 180e9, {2e-6, 900e9}},
  };
  return list;
}

// One adapter for each device, but for ethernet-100g, whose one adapter eight devices share.
const std::vector<Network>& networks() {
  static const auto& list = *new std::vector<Network>{
      {"infiniband-hdr", "InfiniBand HDR, 200 Gb/s a device", {5e-6, 25e9}},
      {"infiniband-ndr", "InfiniBand NDR, 400 Gb/s a device", {5e-6, 50e9}},
      {"roce-200g", "RoCE, 200 Gb/s a device", {8e-6, 25e9}},
      {"ethernet-100g", "Ethernet, 100 Gb/s a node of eight", {20e-6, 12.5e9 / 8}},
  };
  return list;
}

template <class Item>
std::vector<std::string> names_of(const std::vector<Item>& items) {
  std::vector<std::string> names;
  for (const Item& item : items) names.push_back(item.name);
  return names;
}

double steps(int ranks) { return std::ceil(std::log2(static_cast<double>(ranks))); }
double share(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

}  // namespace

std::vector<std::string> accelerator_names() { return names_of(accelerators()); }
std::vector<std::string> network_names() { return names_of(networks()); }

const Accelerator& find_accelerator(const std::string& name) {
  for (const Accelerator& a : accelerators()) {
    if (a.name == name) return a;
  }
  const std::vector<std::string> known = accelerator_names();
  WEFT_FAIL("unknown accelerator \"{}\"; expected {}{}", name, fmt::join(known, ", "),
            io::did_you_mean(name, known));
}

Network find_network(const std::string& name) {
  for (const Network& network : networks()) {
    if (network.name == name) return network;
  }
  double microseconds = 0, gigabytes = 0;
  int end = 0;
  if (std::sscanf(name.c_str(), "%lfus,%lfGB/s%n", &microseconds, &gigabytes, &end) == 2 &&
      end == static_cast<int>(name.size()) && microseconds >= 0 && gigabytes > 0) {
    return {name, name + " a device", {1e-6 * microseconds, 1e9 * gigabytes}};
  }
  const std::vector<std::string> known = network_names();
  WEFT_FAIL("unknown network \"{}\"; expected {}, or LATENCYus,BANDWIDTHGB/s as in 5us,25GB/s{}",
            name, fmt::join(known, ", "), io::did_you_mean(name, known));
}

CollectiveSeconds Cluster::seconds(const Placement& placement) const {
  WEFT_CHECK(placement.neighbours > 0 && placement.ranks % placement.neighbours == 0,
             "cluster: {} ranks cannot stand {} to a node", placement.ranks, placement.neighbours);
  const int g = placement.neighbours, m = placement.ranks / g;
  const Link in = accelerator.inside, out = network.between;
  return [=](Collective collective, double bytes) {
    double once = 0;
    if (g > 1) once += steps(g) * in.latency + share(g) * bytes / in.bandwidth;
    if (m > 1) once += steps(m) * out.latency + share(m) * bytes / g / out.bandwidth;
    switch (collective) {
      case Collective::kAllReduce:
        return 2 * once;
      case Collective::kAllGather:
      case Collective::kReduceScatter:
        return once;
      default:
        WEFT_FAIL("cluster: no time for {}", name(collective));
    }
  };
}

GroupSeconds Cluster::seconds(const Sharing& sharing) const {
  // Those who share a layer or a pipeline are neighbours. Of the others every group has the same
  // place in each of these: as many in a node as there are groups in it.
  const int inner = sharing.tensor * sharing.stages;
  const int shard_neighbours = std::clamp(devices_per_node / inner, 1, sharing.shard);
  const int replica_neighbours =
      std::clamp(devices_per_node / (inner * sharing.shard), 1, sharing.replicas);
  // A pipeline that leaves its node waits for the slower link.
  const Link& hop = devices_per_node % sharing.stages == 0 ? accelerator.inside : network.between;
  return {.shard = seconds(Placement{sharing.shard, shard_neighbours}),
          .replicate = seconds(Placement{sharing.replicas, replica_neighbours}),
          .tensor = seconds(Placement{sharing.tensor, std::min(sharing.tensor, devices_per_node)}),
          .message = [hop](double bytes) { return hop.latency + bytes / hop.bandwidth; }};
}

StepWork::Pass roofline(const Accelerator& accelerator, const std::vector<Product>& products,
                        double elementwise_bytes, int bytes_per_element,
                        const Efficiency& efficiency) {
  const double flops = efficiency.products *
                       (bytes_per_element == 2 ? accelerator.bf16_flops : accelerator.fp32_flops);
  const double bandwidth = efficiency.memory * accelerator.memory_bandwidth;
  StepWork::Pass pass;
  for (const Product& p : products) {
    const double bytes = bytes_per_element * (p.m * p.k + p.k * p.n + p.m * p.n);
    const double seconds = p.count * std::max(2 * p.m * p.n * p.k / flops, bytes / bandwidth);
    pass.forward += seconds;
    pass.backward += 2 * seconds;
  }
  pass.forward += elementwise_bytes / bandwidth;
  pass.backward += 2 * elementwise_bytes / bandwidth;
  return pass;
}

StepWork deal_out(const StepWork::Pass& pass, const ModelLayout& layout, double optimizer_seconds) {
  const auto part = [&](int64_t elements) {
    const double share = static_cast<double>(elements) /
                         static_cast<double>(std::max<int64_t>(1, layout.parameters));
    return StepWork::Pass{share * pass.forward, share * pass.backward};
  };
  StepWork work{.before = part(layout.root_before),
                .behind = part(layout.root_behind),
                .optimizer = optimizer_seconds};
  for (int64_t unit : layout.units) work.units.push_back(part(unit));
  return work;
}

}  // namespace weft::dist
