"""What an installation is made of: one library, the headers of its public targets, and a list of files."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _unique(items):
    return {item: None for item in items}.keys()

def _one_library_impl(ctx):
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    archives, flags = [], []
    for linked in merged.linking_context.linker_inputs.to_list():
        archives += [library.pic_static_library or library.static_library for library in linked.libraries]
        flags += linked.user_link_flags
    archives, flags = _unique(archives), _unique(flags)

    output = ctx.actions.declare_file("lib%s.a" % ctx.label.name)
    script = ctx.actions.declare_file(ctx.label.name + ".ar")
    ctx.actions.write(
        script,
        "\n".join(["create " + output.path] + ["addlib " + archive.path for archive in archives] + ["save", "end", ""]),
    )
    toolchain = find_cpp_toolchain(ctx)
    ctx.actions.run_shell(
        command = "'%s' -M <'%s'" % (toolchain.ar_executable, script.path),
        inputs = depset(archives + [script], transitive = [toolchain.all_files]),
        outputs = [output],
        mnemonic = "OneLibrary",
        progress_message = "Joining the libraries in %s" % output.short_path,
    )
    needs = ctx.actions.declare_file(ctx.label.name + ".needs")
    ctx.actions.write(needs, "".join([flag + "\n" for flag in flags]))

    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    whole = cc_common.create_library_to_link(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        pic_static_library = output,
        alwayslink = True,
    )
    return [
        DefaultInfo(files = depset([output])),
        OutputGroupInfo(needs = depset([needs])),
        CcInfo(linking_context = cc_common.create_linking_context(
            linker_inputs = depset([cc_common.create_linker_input(
                owner = ctx.label,
                libraries = depset([whole]),
                user_link_flags = depset([flag for flag in flags]),
            )]),
        )),
    ]

one_library = rule(
    doc = """libNAME.a, which holds all that deps are linked of, but for the system's libraries.

    Linked, it comes as a whole. The output group `needs` is a file of the linker's options for the system's libraries,
    one a line.""",
    implementation = _one_library_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

_PublicHeaders = provider(fields = ["files"])

def _public_headers_of_impl(target, ctx):
    own = [
        file
        for attribute in ["hdrs", "textual_hdrs"]
        for file in getattr(ctx.rule.files, attribute, [])
        # What speaks of cuDNN's graphs is for the variants that call it.
        if file.extension in ["h", "inc", "cuh"] and not file.short_path.startswith("../") and
           not file.basename.endswith("_cudnn_graph.h")
    ]
    deps = [dep[_PublicHeaders].files for dep in getattr(ctx.rule.attr, "deps", []) if _PublicHeaders in dep]
    return [_PublicHeaders(files = depset(own, transitive = deps))]

_public_headers_of = aspect(
    implementation = _public_headers_of_impl,
    attr_aspects = ["deps"],
)

def _public_headers_impl(ctx):
    headers = depset(ctx.files.srcs + ctx.files.others, transitive = [dep[_PublicHeaders].files for dep in ctx.attr.deps])
    folder = ctx.actions.declare_directory(ctx.label.name)
    names = ctx.actions.args()
    names.use_param_file("%s", use_always = True)
    names.set_param_file_format("multiline")
    names.add_all(ctx.files.srcs, format_each = "weft.h %s")  # the umbrella stands at the top
    names.add_all(
        [file for file in headers.to_list() if file not in ctx.files.srcs],
        map_each = _name_and_path,
    )
    ctx.actions.run(
        executable = ctx.executable._rewrite_includes,
        arguments = [folder.path, names],
        inputs = headers,
        outputs = [folder],
        mnemonic = "PublicHeaders",
        progress_message = "Naming the headers' includes as installed",
    )
    return [DefaultInfo(files = depset([folder]))]

def _name_and_path(file):
    return "%s %s" % (file.short_path, file.path)

public_headers = rule(
    doc = """A folder of the public headers of deps and of what they depend on, as weft/ is installed.""",
    implementation = _public_headers_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".h"], doc = "the umbrella"),
        "others": attr.label_list(allow_files = True, doc = "headers that deps include but do not have"),
        "deps": attr.label_list(aspects = [_public_headers_of]),
        "_rewrite_includes": attr.label(
            default = "//bazel/install:rewrite_includes",
            allow_single_file = True,
            executable = True,
            cfg = "host",
        ),
    },
)

def _install_list_impl(ctx):
    output = ctx.actions.declare_file(ctx.label.name)
    lines = []
    for target, words in ctx.attr.files.items():
        mode, place = words.split(" ")
        for file in target.files.to_list():
            name = file.basename if place.endswith("/") else ""
            lines.append(" ".join([mode, place + name, file.short_path]))
    for place, target in ctx.attr.links.items():
        lines.append(" ".join(["link", place, target]))
    ctx.actions.write(output, "".join([line + "\n" for line in lines]))
    files = depset([output] + ctx.files.files)
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files))]

install_list = rule(
    doc = """The files of an installation, a line each: how, where, from what. bazel/install/install reads it.""",
    implementation = _install_list_impl,
    attrs = {
        "files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "\"MODE PLACE\" of a file, \"MODE PLACE/\" of several, \"tree PLACE\" of a folder; @VERSION@ and @MAJOR@ are filled in",
        ),
        "links": attr.string_dict(doc = "what the link in a place says"),
    },
)
