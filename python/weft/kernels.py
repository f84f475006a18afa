"""The kernels' variants, and one's own.

    kernels.variants("softmax")                            # rows as dicts, best first
    with kernels.use("gemm", "gemm_cpu_eigen"):            # that variant, in all threads
        y = a @ b
    with kernels.packed_weights(), autograd.no_grad():     # products keep the weights in a layout of their own
        logits = model(images)
    kernels.load("mine.cc", op="softmax")                  # compiled; every softmax that it fits takes it from now on
    kernels.check("softmax", "mine")                       # its cases' results as dicts"""

import json
import os
import re
import subprocess
import tempfile

from weft._weft import Error
from weft._weft import kernels as _kernels
from weft.autograd import _Scope


def variants(op=None):
    """The rows of an op's list, or of all ops': dicts of op, name, device, dtypes and condition."""
    rows = [row for row in _kernels.variants() if op in (None, row["op"])]
    if not rows:
        raise Error(f"variants: no op {op!r}; known are {', '.join(sorted({r['op'] for r in _kernels.variants()}))}")
    return rows


class use(_Scope):
    """Dispatch takes this variant of the op. Problems that it does not fit are errors."""

    def __init__(self, op, variant):
        known = [row["name"] for row in variants(op)]
        if variant not in known:
            raise Error(f"use: {op} has no variant {variant!r}; known are {', '.join(known)}")
        super().__init__(_kernels._ForcedVariant(op, variant))


class packed_weights(_Scope):
    """Products on the CPU keep the weights that they meet again, unchanged, in the layout that they read best: as much memory
    as these weights, for 4 to 9% of a product's time. The bits are the same. For inference."""

    def __init__(self):
        super().__init__(_kernels._PackedWeights())


_files = {}  # of what was loaded, by the variant's name

# The line that makes a source a plugin: its op, its name and its device.
_LINE = re.compile(r"^\s*WEFT_PLUGIN\(\s*(\w+)\s*,\s*(\w+)\s*,\s*(\w+)\s*,", re.MULTILINE)


def _source_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(cache, "weft", "sources")
    os.makedirs(folder, exist_ok=True)
    return folder


def _write(source):
    """A text as a file that is named by its variant: loaded again it takes its own place."""
    line = _LINE.search(source)
    if line is None:
        raise Error("load: the source has no line WEFT_PLUGIN(op, name, device, dtypes, fits)")
    file = os.path.join(_source_folder(), line[2] + (".cu" if line[3] == "cuda" else ".cc"))
    with tempfile.NamedTemporaryFile("w", dir=_source_folder(), delete=False) as written:
        written.write(source)
    os.replace(written.name, file)
    return file


def load(source_or_file, op=None):
    """Compiles a variant and puts it at the head of its op's list; returns its name.

    A file (.cc, .cu or .so), or the text of one, with a line WEFT_PLUGIN(op, name, device, dtypes, fits) as
    docs/add-a-kernel.md shows. op: the one that it should add to. Loaded again after an edit it takes its own place. What
    the compiler says of an error is in the Error. Without a GPU a CUDA kernel is known to check() alone."""
    source_or_file = os.fspath(source_or_file)
    file = _write(source_or_file) if "\n" in source_or_file else os.path.abspath(source_or_file)
    line = None
    if not file.endswith(".so") and os.path.isfile(file):
        with open(file) as source:
            line = _LINE.search(source.read())
    if line is not None:
        _expect(op, line[1], file)
    if line is not None and line[3] == "cuda" and _kernels._device_count() == 0:
        _files[line[2]] = file
        return line[2]
    found, name = _kernels._load(file)
    if not name:
        raise Error(f"load: {file} brings an op of its own, {found}, which nothing calls")
    _expect(op, found, file)
    variants(found)  # an Error where its name is taken
    _files[name] = file
    return name


def _expect(op, found, file):
    if op not in (None, found):
        raise Error(f"load: {file} adds a variant to {found}, not to {op}")


def _program():
    """The words that start the program weft."""
    given = os.environ.get("WEFT_PROGRAM")
    if given:
        return given.split()
    include, root = _kernels._plugin_home()
    program = os.path.join(root, "weft") if root else os.path.join(os.path.dirname(include), "bin", "weft")
    if not os.path.exists(program):
        raise Error(f"check: there is no program weft at {program}: set WEFT_PROGRAM to one")
    return [program]


def _full_name(op, name):
    names = [row["name"] for row in variants(op)]
    names += [known for known in _files if known.startswith(op + "_") and known not in names]
    if name in names:
        return name
    found = [known for known in names if known.endswith("_" + name)]
    if len(found) != 1:
        raise Error(f"check: {op} has no variant {name!r}; known are {', '.join(names)}")
    return found[0]


def check(op, variant=None, case=None, small=False):
    """Takes a variant through its op's cases, or all variants if none is named: a dict for each case and variant, of op,
    variant, dtype, case, passed, max_error, bound and, where it did not pass, failure.

    variant: a name, or the end of one that is the only such. That of load() is compiled and run in a process of its own,
    a CUDA kernel on the emulated GPU: a failure names the thread, the block and the line of a race, of an access out of
    bounds and of a missing barrier. small: without the cases that are timed, too."""
    words = [*_program(), "kernels", "check", op, "--json"]
    if variant is not None:
        name = _full_name(op, variant)
        words += ["--plugin", _files[name]] if name in _files else ["--variant", name]
    else:
        variants(op)
    words += ["--small"] * small + (["--case", case] if case is not None else [])
    run = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"op"')]
    if not rows:
        raise Error(f"check: {' '.join(words)} checked nothing: {(run.stderr or run.stdout).strip()}")
    return rows
