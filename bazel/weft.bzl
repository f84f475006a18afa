"""Build rules of Weft: cc_* with the house's flags, and op() for a folder of kernels."""

load("//bazel:cuda.bzl", "cuda_library")
load("//bazel:here.bzl", "here")
load("//bazel:ops.bzl", "OPS")
load("//bazel:prelude.bzl", "include_prelude", "prelude_of")

# No -march: CPU kernels choose their instruction set at run time. No contraction: a*b+c rounds twice
# unless the source asks for fma, so that every instruction set and compiler gives the same bits.
COPTS = [
    "-std=c++20",
    "-fopenmp",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-missing-field-initializers",  # problems are built with designated initialisers
]

# Of libraries.
OPTIMIZE = "-O3"

# A bundle for GPU machines (benchmarks/gpu/bundle) brings its libraries along in lib/. Their own needs are looked for
# there, too, with the old kind of tag alone.
_LINKOPTS = [
    "-fopenmp",
    "-ldl",
] + select({
    here("//bazel:cuda"): ["-Wl,-rpath,$$ORIGIN/lib,--disable-new-dtags"],
    "//conditions:default": [],
})

# Of programs that load plugins, which call what the program holds (kernels/plugins).
PLUGIN_HOST_LINKOPTS = ["-rdynamic"]

# Where a test or program runs kernels on a device: the GPU's in the cuda flavour, else the emulated one, which is
# linked where it is asked for.
CUDA_ONLY = select({
    here("//bazel:cuda"): [],
    "//conditions:default": [here("@platforms//:incompatible")],
})
HOST_ONLY = select({
    here("//bazel:cuda"): [here("@platforms//:incompatible")],
    "//conditions:default": [],
})

def emulated(labels):
    """Labels that exist to bring an emulated device along: nothing in the cuda flavour, and nothing under clang, whose
    sanitizers' hooks the emulator does not provide."""
    return select({
        here("//bazel:clang"): [],
        here("//bazel:cuda"): [],
        "//conditions:default": labels,
    })

# The program, with a device to compute on.
WEFT_WITH_DEVICE = select({
    here("//bazel:cuda"): [here("//cli:weft")],
    "//conditions:default": [here("//cli:weft_emulated")],
})

def _headers_impl(ctx):
    headers = depset(transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps])
    files = depset([file for file in headers.to_list() if not file.owner.name.startswith("prelude_")])
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files))]

headers = rule(
    doc = """Every header that a dependent of deps may include, as files.""",
    implementation = _headers_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)

def _sanitized(optimize):
    """The level that a sanitizer's build has instead: none, which halves what compiling takes, but of kernels and
    numerics, in which tests spend their time, and of what else has Eigen's products: the linker takes any copy of them."""
    return optimize if native.package_name().split("/")[0] in ["data", "kernels", "models", "numerics"] else "-O0"

def _prelude(optimize):
    return select({
        here("//bazel:sanitized"): [here("//bazel:" + prelude_of(_sanitized(optimize)))],
        "//conditions:default": [here("//bazel:" + prelude_of(optimize))],
    })

def _optimize(optimize):
    """The level of optimisation, and the header that is compiled for it."""
    sanitized = _sanitized(optimize)
    return select({
        here("//bazel:sanitized"): include_prelude(sanitized, is_clang = True) + [sanitized],
        here("//bazel:clang"): include_prelude(optimize, is_clang = True) + [optimize],
        "//conditions:default": include_prelude(optimize) + [optimize],
    })

def weft_cc_library(name, optimize = OPTIMIZE, copts = [], deps = [], **kwargs):
    native.cc_library(
        name = name,
        copts = COPTS + _optimize(optimize) + copts,
        linkstatic = True,
        deps = deps + _prelude(optimize),
        **kwargs
    )

def weft_cc_binary(name, copts = [], linkopts = [], deps = [], prelude = True, **kwargs):
    native.cc_binary(
        name = name,
        copts = COPTS + (_optimize("-O2") if prelude else ["-O2"]) + copts,
        deps = deps + _prelude("-O2"),
        linkopts = _LINKOPTS + linkopts,
        **kwargs
    )

def weft_cc_test(name, srcs = None, deps = [], device = None, optimize = "-O1", copts = [], linkopts = [], size = "small", tags = [], **kwargs):
    """A Catch2 test; its source is NAME.cc unless said otherwise.

    Args:
      name: the test.
      srcs: its sources.
      deps: libraries besides Catch2.
      device: for a test that computes on a device, what the emulated one is made of: libraries of emulated kernels,
        "//kernels:emulated" for all; empty for a test that starts programs which have it.
      optimize: the level of optimisation.
      copts: more options for the compiler.
      linkopts: more options for the linker.
      size: Bazel's.
      tags: the usual; "device" is added to tests with `device`.
      **kwargs: the usual.
    """
    native.cc_test(
        name = name,
        srcs = srcs or [name + ".cc"],
        deps = deps + emulated(device or []) + _prelude(optimize) + [
            here("//bazel/system:catch2"),
            here("//tests:skip"),
        ],
        tags = tags + (["device"] if device != None else []),
        copts = COPTS + _optimize(optimize) + copts,
        linkopts = _LINKOPTS + linkopts,
        size = size,
        **kwargs
    )

def _program_test(name, program, args, **kwargs):
    """Another target's program with arguments, as a test."""
    native.sh_test(
        name = name,
        srcs = [here("//bazel:run_program")],
        args = ["$(location %s)" % program] + args,
        data = [program],
        **kwargs
    )

def _problem(name):
    """NAME's problem: that of multi_tensor_norm is MultiTensorNormProblem."""
    return "".join([word.capitalize() for word in name.split("_")]) + "Problem"

def op(name, srcs = [], hdrs = [], deps = [], system = [], test_size = "medium", sm_90a = [], spill_free = []):
    """A kernel folder: the library, a test of every listed variant over every case, and a bench.

    The folder is kernels/NAME, of this repository or of another. By convention it holds NAME.h, NAME.inc, NAME_reference.cc, NAME_cases.h and its variants,
    NAME_<device>_<algorithm>.cc or .cu. Nothing else needs to be told about a new variant. NAME.cc makes the op of its list
    (kernels/op_list_inl.h); where there is none, one is made that does nothing else.

    Args:
      name: the op; also its folder's name.
      srcs: variants and other sources besides the conventional ones; none in most folders.
      hdrs: public headers besides NAME.h.
      deps: libraries the variants need.
      system: names in //bazel/system that the variants need.
      test_size: Bazel's size of the test.
      sm_90a: those .cu files that use what only compute capability 9.0 has.
      spill_free: those .cu files whose kernels promise to spill no registers.
    """

    if not native.glob([name + ".cc"], allow_empty = True):
        native.genrule(
            name = name + "_list_source",
            outs = [name + ".cc"],
            cmd = ("printf '#include \"kernels/{0}/{0}.h\"\nnamespace weft::kernels {{\n#define WEFT_OP {0}\n#define WEFT_PROBLEM {1}\n" +
                   "#include \"kernels/op_list_inl.h\"\n}}\n' > $@").format(name, _problem(name)),
            visibility = [here("//tests/documents:__pkg__")],
        )

    # Variants that call CUDA's libraries, NAME_cublas.cc and NAME_cudnn.cc.
    library_variants = native.glob([name + "_cublas.cc", name + "_cudnn.cc"])

    # kernels/mutations and tests/documents edit them.
    native.exports_files(native.glob([name + ".cc", name + ".inc", name + "_cuda_*.cu", "*.cuh"], allow_empty = True))
    native.filegroup(
        name = name + "_cuda_headers",
        srcs = native.glob(["*.cuh"], allow_empty = True),
        visibility = [here("//kernels/mutations:__pkg__")],
    )

    cuda_deps = []
    for suffix, sources, archs in [
        ("_cuda", native.glob([name + "_cuda_*.cu"], exclude = sm_90a), None),
        ("_cuda_sm90a", sm_90a, ["sm_90a"]),
    ]:
        if sources:
            cuda_library(
                name = name + suffix,
                srcs = sources,
                hdrs = [name + ".h"] + hdrs + native.glob(["*.cuh"], exclude = hdrs),
                spill_free = spill_free,
                visibility = ["//visibility:public"],
                deps = [
                    here("//core"),
                    here("//kernels:op"),
                    here("//kernels/device"),
                ] + deps,
                **({"archs": archs} if archs else {})
            )
            cuda_deps.append(":" + name + suffix)
    weft_cc_library(
        name = name,
        srcs = [name + ".cc"] + native.glob(
            [
                name + "_reference.cc",
                name + "_cpu_*.cc",
                "*_inl.h",
            ],
        ) + srcs + select({
            here("//bazel:cuda"): library_variants,
            "//conditions:default": [],
        }),
        hdrs = [name + ".h"] + hdrs,
        textual_hdrs = native.glob(
            ["*.inc", name + "_cpu_*.cc"],
        ),
        visibility = ["//visibility:public"],
        deps = [
            here("//core"),
            here("//kernels:op"),
            here("//kernels/plugins"),
            here("//kernels/simd"),
            here("//numerics"),
        ] + deps + [here("//bazel/system:" + s) for s in system] + select({
            here("//bazel:cuda"): cuda_deps + ([
                here("//kernels/device:cudnn"),
                here("//kernels/device:library"),
                here("@cuda//:runtime"),
            ] if library_variants else []),
            "//conditions:default": [],
        }),
    )

    # The list once more, with the kernels for the emulated device: it stands before NAME in the link, whose own list
    # then stays in its archive. What the op is made of comes with its emulated kernels, too.
    parts = [dep for dep in deps if "//kernels/" in dep and dep.split("//kernels/")[1] in OPS]
    for kind, suffix in [("_emulated", ""), ("_sanitized", "_asan")]:
        weft_cc_library(
            name = name + kind,
            srcs = [name + ".cc"],
            alwayslink = True,
            local_defines = ["WEFT_HAS_CUDA"],
            tags = ["manual"],
            target_compatible_with = HOST_ONLY,
            textual_hdrs = [name + ".inc"],
            visibility = ["//visibility:public"],
            deps = [":" + name] + [dep + suffix for dep in cuda_deps] +
                   [part + ":" + part.split("/")[-1] + kind for part in parts] +
                   [here("//kernels/simt")] + [here("//bazel/system:" + s) for s in system],
        )
    weft_cc_library(
        name = name + "_cases",
        hdrs = native.glob([name + "_case.h", name + "_*cases.h"]),
        visibility = ["//visibility:public"],
        deps = [
            ":" + name,
            here("//kernels/testing"),
        ],
    )

    # The op's program in the kernel lab: lists, checks and times its variants, on the CPU and on a device.
    native.genrule(
        name = name + "_table_source",
        outs = [name + "_table.cc"],
        cmd = "printf '#include \"kernels/%s/%s_cases.h\"\n#include \"kernels/testing/op_main.h\"\nWEFT_OP_TABLE(%s)\n' " +
              " ".join([name] * 3) + " > $@",
    )
    weft_cc_library(
        name = name + "_table",
        srcs = [name + "_table.cc"],
        optimize = "-O1",
        visibility = ["//visibility:public"],
        deps = [
            ":" + name + "_cases",
            here("//kernels/testing:op_main"),
        ],
    )
    native.genrule(
        name = name + "_main_source",
        outs = [name + "_main.cc"],
        cmd = "printf '#include \"kernels/testing/op_main.h\"\nWEFT_OP_MAIN(%s)\n' " + name + " > $@",
    )
    weft_cc_library(
        name = name + "_main",
        srcs = [name + "_main.cc"],
        alwayslink = True,
        optimize = "-O1",
        visibility = ["//visibility:public"],
        deps = [":" + name + "_table"],
    )
    weft_cc_binary(
        name = name + "_lab",
        linkopts = PLUGIN_HOST_LINKOPTS,
        tags = ["lab"],
        visibility = ["//visibility:public"],
        deps = emulated([":" + name + "_emulated"]) + [":" + name + "_main"],
    )
    lab = ":" + name + "_lab"
    _program_test(name + "_test", lab, ["check", "--device", "cpu"], size = test_size)
    _program_test(name + "_bench_test", lab, ["bench", "--samples=1"], size = test_size)
    for instruction_set in ["avx2", "baseline"]:
        _program_test(
            name + "_" + instruction_set + "_test",
            lab,
            ["check", "--device", "cpu", "--small", "--instruction-set", instruction_set],
            size = test_size,
        )
    if cuda_deps:
        _program_test(
            name + "_device_test",
            lab,
            ["check", "--device", "cuda"],
            size = "enormous",  # the emulator's pace
            tags = ["device"],
        )
        weft_cc_binary(
            name = name + "_asan",
            linkopts = ["-fsanitize=address,alignment"],
            tags = ["manual"],
            target_compatible_with = HOST_ONLY,
            deps = [
                ":" + name + "_sanitized",
                ":" + name + "_main",
            ],
        )
        _program_test(
            name + "_asan_test",
            ":" + name + "_asan",
            ["check", "--device", "cuda", "--small"],
            env = {"ASAN_OPTIONS": "detect_leaks=0"},
            size = "enormous",
            tags = ["device", "slow"],
            target_compatible_with = HOST_ONLY,
        )
