"""The repository @mpi: the MPI of this machine, Open MPI or MPICH, or none.

MPICC, where it is set, is the compiler that is asked, or "no". Otherwise <mpi/mpi.h> is taken where the compiler finds
it, as on Debian, and else mpicc is asked.
MPI.found says whether there is one, MPI.deps and MPI.linkopts what to link.
"""

load("//bazel:compiler.bzl", "compiler_finds")

_BUILD = """
cc_library(
    name = "mpi",
    hdrs = glob(["include/**/*.h"], allow_empty = True),
    includes = ["include", "include/mpi"],
    visibility = ["//visibility:public"],
)
"""

def _ask(context, mpicc):
    """(folder of mpi.h, options for the linker), as `mpicc -show` says; None where it does not."""
    path = context.path(mpicc) if "/" in mpicc else context.which(mpicc)
    if not path or not path.exists:
        return None
    words = context.execute([path, "-show"]).stdout.strip().split(" ")
    linkopts = [word for word in words if word[:2] in ["-L", "-l"] or word.startswith("-Wl,")]
    for folder in [word[2:] for word in words if word.startswith("-I")] + ["/usr/include"]:
        if context.path(folder).get_child("mpi.h").exists:
            return folder, linkopts
    return None

def _mpi_impl(context):
    mpicc = context.os.environ.get("MPICC", "")
    found, deps, linkopts = False, [], []
    if not mpicc and compiler_finds(context, "mpi/mpi.h"):
        found, linkopts = True, ["-lmpi"]
    elif mpicc != "no":
        answer = _ask(context, mpicc or "mpicc")
        if answer:
            found, deps, linkopts = True, ["@mpi"], answer[1]
            context.symlink(answer[0], "include/mpi")
        elif mpicc:
            fail("MPICC=%s: there is no such compiler of MPI's, or it names no folder of mpi.h" % mpicc)
    context.file("BUILD", _BUILD)
    context.file("mpi.bzl", "MPI = struct(found = %r, deps = %r, linkopts = %r)\n" % (found, deps, linkopts))

mpi = repository_rule(
    implementation = _mpi_impl,
    environ = ["CC", "CPATH", "MPICC", "PATH"],
    local = True,
)
