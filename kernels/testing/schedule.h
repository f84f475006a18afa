// The order in which an emulated device runs the threads of a kernel.
#pragma once

namespace weft::kernels {

/// From now on kernels run under schedule number `run`: 0 runs threads in their order, odd numbers
/// in a random one with asynchronous copies done as late as is legal, even numbers backwards. A
/// real device has its own order.
void use_schedule(int run);

}  // namespace weft::kernels
