// Launchers of the kernels in basics_test.cu; all pointers are the host's.
#pragma once

namespace weft::simt {

void run_sum(const float* x, float* y, int n);
void run_transpose(const int* x, int* y, int n);
void run_early_exit(int* y);
void run_warp(unsigned* y);
void run_deadlock();
void run_divergent(int* y);

}  // namespace weft::simt
