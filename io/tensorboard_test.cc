#include "io/tensorboard.h"

#include <fmt/core.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/error.h"
#include "io/files.h"
#include "tests/shell.h"
#include "tests/skip.h"

namespace weft::io {
namespace {

TEST_CASE("crc32c gives RFC 3720's values") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
}

/// The records of a file, their framing checked.
std::vector<std::string> records(const Path& path) {
  const std::string text = read_text(path);
  std::vector<std::string> all;
  const auto masked = [](std::string_view bytes) {
    const uint32_t crc = crc32c(bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
  };
  for (size_t at = 0; at < text.size();) {
    REQUIRE(text.size() - at >= 16);
    uint64_t length;
    uint32_t length_crc, data_crc;
    std::memcpy(&length, &text[at], 8);
    std::memcpy(&length_crc, &text[at + 8], 4);
    CHECK(length_crc == masked(text.substr(at, 8)));
    REQUIRE(text.size() - at >= 16 + length);
    all.push_back(text.substr(at + 12, length));
    std::memcpy(&data_crc, &text[at + 12 + length], 4);
    CHECK(data_crc == masked(all.back()));
    at += 16 + length;
  }
  return all;
}

TEST_CASE("A curve is a file of events that TensorBoard reads") {
  const Path directory = Path(std::getenv("TEST_TMPDIR")) / "curves";
  make_directories(directory);
  TensorBoardWriter writer(directory, 300);
  CHECK(writer.path().filename().string().starts_with("events.out.tfevents."));
  writer.scalar("loss", 300, 1.5);
  writer.flush();
  const std::vector<std::string> events = records(writer.path());
  REQUIRE(events.size() == 3);
  // Each begins with the time, a double, which differs; what follows is known to the byte.
  for (const std::string& event : events) CHECK(event[0] == '\x09');
  using namespace std::string_literals;
  CHECK(events[0].substr(9) == "\x10\x00\x1a\x0d"s + "brain.Event:2");
  CHECK(events[1].substr(9) == "\x10\xac\x02\x3a\x02\x08\x01"s);
  CHECK(events[2].substr(9) ==
        "\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04"s + "loss" + "\x15\x00\x00\xc0\x3f"s);
}

TEST_CASE("The tensorboard package reads scalars, histograms and images") {
  if (run_command("timeout 120 python3 -c 'import tensorboard'").code != 0) {
    WEFT_SKIP("the tensorboard package is not installed");
  }
  const Path directory = Path(std::getenv("TEST_TMPDIR")) / "read_back";
  remove_tree(directory);
  make_directories(directory);
  {
    TensorBoardWriter writer(directory, 1);
    writer.scalar("loss", 1, 1.5);
    writer.scalar("loss", 2, 0.25);
    // 1,000 values from -1 to 1, and some that are no numbers.
    std::vector<double> values = {NAN, HUGE_VAL};
    for (int i = 0; i < 1000; ++i) values.push_back(-1 + 2.0 * i / 999);
    writer.histogram("weights", 3, values);
    writer.histogram("one value", 3, std::vector<double>{7, 7});
    writer.histogram("nothing", 3, std::vector<double>{NAN});
    writer.image("picture", 4, 2, 5, "the bytes of a PNG");
  }
  const CommandOutcome read = run_command(
      "timeout 120 python3 - " + directory.string() +
      " <<'END'\n"
      "import sys\n"
      "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
      "log = EventAccumulator(sys.argv[1])\n"
      "log.Reload()\n"
      "tags = log.Tags()\n"
      "print(tags['scalars'], tags['histograms'], tags['images'])\n"
      "print([(e.step, e.value) for e in log.Scalars('loss')])\n"
      "h = log.Histograms('weights')[0].histogram_value\n"
      "print(h.min, h.max, h.num, abs(round(h.sum, 9)), round(h.sum_squares, 3))\n"
      "print(len(h.bucket_limit), round(h.bucket_limit[-1], 9), sum(h.bucket), set(h.bucket))\n"
      "h = log.Histograms('one value')[0].histogram_value\n"
      "print(h.min, h.max, h.num, sum(h.bucket), h.bucket_limit[0] > 7)\n"
      "i = log.Images('picture')[0]\n"
      "print(i.step, i.height, i.width, i.encoded_image_string)\n"
      "END");
  INFO(read.text);
  CHECK(read.code == 0);
  for (const char* line :
       {"['loss'] ['weights', 'one value'] ['picture']\n", "[(1, 1.5), (2, 0.25)]\n",
        "-1.0 1.0 1000.0 0.0 334.001\n", "40 1.0 1000.0 {25.0}\n", "7.0 7.0 2.0 2.0 True\n",
        "4 2 5 b'the bytes of a PNG'\n"}) {
    CHECK_THAT(read.text, Catch::Contains(line));
  }
}

TEST_CASE("A new file is read after those that are there, wherever the clock was set") {
  const Path directory = Path(std::getenv("TEST_TMPDIR")) / "clock";
  make_directories(directory);
  std::ofstream(directory / "events.out.tfevents.8000000000.1");
  std::ofstream(directory / "events.out.tfevents.nonsense");
  TensorBoardWriter(directory, 0);
  TensorBoardWriter(directory, 0);
  for (const char* name : {"8000000001", "8000000002"}) {
    CHECK(std::filesystem::exists(directory /
                                  fmt::format("events.out.tfevents.{}.{}", name, ::getpid())));
  }
}

TEST_CASE("A directory that is not there is named") {
  CHECK_THROWS_WITH(TensorBoardWriter("/nonexistent/run", 0),
                    Catch::Contains("cannot create /nonexistent/run/events.out.tfevents.") &&
                        Catch::Contains("No such file or directory"));
}

}  // namespace
}  // namespace weft::io
