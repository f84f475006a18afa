"""The commands of weft, one line each, in the order of its help, and programs that hold them."""

load("//bazel:weft.bzl", "HOST_ONLY", "PLUGIN_HOST_LINKOPTS", "weft_cc_binary", "weft_cc_library")

# A command NAME is a library that defines add_NAME (cli/command.h).
COMMANDS = {
    "train": "//cli:train",
    "study": "//cli/study",
    "config": "//cli:config",
    "report": "//cli:report",
    "eval": "//cli:eval",
    "predict": "//cli:predict",
    "generate": "//cli:generate",
    "images": "//cli:images",
    "inspect": "//cli:inspect",
    "diff": "//cli:diff",
    "bench": "//cli/bench",
    "profile": "//cli/step:profile",
    "torture": "//cli/torture",
    "compare": "//cli/compare",
    "kernels": "//cli/kernels",
    "devices": "//cli:devices",
    "launch": "//cli:launch",
    "estimate": "//cli/step:estimate",
    "plan": "//cli/plan",
    "numerics": "//cli/numerics",
    "convert": "//cli:convert",
    "consolidate": "//cli:consolidate",
}

def weft_program(name, commands, **kwargs):
    """A weft with these commands alone, which builds nothing of the others; NAME_emulated has the emulated GPU, too."""
    lines = (
        ["#include \"cli/commands.h\"", "", "namespace weft::cli {", ""] +
        ["void add_%s(io::Command& app, Action& action);" % command for command in commands] +
        ["", "std::vector<AddCommand> commands() {"] +
        ["  return {%s};" % ", ".join(["add_" + command for command in commands])] +
        ["}", "", "}  // namespace weft::cli"]
    )
    native.genrule(
        name = name + "_commands",
        outs = [name + "_commands.cc"],
        cmd = "cat > $@ <<'END'\n%s\nEND" % "\n".join(lines),
    )
    weft_cc_library(
        name = name + "_table",
        srcs = [name + "_commands.cc"],
        # :main asks for what the table defines, and stands after it in the link.
        alwayslink = True,
        optimize = "-O1",
        visibility = ["//tests/fuzz:__pkg__"],
        deps = [":command"] + [COMMANDS[command] for command in commands],
    )
    weft_cc_binary(
        name = name,
        linkopts = PLUGIN_HOST_LINKOPTS,
        deps = [
            ":%s_table" % name,
            ":main",
        ],
        **kwargs
    )
    weft_cc_binary(
        name = name + "_emulated",
        linkopts = PLUGIN_HOST_LINKOPTS,
        tags = ["manual"],
        target_compatible_with = HOST_ONLY,
        deps = [
            ":%s_table" % name,
            ":main",
            "//kernels:emulated",
        ],
    )
