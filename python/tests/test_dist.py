"""Collectives among processes, started as torchrun and mpirun start them."""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

import weft
from weft import dist

PROGRAM = """
import sys
import weft
from weft import dist

assert dist.is_rank()
with dist.join() as world:
    rank, size = world.rank, world.size
    x = weft.full((3,), float(rank + 1))
    assert world.all_reduce(x) is None
    assert x.tolist() == [size * (size + 1) / 2] * 3, x
    x.fill_(rank)
    work = world.all_reduce(x, "max", async_op=True)
    work.wait()
    assert work.is_completed() and x.tolist() == [size - 1] * 3, x
    y = weft.tensor([rank, 10], dtype=weft.int64)
    world.broadcast(y, root=1)
    assert y.tolist() == [1, 10], y
    assert world.all_gather(weft.tensor([[rank, -rank]]).T).tolist() == [[[r], [-r]] for r in range(size)]
    parts = world.reduce_scatter(weft.arange(2.0 * size).reshape(2 * size, 1), "mean")
    assert parts.tolist() == [[2.0 * rank], [2.0 * rank + 1]], parts
    assert world.all_to_all(weft.arange(size) + 10 * rank).tolist() == [10 * r + rank for r in range(size)]
    if rank == 0:
        world.send(weft.tensor([7.0], dtype=weft.bfloat16), 1)
    elif rank == 1:
        z = weft.zeros(1, dtype=weft.bfloat16)
        world.recv(z, 0)
        assert z.item() == 7, z
    last = world.group([size - 1, 0], "ends") if rank in (0, size - 1) else None
    if last:
        assert (last.rank, last.size) == (0 if rank == size - 1 else 1, 2)
        last.barrier()
    for mistake, message in (
        (lambda: world.all_reduce(x, "median"), "a reduction is sum, mean, max or min"),
        (lambda: world.reduce_scatter(weft.zeros(size + 1)), "ranks divide"),
        (lambda: world.all_reduce(weft.zeros(2, 3).T), "contiguous"),
    ):
        try:
            mistake()
        except weft.Error as error:
            assert message in str(error), error
        else:
            raise AssertionError(message)
    world.barrier()
    if rank == 0:
        print("done", size)
    if sys.argv[1:] == ["fail"]:
        if rank == 1:
            raise ValueError("enough")
        try:
            world.barrier()
        except weft.Error as error:
            print("told:", "enough" in str(error))
            sys.stdout.flush()
            import os
            os._exit(3)
"""


class Processes(unittest.TestCase):
    def setUp(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
            file.write(PROGRAM)
        self.program = file.name
        self.addCleanup(os.remove, file.name)

    def ranks(self, size, *arguments):
        """As torchrun starts them; (exit status, standard output, standard error) of each."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = [
            subprocess.Popen(
                [sys.executable, self.program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank),
                         LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)),
            )
            for rank in range(size)
        ]
        try:
            said = [process.communicate(timeout=60) for process in processes]
            return [(process.returncode, *texts) for process, texts in zip(processes, said)]
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def test_as_torchrun_starts_them(self):
        results = self.ranks(3)
        self.assertEqual([code for code, _, _ in results], [0, 0, 0], results)
        self.assertEqual(results[0][1], "done 3\n")

    def test_an_exception_tells_the_others(self):
        results = self.ranks(2, "fail")
        self.assertEqual(results[0][:2], (3, "done 2\ntold: True\n"), results)
        self.assertIn("ValueError: enough", results[1][2])

    @unittest.skipUnless(dist.has_mpirun(), "mpirun is not installed")
    def test_under_mpirun(self):
        run = subprocess.run(
            [*dist.mpirun_command(2), sys.executable, self.program],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
        )
        self.assertEqual((run.returncode, run.stdout), (0, "done 2\n"), run.stderr)

    def test_alone(self):
        self.assertFalse(dist.is_rank())
        with self.assertRaises(weft.Error):
            dist.join()


if __name__ == "__main__":
    unittest.main()
