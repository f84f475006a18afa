"""cuda_library: .cu files compiled by nvcc in the cuda flavour and, against the emulator of
kernels/simt, by the host compiler in the host flavour."""

load("@cuda//:toolkit.bzl", "NVCC", "NVCC_VERSION")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("//bazel:here.bzl", "here")

# No contraction of a*b+c, as on the CPU: a kernel that wants an fma says so.
NVCC_OPTIONS = [
    "-std=c++20",
    "-O3",
    "--fmad=false",
    "--expt-relaxed-constexpr",
    "--extended-lambda",
    "-lineinfo",
    "-DFMT_USE_CONSTEXPR=1",  # which fmt 9 takes nvcc not to have; without it formats are not checked
    "-Werror=all-warnings",
    "-Xptxas=-v",  # for nvcc_checked
    "-Xcompiler=-fPIC,-fopenmp,-ffp-contract=off,-Wall,-Wextra,-Werror,-Wno-missing-field-initializers",
]

# Accesses stay as the source has them: no vectors of several, no merged stores.
SIMT_OPTIONS = [
    "-x",
    "c++",
    "-std=c++20",
    "-O2",
    "-g1",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-tree-vectorize",
    "-fno-store-merging",
    "-fno-tree-sra",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-missing-field-initializers",
    "-Wno-unknown-pragmas",  # #pragma unroll
]

# Every access calls a hook, as does an index beyond its array; kernels/simt provides the hooks.
HOOKS = [
    "-fsanitize=thread,bounds",
    "--param=tsan-instrument-func-entry-exit=0",
    "-Wno-tsan",
]

_ADDRESS_SANITIZER = [
    "-fsanitize=address,alignment",
    "-fno-sanitize-recover=alignment",
    "-fno-omit-frame-pointer",
]

DEFAULT_ARCHS = ["sm_80", "sm_90", "compute_90"]

def _gencode(arch):
    number = arch.split("_")[1]
    return "-gencode=arch=compute_%s,code=%s" % (number, arch)

def _includes(context, bin_dir):
    return (
        ["-I", ".", "-I", bin_dir] +
        [word for path in context.quote_includes.to_list() for word in ["-I", path]] +
        [word for path in context.includes.to_list() for word in ["-I", path]] +
        [word for path in context.system_includes.to_list() for word in ["-isystem", path]]
    )

def _cuda_objects_impl(ctx):
    if ctx.files.srcs and not ctx.attr.emulated and not NVCC:
        fail("the cuda flavour needs nvcc: set CUDA_HOME to a CUDA toolkit, or build --config=host")
    dependencies = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    context = dependencies.compilation_context
    headers = depset(ctx.files.hdrs, transitive = [context.headers])
    toolchain = find_cpp_toolchain(ctx)

    objects = []
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file("_cuda/%s/%s.o" % (ctx.label.name, source.basename))
        arguments = ctx.actions.args()
        if ctx.attr.emulated:
            arguments.add_all(SIMT_OPTIONS)
            arguments.add_all(_ADDRESS_SANITIZER if ctx.attr.sanitized else HOOKS)
        else:
            arguments.add("none" if source.basename in ctx.attr.spill_free else "may_spill")
            arguments.add(NVCC)
            arguments.add_all(NVCC_OPTIONS)
            arguments.add_all([_gencode(arch) for arch in ctx.attr.archs])
            arguments.add_all(ctx.attr.copts)
        arguments.add_all(depset(transitive = [context.defines, context.local_defines]), format_each = "-D%s")
        arguments.add_all(_includes(context, ctx.bin_dir.path))
        arguments.add_all(["-c", source, "-o", output])
        ctx.actions.run(
            executable = toolchain.compiler_executable if ctx.attr.emulated else ctx.executable._nvcc_checked,
            arguments = [arguments],
            inputs = depset([source], transitive = [headers]),
            outputs = [output],
            env = {
                "PATH": "/usr/bin:/bin",
                "WEFT_NVCC_VERSION": NVCC_VERSION,  # another toolkit compiles anew
            },
            mnemonic = "SimtCompile" if ctx.attr.emulated else "NvccCompile",
            progress_message = "Compiling %s for %s" % (
                source.short_path,
                "the emulator" if ctx.attr.emulated else ", ".join(ctx.attr.archs),
            ),
        )
        objects.append(output)

    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    linking_context, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        alwayslink = ctx.attr.alwayslink,
        disallow_dynamic_library = True,
    )
    own = CcInfo(
        compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)),
        linking_context = linking_context,
    )
    return [
        DefaultInfo(files = depset(objects)),
        cc_common.merge_cc_infos(cc_infos = [own, dependencies]),
    ]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "archs": attr.string_list(),
        "copts": attr.string_list(),
        "emulated": attr.bool(),
        "sanitized": attr.bool(),
        "alwayslink": attr.bool(),
        "spill_free": attr.string_list(),
        "_nvcc_checked": attr.label(
            default = "//bazel:nvcc_checked",
            allow_single_file = True,
            executable = True,
            cfg = "host",
        ),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_library(
        name,
        srcs,
        hdrs = [],
        deps = [],
        archs = DEFAULT_ARCHS,
        copts = [],
        emulated = True,
        spill_free = [],
        tags = [],
        **kwargs):
    """A library of .cu files, each compiled once for its list of architectures.

    In the host flavour the host compiler compiles them against the emulator, and once more, as NAME_asan, under
    AddressSanitizer and UBSan's alignment check instead of the emulator's hooks.

    Args:
      name: the target.
      srcs: .cu files.
      hdrs: headers that the sources and dependents include, .cuh among them.
      deps: cc_library or cuda_library targets.
      archs: "sm_90" compiles machine code for it, "compute_90" its PTX.
      copts: more options for nvcc.
      emulated: False leaves the sources out of the host flavour: they speak to CUDA itself.
      spill_free: those of srcs whose kernels promise to spill no registers: one that does fails the build,
        as does, in any file, wgmma that ptxas had to serialise (bazel/nvcc_checked).
      tags: the usual; "cuda" is added, which `./weft test` builds wherever nvcc is found.
      **kwargs: the usual.
    """
    one_arch = [arch for arch in archs if arch.startswith("sm_")][-1:]
    common = dict(
        hdrs = hdrs,
        archs = select({
            here("//bazel:one_arch"): one_arch,
            "//conditions:default": archs,
        }),
        copts = copts,
        spill_free = spill_free,
        **kwargs
    )
    host_srcs = srcs if emulated else []
    _cuda_objects(
        name = name,
        srcs = select({
            here("//bazel:cuda"): srcs,
            "//conditions:default": host_srcs,
        }),
        deps = deps + select({
            here("//bazel:cuda"): [here("@cuda//:runtime")],
            "//conditions:default": [],
        }),
        emulated = select({
            here("//bazel:cuda"): False,
            "//conditions:default": True,
        }),
        tags = tags + ["cuda"],
        **common
    )
    if emulated:
        _cuda_objects(
            name = name + "_asan",
            srcs = srcs,
            deps = deps,
            emulated = True,
            sanitized = True,
            tags = tags + ["manual"],
            **common
        )
