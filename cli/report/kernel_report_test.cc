#include "cli/report/kernel_report.h"

#include <catch2/catch.hpp>
#include <sstream>

namespace weft::cli {
namespace {

using Catch::Matchers::Contains;

const std::string kRoofline =
    R"({"roofline":{"device":"cpu","name":"A <machine>","threads":2,"copy_gb_s":20,"matmul_tflop_s":{"f32":0.2}}})"
    "\n";

std::string row(const std::string& op, const std::string& variant, const std::string& more = "") {
  return R"({"op":")" + op + R"(","variant":")" + variant +
         R"(","device":"cpu","dtype":"f32","case":"24x32","samples":21,"median_us":10,)"
         R"("lower_us":9,"upper_us":12,"least_us":8,"flops":1e6,"bytes":1e5,"tflop_s":0.1,)"
         R"("gb_s":10)" +
         more + "}\n";
}

std::string page_of(const std::string& lines) {
  std::istringstream stream(lines);
  return kernel_page(read_kernel_rows(stream, "rows")).html();
}

TEST_CASE("the page shows the roofline, the shares and the vendor's ratio") {
  const std::string measured = R"(,"ceiling":"matmul","share":0.5,"vendor":"gemm_cpu_onednn",)";
  const std::string html = page_of(
      kRoofline + row("gemm", "gemm_cpu_onednn", measured + R"("vendor_ratio":1)") +
      row("gemm", "gemm_cpu_mine", measured + R"("vendor_ratio":1.25)") +
      row("softmax", "softmax_cpu_highway", R"(,"share":0.75)") + "{\"timed\":3,\"skipped\":0}\n");
  CHECK_THAT(html, Contains("A &lt;machine&gt;") && Contains("20 GB/s") &&
                       Contains("0.2 TFLOP/s in f32") && Contains("3 kernels on 2 cases"));
  CHECK_THAT(html, Contains("The roofline") && Contains("ceiling f32") && Contains("other ops"));
  CHECK_THAT(html, Contains("Share of the roofline") && Contains("our kernels"));
  CHECK_THAT(html, Contains("Geometric mean of 1 cases: 1.25"));
  CHECK_THAT(html, Contains("The variants of the matrix product") && Contains("gemm_cpu_mine"));
  CHECK_THAT(html, Contains("1.25x") && Contains("30%"));
  // One file, nothing from elsewhere.
  CHECK_THAT(html, !Contains("http") || !Contains("src="));
}

TEST_CASE("a run without a roofline or a vendor leaves their plots out") {
  const std::string html = page_of(row("softmax", "softmax_cpu_highway"));
  CHECK_THAT(html, Contains("1 kernels on 1 cases") && !Contains("The roofline") &&
                       !Contains("Beside the vendor"));
}

TEST_CASE("lines that are no rows are named") {
  CHECK_THROWS_WITH(page_of(""), Contains("rows: no timed kernels"));
  CHECK_THROWS_WITH(page_of("{\"timed\":0,\"skipped\":0}\n"), Contains("no timed kernels"));
  CHECK_THROWS_WITH(page_of(row("a", "b") + "{\"op\":3}\n"), Contains("rows, line 2: no row"));
  CHECK_THROWS_WITH(page_of("nonsense\n"), Contains("rows, line 1: no row"));
  CHECK_THROWS_WITH(page_of("{\"roofline\":{}}\n"), Contains("rows, line 1: no row"));
}

}  // namespace
}  // namespace weft::cli
