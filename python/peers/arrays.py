"""Memory shared with other libraries, in every dtype that both sides have: NumPy, PyTorch, JAX, array-api-strict.

For each library and dtype, shapes from none to three dimensions, zero sizes among them, and views with gaps go over and
back, through both versions of DLPack's struct where the library speaks them. Checked are the values, the shape, that the
memory is shared, that it outlives its first owner, and that what is read-only stays so."""

import gc
import importlib
import os
import sys

import weft

DTYPES = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 uint8 bool".split()
os.environ.setdefault("JAX_ENABLE_X64", "1")  # else JAX has no dtypes of 64 bits
SHAPES = ((), (1,), (0,), (5,), (3, 0), (2, 3), (4, 1, 2))
# Of the first element.
ADDRESSES = {
    "numpy": lambda a: a.__array_interface__["data"][0],
    "torch": lambda a: a.data_ptr(),
    "jax.numpy": lambda a: a.unsafe_buffer_pointer(),
}


class Old:
    """A tensor whose producer speaks DLPack's first struct alone, as before 2024."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Library:
    def __init__(self, name):
        self.name, self.module = name, importlib.import_module(name)
        self.counts = {"passed": 0, "failed": 0}
        self.without = []

    def dtype(self, name):
        """Its own, or None."""
        if self.name == "numpy" and (name.startswith("float8") or name == "bfloat16"):
            try:
                return getattr(importlib.import_module("ml_dtypes"), name)
            except ImportError:
                return None
        if self.name == "numpy" and name == "bool":
            return self.module.bool_
        return getattr(self.module, "bool_" if name == "bool" and self.name == "jax.numpy" else name, None)

    def from_dlpack(self, x):
        source = importlib.import_module("jax.dlpack") if self.name == "jax.numpy" else self.module
        return source.from_dlpack(x)

    def expect(self, what, good):
        self.counts["passed" if good else "failed"] += 1
        if not good:
            print(f"FAILED {self.name}: {what}")

    def attempt(self, what, f):
        try:
            good = f()
        except Exception as error:
            good, what = False, f"{what}: {type(error).__name__}: {error}"
        self.expect(what, good)

    def run(self):
        for name in DTYPES:
            dtype = self.dtype(name)
            if dtype is None:
                self.without.append(name)
                continue
            for shape in SHAPES:
                for form in ("whole", "view", "old"):
                    where = f"{name} {shape} {form}"
                    self.attempt("from Weft, " + where, lambda: self.check_from_weft(name, dtype, shape, form))
                    self.attempt("to Weft, " + where, lambda: self.check_to_weft(name, dtype, shape, form))
            self.attempt(f"read-only {name}", lambda: self.check_read_only(name, dtype))

    @staticmethod
    def tensor(name, shape, form):
        count = 1
        for size in shape:
            count *= size
        x = (weft.arange(count) % 2).reshape(shape).to(dtype=getattr(weft, name))
        return x.transpose(0, -1) if form == "view" and len(shape) > 1 else x

    @staticmethod
    def values(x):
        return weft.from_dlpack(x).to(dtype=weft.float64).tolist() if not isinstance(x, weft.Tensor) else x.to(
            dtype=weft.float64
        ).tolist()

    def import_weft(self, x, form, dtype):
        if self.name == "numpy" and dtype not in (self.module.bool_,) and "ml_dtypes" in getattr(dtype, "__module__", ""):
            return x.numpy()  # DLPack's codes for these are none of NumPy's
        return self.from_dlpack(Old(x) if form == "old" else x)

    def check_from_weft(self, name, dtype, shape, form):
        x = self.tensor(name, shape, form)
        want = self.values(x)
        try:
            theirs = self.import_weft(x, form, dtype)
        except (TypeError, BufferError, ValueError) if form == "old" else ():
            return True  # it asks for the newer struct
        if tuple(theirs.shape) != tuple(x.shape):
            return False
        if x.numel() and self.name in ADDRESSES and ADDRESSES[self.name](theirs) != x.data_ptr():
            return False
        del x
        gc.collect()
        weft.full((64, 1024), 7.0)  # another would take freed memory
        back = weft.as_tensor(theirs) if self.name == "numpy" else weft.from_dlpack(theirs)
        return self.values(back) == want

    def check_to_weft(self, name, dtype, shape, form):
        source = self.tensor(name, shape, "whole")
        theirs = self.import_weft(source, "whole", dtype)
        theirs = theirs.clone() if self.name == "torch" else theirs.copy() if self.name == "numpy" else theirs + 0 if (
            name != "bool" and self.name != "array_api_strict"
        ) else theirs
        if form == "view" and theirs.ndim == 2:
            theirs = theirs.T
        want = self.values(source.transpose(0, 1) if form == "view" and len(shape) == 2 else source)
        x = weft.as_tensor(theirs) if self.name == "numpy" else weft.from_dlpack(Old(theirs) if form == "old" else theirs)
        same = x.dtype == getattr(weft, name) and tuple(x.shape) == tuple(theirs.shape)
        del theirs, source
        gc.collect()
        weft.full((64, 1024), 7.0)
        return same and self.values(x) == want

    def check_read_only(self, name, dtype):
        if self.name != "numpy":
            return True
        theirs = self.tensor(name, (3,), "whole").numpy().copy()
        theirs.flags.writeable = False
        x = weft.as_tensor(theirs)
        try:
            x.fill_(1)
        except weft.Error:
            return x.is_read_only and not x.numpy().flags.writeable
        return False


def main():
    failed = 0
    for name in ("numpy", "torch", "jax.numpy", "array_api_strict"):
        try:
            library = Library(name)
        except ImportError:
            print(f"SKIPPED: {name} is not installed")
            continue
        library.run()
        version = getattr(sys.modules[name.partition(".")[0]], "__version__", "?")
        without = f"; it has no {', '.join(library.without)}" if library.without else ""
        print(f"{name} {version}: {library.counts['passed']} passed, {library.counts['failed']} failed{without}")
        failed += library.counts["failed"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
