"""Modules that tests can do without: a test that needs one says so by a decorator."""

import importlib
import importlib.util
import unittest


def _import(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


numpy = _import("numpy")
ml_dtypes = _import("ml_dtypes") if numpy else None
torch = _import("torch")

needs_numpy = unittest.skipUnless(numpy, "Python's numpy is not installed")
needs_ml_dtypes = unittest.skipUnless(ml_dtypes, "Python's ml_dtypes is not installed")
needs_torch = unittest.skipUnless(torch, "Python's torch is not installed")
needs_transformers = unittest.skipUnless(
    torch and all(importlib.util.find_spec(name) for name in ("transformers", "safetensors")),
    "Python's torch, transformers and safetensors are not installed",
)
