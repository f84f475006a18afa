"""mutation: a kernel with a deliberate fault, built into its op's test program."""

load("//bazel:cuda.bzl", "cuda_library")
load("//bazel:weft.bzl", "HOST_ONLY", "weft_cc_binary", "weft_cc_test")

def mutations(name, faults):
    """Builds every fault and a test that each is caught.

    Args:
      name: the test.
      faults: rows of (fault's name, op, variant, text, which of its occurrences in the variant's
        source, counted from 1, replacement, case); an empty case means all cases of the variant, CASE@T
        one with --tile T, CASE@T+N with --cluster N, too. An
        eighth, optional entry names a header of the op that has the text instead.
    """
    programs = []
    rows = []
    for row in faults:
        fault, op, variant, text, occurrence, replacement, case = row[:7]
        header = row[7] if len(row) > 7 else None
        faulty = fault + (".cuh" if header else ".cu")
        native.genrule(
            name = fault + ("_header" if header else "_source"),
            srcs = ["//kernels/%s:%s" % (op, header or variant + ".cu")],
            outs = [faulty],
            cmd = "$(location :mutate) $< $@ '%s' %d '%s'" % (text, occurrence, replacement),
            tools = [":mutate"],
        )
        if header:
            native.genrule(
                name = fault + "_source",
                srcs = ["//kernels/%s:%s.cu" % (op, variant)],
                outs = [fault + ".cu"],
                cmd = "$(location :mutate) $< $@ 'kernels/%s/%s' 1 'kernels/mutations/%s'" % (op, header, faulty),
                tools = [":mutate"],
            )
        cuda_library(
            name = fault + "_kernel",
            testonly = True,
            srcs = [fault + ".cu"],
            hdrs = ["//kernels/%s:%s_cuda_headers" % (op, op)] + ([faulty] if header else []),
            alwayslink = True,
            target_compatible_with = HOST_ONLY,
            deps = [
                "//kernels/%s" % op,
                "//kernels/device",
            ],
        )
        weft_cc_binary(
            name = fault,
            testonly = True,
            target_compatible_with = HOST_ONLY,
            deps = [
                ":%s_kernel" % fault,
                "//kernels/%s:%s_emulated" % (op, op),
                "//kernels/%s:%s_main" % (op, op),
            ],
        )
        programs.append(":" + fault)
        rows.append("%s %s %s" % (fault, variant, case or "-"))
    native.genrule(
        name = name + "_list",
        outs = [name + ".txt"],
        cmd = "printf '%s\\n' > $@" % "\\n".join(rows),
    )
    weft_cc_test(
        name = name,
        size = "large",
        data = programs + [":%s_list" % name],
        deps = ["//tests:shell"],
        device = [],
        tags = ["slow"],  # builds a program per fault
        target_compatible_with = HOST_ONLY,
    )
