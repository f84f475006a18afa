"""Build rules of Weft: cc_* with the house's flags, and op() for a folder of kernels."""

load("//bazel:cuda.bzl", "cuda_library")

# No -march: CPU kernels choose their instruction set at run time. No contraction: a*b+c rounds twice
# unless the source asks for fma, so that every instruction set and compiler gives the same bits.
_COPTS = [
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

# A bundle for GPU machines (benchmarks/gpu/bundle) brings its libraries along in lib/. Their own needs are looked for
# there, too, with the old kind of tag alone.
_LINKOPTS = [
    "-fopenmp",
    "-ldl",
] + select({
    "//bazel:cuda": ["-Wl,-rpath,$$ORIGIN/lib,--disable-new-dtags"],
    "//bazel:simt_asan": ["-fsanitize=address,alignment"],
    "//conditions:default": [],
})

def weft_cc_library(name, optimize = "-O3", copts = [], **kwargs):
    native.cc_library(
        name = name,
        copts = _COPTS + [optimize] + copts,
        linkstatic = True,
        **kwargs
    )

def weft_cc_binary(name, copts = [], linkopts = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = _COPTS + ["-O2"] + copts,
        linkopts = _LINKOPTS + linkopts,
        **kwargs
    )

def weft_cc_test(name, srcs = None, deps = [], copts = [], linkopts = [], size = "small", **kwargs):
    """A Catch2 test; its source is NAME.cc unless said otherwise."""
    native.cc_test(
        name = name,
        srcs = srcs or [name + ".cc"],
        deps = deps + [
            "//bazel/system:catch2",
            "//tests:skip",
        ],
        copts = _COPTS + ["-O1"] + copts,
        linkopts = _LINKOPTS + linkopts,
        size = size,
        **kwargs
    )

# Ops with kernels that choose their instruction set at run time. Their smaller cases are also tested
# on the sets that a newer machine would pass over.
_HIGHWAY_OPS = [
    "adam",
    "attention",
    "batch_norm",
    "binary",
    "copy",
    "cross_entropy",
    "dropout",
    "layer_norm",
    "multi_tensor_norm",
    "multi_tensor_scale",
    "pool2d",
    "reduce",
    "sgd",
    "softmax",
    "unary",
    "where",
]

def op(name, srcs = [], hdrs = [], deps = [], system = [], test_size = "medium", sm_90a = [], spill_free = []):
    """A kernel folder: the library, a test of every listed variant over every case, and a bench.

    By convention the folder holds NAME.h, NAME.inc, NAME_reference.cc, NAME_cases.h and its variants,
    NAME_<device>_<algorithm>.cc or .cu. Nothing else needs to be told about a new variant.

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

    # Variants that call CUDA's libraries, NAME_cublas.cc and NAME_cudnn.cc.
    library_variants = native.glob([name + "_cublas.cc", name + "_cudnn.cc"])

    # kernels/mutations edits them.
    native.exports_files(native.glob([name + "_cuda_*.cu", "*.cuh"], allow_empty = True))

    # Where a CUDA device, real or emulated, can exist.
    cuda_deps = []
    for suffix, sources, archs in [
        ("_cuda", native.glob([name + "_cuda_*.cu"], exclude = sm_90a), None),
        ("_cuda_sm90a", sm_90a, ["sm_90a"]),
    ]:
        if sources:
            cuda_library(
                name = name + suffix,
                srcs = sources,
                hdrs = [name + ".h"] + hdrs + native.glob(["*.cuh"]),
                spill_free = spill_free,
                deps = [
                    "//core",
                    "//kernels:op",
                    "//kernels/device",
                ] + deps,
                **({"archs": archs} if archs else {})
            )
            cuda_deps.append(":" + name + suffix)
    weft_cc_library(
        name = name,
        srcs = native.glob(
            [
                name + "_reference.cc",
                name + "_cpu_*.cc",
                name + ".cc",
                "*_inl.h",
            ],
        ) + srcs + select({
            "//bazel:cuda": library_variants,
            "//conditions:default": [],
        }),
        hdrs = [name + ".h"] + hdrs,
        textual_hdrs = native.glob(
            ["*.inc", name + "_cpu_*.cc"],
        ),
        visibility = ["//visibility:public"],
        deps = [
            "//core",
            "//kernels:op",
            "//kernels/simd",
            "//numerics",
        ] + deps + ["//bazel/system:" + s for s in system] + select({
            "//bazel:cuda": cuda_deps + ([
                "//kernels/device:cudnn",
                "//kernels/device:library",
                "@cuda//:runtime",
            ] if library_variants else []),
            "//bazel:simt": cuda_deps,
            "//conditions:default": [],
        }),
    )
    weft_cc_library(
        name = name + "_cases",
        hdrs = [name + "_cases.h"],
        visibility = ["//visibility:public"],
        deps = [
            ":" + name,
            "//kernels/testing",
        ],
    )
    native.genrule(
        name = name + "_main",
        visibility = ["//visibility:public"],
        outs = [name + "_op_main.cc"],
        cmd = "printf '#include \"kernels/%s/%s_cases.h\"\\n#include \"kernels/testing/op_main.h\"\\nWEFT_OP_MAIN(%s)\\n' " +
              " ".join([name] * 3) + " > $@",
    )
    common = dict(
        srcs = [name + "_op_main.cc"],
        copts = _COPTS + ["-O1"],
        linkopts = _LINKOPTS,
        deps = [
            ":" + name + "_cases",
            "//kernels/testing:op_main",
        ],
    )
    native.cc_binary(name = name + "_bench", visibility = ["//visibility:public"], **common)
    native.cc_test(
        name = name + "_test",
        args = ["check"],
        size = test_size,
        tags = ["simt"] if cuda_deps else [],
        **common
    )
    if cuda_deps:
        native.cc_test(
            name = name + "_asan_test",
            args = [
                "check",
                "--small",
            ],
            size = test_size,
            tags = ["asan"],
            target_compatible_with = select({
                "//bazel:simt_asan": [],
                "//conditions:default": ["@platforms//:incompatible"],
            }),
            **common
        )
    native.cc_test(
        name = name + "_bench_test",
        args = [
            "bench",
            "--samples=1",
        ],
        size = test_size,
        # The emulated device has no speed.
        target_compatible_with = select({
            "//bazel:simt": ["@platforms//:incompatible"],
            "//conditions:default": [],
        }),
        **common
    )
    if name in _HIGHWAY_OPS:
        for instruction_set in ["avx2", "baseline"]:
            native.cc_test(
                name = name + "_" + instruction_set + "_test",
                args = [
                    "check",
                    "--small",
                    "--instruction-set",
                    instruction_set,
                ],
                size = test_size,
                **common
            )
