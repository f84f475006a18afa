"""Weft inside PyTorch: its kernels in a torch model, and a GPU's tensor cores under any torch model.

    weft.torch.use(model, ops=["layer_norm", "linear", "scaled_dot_product_attention"])
    loss = model(images).sum()                             # these ops run Weft's kernels, forward and backward

    with weft.torch.emulate("h100", "bf16") as gpu:        # every matrix product has an H100's bits
        model(images).sum().backward()
    print(gpu.report())                                    # what that changed, layer by layer"""

from weft.torch._emulation import Report, emulate  # noqa: F401
from weft.torch._use import ops, use  # noqa: F401
