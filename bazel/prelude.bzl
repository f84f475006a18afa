"""prelude: a header that is included before every source, compiled beforehand.

Parsing the standard library's headers and fmt's takes half a second of each source, most of the time of a small one. GCC
takes a compiled header where its options allow (GCC manual, "Using Precompiled Headers"), and where they do not, the text.
Clang, the sanitizers' compiler, looks for it beside the header as it is named, not among the folders of -I, and wants the
file that was compiled to be where it was then: so that is its standard input.

The compiled header keeps the level of optimisation it was made with, and functions below a `#pragma GCC target` (the
kernels of core/simd/targets_inl.h) are compiled at that one, whatever the command line says: -O2 does not vectorise
them. So sources of -O3 have a header of their own; //kernels/elementwise:vectors_test looks at what came of it."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

_ROOT = Label("//bazel:prelude.h").workspace_root

def prelude_of(optimize):
    """The label's name of the prelude of sources with this option."""
    return {"-O0": "prelude_O0", "-O3": "prelude_O3"}.get(optimize, "prelude_O2")

def include_prelude(optimize, is_clang = False):
    header = "bazel/weft_%s.h" % prelude_of(optimize)
    return ["-include", "/".join(["$(BINDIR)"] + ([_ROOT] if _ROOT else []) + [header]) if is_clang else header]

def _prelude_impl(ctx):
    # In the outputs, not among the sources, where the compiler would find it first, without what was compiled.
    header = ctx.actions.declare_file("weft_%s.h" % ctx.label.name)
    compiled = ctx.actions.declare_file(header.basename + ".gch")
    ctx.actions.expand_template(template = ctx.file.header, output = header, substitutions = {})

    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = "-" if ctx.attr.is_clang else header.path,
        output_file = compiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + [
            "-x",
            "c++-header",
            "-w",  # #pragma once in a main file
        ] + (["-Xclang", "-fno-pch-timestamp"] if ctx.attr.is_clang else []),
        use_pic = True,
    )
    compiler = cc_common.get_tool_for_action(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME)
    options = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    )
    action = dict(
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrelude",
        progress_message = "Compiling the standard library's headers",
    )
    if ctx.attr.is_clang:
        ctx.actions.run_shell(command = '"$@" <' + header.path, arguments = [compiler] + options, **action)
    else:
        ctx.actions.run(executable = compiler, arguments = options, **action)
    return [
        DefaultInfo(files = depset([header])),
        CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset([header, compiled]),
            quote_includes = depset([ctx.bin_dir.path + (("/" + ctx.label.workspace_root) if ctx.label.workspace_root else "")]),
        )),
    ]

prelude = rule(
    implementation = _prelude_impl,
    attrs = {
        "copts": attr.string_list(doc = "those of the sources"),
        "header": attr.label(allow_single_file = [".h"]),
        "is_clang": attr.bool(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
