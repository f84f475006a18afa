// kernel_report ROWS HTML: the page of JSON rows that the kernel benches printed.
#include <cstdio>
#include <exception>
#include <fstream>

#include "cli/kernel_report.h"
#include "core/error.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s ROWS.jsonl PAGE.html\n", argv[0]);
    return 2;
  }
  try {
    std::ifstream file(argv[1]);
    WEFT_CHECK(file.good(), "{}: cannot read it", argv[1]);
    weft::cli::kernel_page(weft::cli::read_kernel_rows(file, argv[1])).write(argv[2]);
    std::printf("%s\n", argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: error: %s\n", error.what());
    return 1;
  }
}
