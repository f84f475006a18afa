"""What the compiler of this machine finds."""

def compiler_finds(context, header):
    """Whether the compiler, as Bazel will call it, finds <header>. For implementations of repository rules."""
    command = "echo '#include <%s>' | ${CC:-cc} -E -x c++ - >/dev/null" % header
    return context.execute(["sh", "-c", command]).return_code == 0
