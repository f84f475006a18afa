"""Collectives among ranks that mpirun, torchrun or srun has started.

    with dist.join() as world:                             # an exception here tells the other ranks
        world.all_reduce(gradients, "mean")
        work = world.all_reduce(more, async_op=True)       # begins at once
        work.wait()"""

from weft._weft.dist import *  # noqa: F401, F403
