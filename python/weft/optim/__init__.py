"""Optimizers, with PyTorch's names and arguments, and their arithmetic bit for bit.

Every optimizer that Weft has is to be had by make_optimizer(name, params, **options)."""

from weft._weft.optim import Optimizer, make_optimizer, optimizer_names, optimizer_options  # noqa: F401
from weft._weft.optim import without_decay_of_vectors  # noqa: F401
from weft.optim import lr_scheduler  # noqa: F401


def AdamW(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    """Adam with decoupled weight decay."""
    return make_optimizer(
        "adamw", params, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay
    )


def Adam(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    """Adam; weight decay is added to the gradient."""
    return make_optimizer(
        "adam", params, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay
    )


def SGD(params, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    """Stochastic gradient descent, with momentum and Nesterov's variant."""
    return make_optimizer(
        "sgd", params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
        nesterov=nesterov,
    )
