"""Learning-rate schedules: functions of the step, and what sets an optimizer's rates by one.

    schedule = lr_scheduler.sequential([lr_scheduler.linear(100, 0.01, 1), lr_scheduler.cosine(900)], [100])
    scheduler = lr_scheduler.Scheduler(optimizer, schedule)      # or any function of the step: PyTorch's LambdaLR"""

import math

from weft._weft.optim.schedules import *  # noqa: F401, F403
from weft._weft.optim.schedules import Scheduler, cosine, exponential, one_cycle, staircase


def LambdaLR(optimizer, lr_lambda):
    """The first rates times lr_lambda(step)."""
    return Scheduler(optimizer, lr_lambda)


def StepLR(optimizer, step_size, gamma=0.1):
    """Times gamma every step_size steps."""
    return Scheduler(optimizer, staircase(step_size, gamma))


def ExponentialLR(optimizer, gamma):
    """Times gamma every step."""
    return Scheduler(optimizer, exponential(gamma))


def CosineAnnealingLR(optimizer, T_max, eta_min=0.0):
    """Down to eta_min, of the first group, up to step T_max."""
    return Scheduler(optimizer, cosine(T_max, eta_min / optimizer.lr))


def OneCycleLR(optimizer, max_lr, total_steps, pct_start=0.3, div_factor=25.0, final_div_factor=1e4, *,
               cycle_momentum=True, base_momentum=0.85, max_momentum=0.95):
    """Up from max_lr / div_factor to max_lr in the first pct_start of the steps, then down to almost nothing.

    With cycle_momentum the momentum, or beta1, goes from max_momentum down to base_momentum and up again."""
    option = "beta1" if "beta1" in optimizer.defaults else "momentum"
    rate = one_cycle(total_steps, pct_start, div_factor, final_div_factor)
    up_and_down = one_cycle(total_steps, pct_start, math.inf, 1.0)

    def factor(step):
        for group in optimizer.param_groups:
            group[option] = max_momentum + (base_momentum - max_momentum) * up_and_down(step)
        return rate(step)

    optimizer.lr = max_lr
    return Scheduler(optimizer, factor if cycle_momentum else rate)
