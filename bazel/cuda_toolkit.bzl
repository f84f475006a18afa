"""The repository @cuda: the CUDA toolkit of this machine, or empty targets where there is none.

nvcc is looked for in $CUDA_HOME/bin, on the PATH and in /usr/local/cuda/bin, in this order.
"""

_TOOLKIT_BUILD = """
package(default_visibility = ["//visibility:public"])

# The runtime, linked statically: a program built here starts on machines without CUDA.
cc_library(
    name = "runtime",
    srcs = ["lib64/libcudart_static.a"],
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**"]),
    includes = ["include"],
    linkopts = ["-ldl", "-lrt", "-pthread"],
)
"""

_EMPTY_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(name = "runtime")
"""

def _find_toolkit(context):
    homes = []
    if context.os.environ.get("CUDA_HOME"):
        homes.append(context.path(context.os.environ["CUDA_HOME"]))
    nvcc = context.which("nvcc")
    if nvcc:
        homes.append(nvcc.realpath.dirname.dirname)
    homes.append(context.path("/usr/local/cuda"))
    for home in homes:
        if home.get_child("bin").get_child("nvcc").exists:
            return home
    return None

def _cuda_toolkit_impl(context):
    home = _find_toolkit(context)
    nvcc, version = "", ""
    if home:
        nvcc = str(home.get_child("bin").get_child("nvcc"))
        version = context.execute([nvcc, "--version"]).stdout.strip().split("\n")[-1]
        context.symlink(home.get_child("include"), "include")
        context.symlink(home.get_child("lib64"), "lib64")
    context.file("BUILD", _TOOLKIT_BUILD if home else _EMPTY_BUILD)
    context.file("toolkit.bzl", "NVCC = %r\nNVCC_VERSION = %r\n" % (nvcc, version))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    environ = ["CUDA_HOME", "PATH"],
    local = True,
)
