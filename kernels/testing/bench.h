// Kernels timed side by side: `NAME_bench bench`, `./weft kernels bench`.
//
// A case's variants take turns, so that what else the machine does weighs on all of them alike.
// Each sample is one run of one variant, with outputs as at first (a repeated scaling would end in
// subnormals) and with no operand in any cache: on the CPU every line of the problem's memory is
// flushed, on a GPU more than twice its second-level cache is overwritten. What a variant keeps for
// itself, packed operands say, stays warm. GPU times lie between two events around the run and
// leave out the launch, which happens while the device still overwrites its cache.
//
// docs/kernel-lab.md has the table's columns and the schema of the JSON rows.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "kernels/testing/op_table.h"
#include "kernels/testing/roofline.h"

namespace weft::kernels {

struct BenchOptions {
  std::string variant;              // empty: all
  std::vector<std::string> shapes;  // parts of a case's name, or shapes that the op can make
  DType dtype = DType::f32;         // of shapes that are made
  Device device;
  int samples = 21;
  double seconds = 2;  // for a variant on a case, once 5 samples are taken
  bool as_json = false;
  std::string roofline;  // a file that the roofline program wrote; empty: shares are left out
};

/// What is to be timed: the options, checked.
struct BenchPlan {
  BenchOptions options;
  std::vector<CaseEntry> cases;
  std::optional<Roofline> roofline;
};

/// Throws Error for a shape, or with a file, that makes no sense.
BenchPlan plan_bench(const OpTable& table, const BenchOptions& options);

/// Prints a row for each variant on each case, and a last line of totals. Throws what a kernel
/// throws.
void run_bench(const OpTable& table, const BenchPlan& plan, std::FILE* out = stdout);

/// Whether the variant calls a vendor's library: what the others are compared with.
bool is_vendor_variant(std::string_view name);

}  // namespace weft::kernels
