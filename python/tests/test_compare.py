"""weft.compare: results first, then times in turns."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

import weft
from optional import needs_numpy, needs_torch
from optional import numpy as np
from weft import compare


class Run(unittest.TestCase):
    def test_figures_and_turns(self):
        order = []

        def slow(x):
            order.append("slow")
            time.sleep(0.004)
            return x * 2

        def quick(x):
            order.append("quick")
            time.sleep(0.001)
            return x + x

        rows = compare.run({"quick": quick, "slow": slow}, weft.arange(4.0), pairs=3, seconds=0.02)
        self.assertEqual([row["name"] for row in rows], ["quick", "slow"])
        self.assertEqual([len(row["seconds"]) for row in rows], [3, 3])
        self.assertEqual((rows[0]["ratio"], rows[0]["distance"], rows[1]["distance"]), (1, 0, 0))
        self.assertGreater(rows[0]["median"], 0.001)
        self.assertGreater(rows[1]["ratio"], 1.2)
        # quick before slow in the results, the warm-up and each of three turns.
        self.assertEqual(sum(a != b for a, b in zip(order, order[1:])), 2 * 5 - 1)
        self.assertRegex(str(rows), r"function +median +\+- +ratio +distance\nquick +[\d.]+ ms +\d+% +1.00 +0.0e\+00\nslow ")

    def test_results_are_compared_first(self):
        x = weft.tensor([1.0, float("nan"), float("inf"), -4.0])
        near = {"one": lambda: x, "two": lambda: x * 1.00001}
        with self.assertRaisesRegex(weft.Error, r"two is 1e-05 away from one, .* the bound is 1e-06"):
            compare.run(near, bound=1e-6)
        self.assertAlmostEqual(compare.run(near, bound=1e-4, pairs=1, seconds=0)[1]["distance"], 1e-5, delta=1e-6)
        for functions, message in (
            ({"one": lambda: x}, "two or more functions, got 1: one"),
            ({"one": lambda: x, "two": 3}, "two is no function but int"),
            ({"one": lambda: x, "two": lambda: x[:2]}, r"two gives \(2,\), one \(4,\)"),
            ({"one": lambda: x, "two": lambda: (x, x)}, "two gives 2 results, one 1"),
            ({"one": lambda: x, "two": lambda: weft.zeros(4)}, "two is inf away from one"),
        ):
            with self.assertRaisesRegex(weft.Error, message):
                compare.run(functions)
        with self.assertRaisesRegex(weft.Error, "convert names three"):
            compare.run(near, convert={"three": abs})

    @needs_numpy
    def test_libraries_beside_each_other(self):
        x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
        rows = compare.run(
            {"numpy": lambda x: (np.exp(x), x.sum(1)), "weft": lambda x: [x.exp(), x.sum(1)]},
            inputs=lambda: x, convert={"weft": weft.from_numpy}, pairs=1, seconds=0,
        )
        self.assertLess(rows[1]["distance"], 1e-6)

    @needs_torch
    def test_beside_torch(self):
        import torch

        x = torch.randn(4, 8, dtype=torch.bfloat16, requires_grad=True)
        rows = compare.run(
            {"torch": lambda x: x.softmax(-1), "weft": lambda x: x.softmax(-1)},
            x, convert={"weft": lambda x: weft.from_dlpack(x.detach())}, bound=0.01, pairs=1, seconds=0,
        )
        self.assertLess(rows[1]["distance"], 0.01)


class File(unittest.TestCase):
    def run_file(self, text, *words):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "case.py")
            with open(path, "w") as file:
                file.write(text)
            return subprocess.run(
                [sys.executable, "-m", "weft.compare", path, *words],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
            )

    CASE = """
import weft
inputs = (weft.arange(6.0), 2.0)
functions = {"mul": lambda x, a: x * a, "add": lambda x, a: x + x}
"""

    def test_a_table_and_json(self):
        run = self.run_file(self.CASE, "--pairs", "2", "--seconds", "0.01")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertRegex(run.stdout, r"function .*\nmul .*\nadd .*\n\n2 turns; ratio: to mul")
        result = json.loads(self.run_file(self.CASE, "--pairs", "2", "--seconds", "0", "--json").stdout)
        self.assertEqual((result["pairs"], [f["name"] for f in result["functions"]]), (2, ["mul", "add"]))

    def test_mistakes(self):
        for text, code, message in (
            ("functions = 3", 1, "defines no dict of functions"),
            (self.CASE.replace("x + x", "x"), 1, "add is 0.5 away from mul"),
            ("import no_such_module", 2, "No module named 'no_such_module'"),
        ):
            run = self.run_file(text)
            self.assertEqual(run.returncode, code, run.stderr)
            self.assertRegex(run.stderr, "^weft: error: .*" + message + ".*\n$")


if __name__ == "__main__":
    unittest.main()
