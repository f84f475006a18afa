"""Docstrings: of every public function, and made of the headers' comments."""

import inspect
import pydoc
import re
import unittest

import weft

PARTS = (weft, weft.nn, weft.nn.functional, weft.nn.init, weft.optim, weft.optim.lr_scheduler, weft.amp)
# Python's own protocols, whose meaning Python's manual tells.
CLASSES = (weft.Tensor, weft.nn.Module, weft.optim.Optimizer, weft.amp.GradScaler)


def is_documented(thing):
    """Whether the docstring has more than the signatures that nanobind puts first."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    signature = re.compile(rf"{getattr(thing, '__name__', '')}\(|\d+\. ``|Overloaded function")
    return any(line and not signature.match(line) for line in lines)


def public(place):
    for name in dir(place):
        thing = getattr(place, name)
        if not name.startswith("_") and callable(thing) and not isinstance(thing, weft.dtype):
            yield name, thing


class Docs(unittest.TestCase):
    def test_every_function_has_some(self):
        bare = [
            f"{place.__name__}.{name}" for place in PARTS + CLASSES for name, thing in public(place)
            if not is_documented(thing)
        ]
        self.assertEqual(bare, [])

    def test_headers_say_it(self):
        text = " ".join(pydoc.render_doc(weft.softmax, renderer=pydoc.plaintext).split())
        self.assertIn("exp(x) / sum exp(x) along dim, of x's shape", text)
        self.assertIn("Error where x has no such dimension", text)
        for function in (weft.nn.functional.scaled_dot_product_attention, weft.nn.functional.conv2d, weft.matmul):
            self.assertIn("[", function.__doc__.partition("\n\n")[2], "shapes")
            self.assertIn("Error where", " ".join(function.__doc__.split()))
        self.assertIn("x W^T + b: weight [out, in], bias [out].", weft.nn.Linear.__doc__)
        # By their names in Python.
        self.assertIn("(sorted, int64 places in x) along dim.", weft.sort.__doc__)
        self.assertIn("int64 [n, dims]", weft.nonzero.__doc__)


if __name__ == "__main__":
    unittest.main()
