// More live values than 32 registers hold: nvcc_checked_test compiles it and expects the spill to
// be told.
__global__ void __launch_bounds__(1024, 2) spills(float* data) {
  float values[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) values[i] = data[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) data[i * 1024 + threadIdx.x] = values[63 - i] * values[i];
}
