"""Kernels of one's own from Python: compiled, used, checked."""

import os
import subprocess
import sys
import tempfile
import unittest

import weft
from weft import kernels

PLUGINS = os.path.join("tests", "plugins")


def _text(name):
    with open(os.path.join(PLUGINS, name)) as file:
        return file.read()


def _compiles():
    try:
        kernels._kernels._plugin_home()
    except weft.Error:
        return False
    return os.path.isdir(PLUGINS)


@unittest.skipUnless(_compiles(), "Weft's headers and tests/plugins are not near")
class Load(unittest.TestCase):
    """In a process of its own each: what is loaded stays."""

    def run_code(self, code):
        with tempfile.TemporaryDirectory() as cache:
            run = subprocess.run(
                [sys.executable, "-c", "import weft\nfrom weft import kernels\n" + code],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200,
                env=dict(os.environ, XDG_CACHE_HOME=cache, LC_ALL="C"),
            )
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout.splitlines()

    def test_a_source_is_used_replaced_and_refused(self):
        said = self.run_code(f"""
source = open({os.path.join(PLUGINS, "row_loop.cc")!r}).read()
x = weft.randn(4, 9)
y = x.softmax(-1)
print(kernels.load(source, op="softmax"))
print(*[row["name"] for row in kernels.variants("softmax")])
print((x.softmax(-1) - y).abs().max().item() < 1e-6, x.double().softmax(-1).dtype)
kernels.load(source.replace("y[i] /= sum", "y[i] = 3"))
print(x.softmax(-1)[0, :2].tolist(), len(kernels.variants("softmax")))
for bad, op in (
    (source.replace("float max", "flat max"), None),
    (source.replace("WEFT_PLUGIN(", "NO("), None),
    (source.replace("softmax_cpu_loop", "softmax_cpu_highway"), None),
    (source, "gemm"),
    ("/nowhere.cc", None),
):
    try:
        kernels.load(bad, op)
    except weft.Error as error:
        print(str(error).replace("\\n", " "))
print(x.softmax(-1)[0, :2].tolist())
""")
        self.assertEqual(said[0], "softmax_cpu_loop")
        self.assertEqual(said[1].split()[:2], ["softmax_cpu_loop", "softmax_cpu_highway"])
        self.assertEqual(said[2], "True weft.float64")
        self.assertEqual(said[3], "[3.0, 3.0] 2")
        self.assertRegex(said[4], "'flat' was not declared.*softmax_cpu_loop.cc does not compile")
        self.assertRegex(said[5], "no line WEFT_PLUGIN")
        self.assertRegex(said[6], "defines softmax_cpu_highway, which softmax has already")
        self.assertRegex(said[7], "adds a variant to softmax, not to gemm")
        self.assertRegex(said[8], "/nowhere.cc: there is no such plugin")
        self.assertEqual(said[9], "[3.0, 3.0]")

    @unittest.skipUnless(os.environ.get("WEFT_PROGRAM"), "no program weft is named by WEFT_PROGRAM")
    def test_checks_are_data_and_name_the_line_of_a_race(self):
        racing = _text("racing.cu")
        line = racing[: racing.index("// the race")].count("\n") + 1
        said = self.run_code(f"""
source = open({os.path.join(PLUGINS, "row_loop.cc")!r}).read()
kernels.load(source)
rows = kernels.check("softmax", "loop", small=True)
print(len(rows) > 3, all(row["passed"] and row["max_error"] <= row["bound"] for row in rows), rows[0]["variant"])
kernels.load(source.replace("y[i] /= sum", "y[i] = 3"))
failed = [row for row in kernels.check("softmax", "softmax_cpu_loop", small=True) if not row["passed"]]
print(len(failed) > 0, failed[0]["failure"])
rows = kernels.check("softmax", "cpu_highway", small=True)
print({{row["variant"] for row in rows}}, all(row["passed"] for row in rows))
print(kernels.load(open({os.path.join(PLUGINS, "racing.cu")!r}).read()))
print(next(row["failure"] for row in kernels.check("softmax", "racing", small=True) if not row["passed"]))
try:
    kernels.check("softmax", "mine")
except weft.Error as error:
    print(error)
""")
        self.assertEqual(said[0], "True True softmax_cpu_loop")
        self.assertRegex(said[1], "^True .*expected")
        self.assertEqual(said[2], "{'softmax_cpu_highway'} True")
        self.assertEqual(said[3], "softmax_cuda_racing")
        self.assertRegex(said[4], rf"race.*thread.*block.*softmax_cuda_racing.cu:{line}")
        self.assertRegex(said[5], "softmax has no variant 'mine'; known are softmax_cpu_loop, softmax_cpu_highway")


if __name__ == "__main__":
    unittest.main()
