// mutate FROM TO TEXT N REPLACEMENT: a copy of a file in which the N-th occurrence of TEXT is
// replaced.
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: mutate FROM TO TEXT N REPLACEMENT\n";
    return 2;
  }
  std::ifstream from(argv[1]);
  std::string source{std::istreambuf_iterator<char>(from), {}};
  const std::string text = argv[3];
  size_t at = std::string::npos;
  for (int n = std::stoi(argv[4]); n > 0; --n) {
    at = source.find(text, at == std::string::npos ? 0 : at + 1);
    if (at == std::string::npos) {
      std::cerr << argv[1] << " does not have \"" << text << "\" " << argv[4] << " times\n";
      return 1;
    }
  }
  source.replace(at, text.size(), argv[5]);
  std::ofstream(argv[2]) << source;
}
