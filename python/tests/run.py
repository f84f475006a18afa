"""Runs all tests of this folder. What is skipped is said in lines that `./weft test` counts.

run.py MODULES [PATTERN]: optional modules (numpy, ml_dtypes) are looked for in MODULES, too."""

import os
import sys
import unittest

sys.path.append(sys.argv[1])
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
pattern = sys.argv[2] if len(sys.argv) > 2 else "test_*.py"
suite = unittest.defaultTestLoader.discover(here, pattern)
result = unittest.TextTestRunner(verbosity=1).run(suite)
for test, reason in result.skipped:
    print(f"SKIPPED: {reason}")
sys.exit(0 if result.wasSuccessful() and result.testsRun > len(result.skipped) else 1)
