// The settings of StrategyOptions that a program chooses, as its command line tells of them: those
// of weft's own commands and the checks of strategy_kind.cc come from this list.
#pragma once

#include "dist/strategy/options.h"

namespace weft::dist {

struct SettingText {
  Settings setting;
  const char* flag;   // the member's name, with dashes
  const char* takes;  // "N"; null for a switch
  const char* help;
  const char* usual = "";  // what the default means, where its value does not say it
};

/// Calls f(text, pointer to member) for each, and before each group of them group(its heading).
template <class Group, class F>
void for_each_setting(Group&& group, F&& f) {
  using enum Settings;
  using O = StrategyOptions;
  const auto add = [&](Settings setting, auto O::*member, const char* flag, const char* takes,
                       const char* help, const char* usual = "") {
    f(SettingText{setting, flag, takes, help, usual}, member);
  };
  group("Devices and sharding");
  add(kShardSize, &O::shard_size, "shard-size", "N",
      "Devices that hold one sharded copy of the model", "the largest proper divisor of --devices");
  add(kCpuOffload, &O::cpu_offload, "cpu-offload", nullptr,
      "Keep each rank's shards of parameters, gradients and optimizer state in the CPU's memory");
  add(kTensorParallel, &O::tensor_parallel, "tensor-parallel", "N",
      "Tensor parallelism: devices that each layer is split over", "all under tp, 2 under fsdp+tp");
  add(kSequenceParallel, &O::sequence_parallel, "sequence-parallel", nullptr,
      "Sequence parallelism: shard the tokens between layers that are split");
  add(kParallelHead, &O::parallel_head, "parallel-head", nullptr,
      "Split the head and the loss by classes");
  add(kPipelineStages, &O::pipeline_stages, "pipeline-stages", "N",
      "Stages that the model is split into along its depth", "as many as devices");
  add(kMicroBatches, &O::micro_batches, "micro-batches", "N",
      "Micro-batches that a batch is split into", "two per stage");
  group("Gradients of whole copies");
  add(kBuckets, &O::bucket_mb, "bucket-mb", "N", "MiB of gradients that are summed together", "25");
  add(kBuckets, &O::compress_dtype, "compress-dtype", "NAME",
      "Format that gradients travel in: bf16, fp16 or fp32", "their own");
  add(kBuckets, &O::static_graph, "static-graph", nullptr,
      "Promise that every step uses the parameters that the first one does");
  add(kBuckets, &O::find_unused, "find-unused", nullptr,
      "Look in every step for parameters that got no gradient");
  group("Sharded parameters");
  add(kUnits, &O::wrap, "wrap", "WHAT",
      "What is unsharded together: modules of so many parameters or more, 100000, or of these "
      "classes, EncoderBlock,Linear",
      "what the model names");
  add(kResharding, &O::shard_grad_op, "shard-grad-op", nullptr,
      "Keep parameters whole from forward to backward");
  add(kUnits, &O::no_prefetch, "no-prefetch", nullptr,
      "Unshard a unit when it is touched, and no sooner");
  add(kResharding, &O::resident_units, "resident-units", "N",
      "Units that are whole at a time, 2 or more, besides the one that is unsharded ahead", "2");
  add(kOffloadOptimizer, &O::offload_optimizer, "offload-optimizer", nullptr,
      "Keep the optimizer, its state and its shards in the CPU's memory");
  add(kMixedPrecision, &O::param_dtype, "param-dtype", "NAME",
      "Format that parameters travel in and are while whole: bf16, fp16 or fp32",
      "fp32, but weights of products travel as --precision bf16 or fp16 rounds them");
  add(kMixedPrecision, &O::reduce_dtype, "reduce-dtype", "NAME",
      "Format that gradients travel in: bf16, fp16 or fp32", "fp32");
  add(kMixedPrecision, &O::buffer_dtype, "buffer-dtype", "NAME",
      "Format of floating buffers: bf16, fp16 or fp32", "fp32");
}
template <class F>
void for_each_setting(F&& f) {
  for_each_setting([](const char*) {}, f);
}

}  // namespace weft::dist
