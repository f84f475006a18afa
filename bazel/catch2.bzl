"""The repository @catch2: Catch2 2, or Catch2 3 under the names of 2 (bazel/system/catch2_v3.h).

CATCH2.main are the sources of its main, CATCH2.deps and CATCH2.linkopts what to link.
"""

load("//bazel:compiler.bzl", "compiler_finds")

_BUILD = """
cc_library(
    name = "catch2",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _catch2_impl(context):
    main, deps, linkopts = ["catch_main.cc"], [], []
    if not compiler_finds(context, "catch2/catch.hpp"):
        main, deps, linkopts = [], ["@catch2"], ["-lCatch2Main", "-lCatch2"]
        context.symlink(Label("//bazel/system:catch2_v3.h"), "include/catch2/catch.hpp")
    context.file("BUILD", _BUILD)
    context.file("catch2.bzl", "CATCH2 = struct(main = %r, deps = %r, linkopts = %r)\n" % (main, deps, linkopts))

catch2 = repository_rule(
    implementation = _catch2_impl,
    environ = ["CC", "CPATH", "PATH"],
    local = True,
)
