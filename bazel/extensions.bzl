"""For MODULE.bazel: the repositories that are made of what this machine has."""

load("//bazel:catch2.bzl", "catch2")
load("//bazel:cuda_toolkit.bzl", "cuda_toolkit")
load("//bazel:mpi.bzl", "mpi")
load("//bazel:python.bzl", "python")

def _system_impl(_context):
    catch2(name = "catch2")
    cuda_toolkit(name = "cuda")
    mpi(name = "mpi")
    python(name = "python3")

system = module_extension(implementation = _system_impl)
