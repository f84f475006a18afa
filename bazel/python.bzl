"""The repository @python3: Python's headers and nanobind's sources, or empty targets where one of them is missing.

python3 is $WEFT_PYTHON, which `./weft python` sets (.weft/python.bazelrc), else the first on the PATH. nanobind is
looked for in .weft/python-X.Y, where `./weft python` puts it, and among the modules of that python3.
"""

_PROBE = """
import importlib.util, os, sys, sysconfig
sys.path.append(sys.argv[1] + "/.weft/python-%d.%d" % sys.version_info[:2])
include = sysconfig.get_paths()["include"]
nanobind = importlib.util.find_spec("nanobind")
print(include if os.path.exists(include + "/Python.h") else "")
print(os.path.dirname(nanobind.origin) if nanobind and nanobind.origin else "")
print(sys.path[-1])
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "nanobind",
    srcs = ["nanobind/src/nb_combined.cpp"],
    hdrs = glob(["include/**", "nanobind/include/**"]),
    textual_hdrs = glob(["nanobind/src/*", "nanobind/ext/**"]),
    copts = ["-std=c++17", "-O2", "-fvisibility=hidden", "-fno-strict-aliasing", "-DNDEBUG", "-w"],
    includes = ["include", "nanobind/ext/robin_map/include", "nanobind/include"],
    linkstatic = True,
)
"""

_EMPTY_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "nanobind",
    target_compatible_with = ["@platforms//:incompatible"],
)
"""

def _find(context):
    """(python3, its headers, nanobind, the folder of optional modules, what is missing)."""
    python = context.os.environ.get("WEFT_PYTHON") or context.which("python3")
    if not python:
        return "", "", "", "", "python3"
    root = context.path(Label("//:WORKSPACE")).realpath.dirname
    probe = context.execute([python, "-c", _PROBE, str(root)])
    if probe.return_code != 0:
        return str(python), "", "", "", "a python3 that runs"
    headers, nanobind, modules = (probe.stdout.split("\n") + ["", ""])[:3]
    missing = [what for what, path in [("Python.h", headers), ("nanobind", nanobind)] if not path]
    return str(python), headers, nanobind, modules, " and ".join(missing)

def _python_impl(context):
    python, headers, nanobind, modules, missing = _find(context)
    if not missing:
        context.symlink(headers, "include")
        context.symlink(nanobind, "nanobind")
    context.file("BUILD", _EMPTY_BUILD if missing else _BUILD)
    context.file("python.bzl", "PYTHON = %r\nMODULES = %r\nMISSING = %r\n" % (python, modules, missing))

python = repository_rule(
    implementation = _python_impl,
    environ = ["WEFT_PYTHON", "PATH"],
    local = True,
)
