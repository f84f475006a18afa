"""The notebooks of examples/, cell by cell."""

import glob
import json
import os
import subprocess
import sys
import unittest

from optional import torch

FOLDER = "examples"


def run(path):
    """Runs a notebook's cells in one namespace; their errors name the cell."""
    with open(path) as file:
        notebook = json.load(file)
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{os.path.basename(path)}, cell {number}", "exec"), names)


class Notebooks(unittest.TestCase):
    def test_every_one(self):
        paths = sorted(glob.glob(os.path.join(FOLDER, "*.ipynb")))
        self.assertEqual(len(paths), 3)
        for path in paths:
            with self.subTest(notebook=path), open(path) as file:
                text = file.read()
                if "import torch" in text and not torch:
                    print("SKIPPED: Python's torch is not installed, for " + path)
                    continue
                self.assertNotIn('"output_type"', text, "a notebook is kept without outputs")
                # Of its own each: what one loads stays.
                done = subprocess.run(
                    [sys.executable, __file__, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200
                )
                self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    run(sys.argv[1])
