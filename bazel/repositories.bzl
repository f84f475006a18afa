"""weft_repositories(): what Weft's own build needs, for a WORKSPACE of Weft's or of another repository.

    local_repository(name = "weft", path = "...")
    load("@weft//bazel:repositories.bzl", "weft_repositories")
    weft_repositories()
"""

load("//bazel:catch2.bzl", "catch2")
load("//bazel:cuda_toolkit.bzl", "cuda_toolkit")
load("//bazel:mpi.bzl", "mpi")

def _stand_in_impl(context):
    folder = context.path(Label("//bazel:repositories.bzl")).dirname.get_child("offline").get_child(context.attr.folder)
    for child in folder.readdir():
        context.symlink(child, child.basename)

_stand_in = repository_rule(
    doc = "An empty repository of bazel/offline, in the place of one that Bazel would fetch.",
    implementation = _stand_in_impl,
    attrs = {"folder": attr.string()},
)

def weft_repositories():
    # Bazel 4.2.3 would fetch these repositories from the network.
    for name in ["rules_cc", "remote_coverage_tools"]:
        _stand_in(name = name, folder = name)

    # Shipped by Debian's bazel-platforms, bazel-rules-java and bazel-rules-proto.
    native.local_repository(name = "platforms", path = "/usr/share/bazel/tools/platforms")
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_proto", path = "/usr/share/bazel/rules/proto")

    cuda_toolkit(name = "cuda")
    catch2(name = "catch2")
    mpi(name = "mpi")
