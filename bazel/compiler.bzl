"""What the compiler of this machine finds."""

def compiler_finds(context, header):
    """Whether the compiler, as Bazel will call it, finds <header>. For implementations of repository rules."""

    # MPI's own classes for C++, which nobody needs, lie elsewhere.
    options = "-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX -E -x c++ -std=c++20"
    command = "echo '#include <%s>' | ${CC:-cc} %s - >/dev/null" % (header, options)
    return context.execute(["sh", "-c", command]).return_code == 0
