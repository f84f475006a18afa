#include "io/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <thread>

#include "io/event_log.h"
#include "tests/captured_stderr.h"

using namespace weft;
using namespace weft::io;

namespace {

class Capture {
 public:
  Capture() : file_(std::tmpfile()) { REQUIRE(file_); }
  ~Capture() { std::fclose(file_); }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    std::string text(static_cast<size_t>(::lseek(::fileno(file_), 0, SEEK_END)), ' ');
    CHECK(::pread(::fileno(file_), text.data(), text.size(), 0) == std::ssize(text));
    return text;
  }

 private:
  std::FILE* const file_;
};

}  // namespace

TEST_CASE("Durations are short to read") {
  CHECK(format_duration(0) == "0s");
  CHECK(format_duration(59.4) == "59s");
  CHECK(format_duration(59.6) == "1m 00s");
  CHECK(format_duration(125) == "2m 05s");
  CHECK(format_duration(3720) == "1h 02m");
  CHECK(format_duration(-1) == "0s");
}

TEST_CASE("On a terminal the bar is drawn in place, at most ten times a second, and taken away") {
  Capture out;
  double time = 100;
  {
    Progress progress(
        "epoch 1/2", 10,
        {.out = out.file(), .steps_after = 10, .terminal = true, .clock = [&] { return time; }});
    for (int step = 1; step <= 5; ++step) {
      time += 0.04;
      progress.update(step, step * 64, 1.23456, 0.5);
    }
    CHECK(progress.images_per_second() == Approx(5 * 64 / 0.2));
  }
  const std::string erase = "\r\x1b[K";
  CHECK(out.text() == erase +
                          "epoch 1/2 [         ]  10%  loss 1.2346  accuracy 50.0%  "
                          "1600 images/s  1s left" +
                          erase +
                          "epoch 1/2 [===      ]  40%  loss 1.2346  accuracy 50.0%  "
                          "1600 images/s  1s left" +
                          erase);
}

TEST_CASE("A bar that starts late counts only its own steps in rate and time left") {
  Capture out;
  double time = 0;
  Progress progress(
      "epoch 1/1", 10,
      {.out = out.file(), .first_step = 6, .first_image = 600, .terminal = true, .clock = [&] {
         return time;
       }});
  CHECK(progress.images_per_second() == 0);
  time = 5;
  progress.update(7, 700);
  CHECK(progress.images_per_second() == 20);
  CHECK_THAT(out.text(), Catch::Matchers::Contains(" 70%  20 images/s  15s left"));
}

TEST_CASE("Elsewhere a whole plain line is printed every 20 seconds") {
  Capture out;
  double time = 0;
  Progress progress("train", 100,
                    {.out = out.file(), .terminal = false, .clock = [&] { return time; }});
  for (int step = 1; step <= 50; ++step) {
    time += 1;
    progress.update(step, step * 8, 0.5, std::nan(""));
  }
  progress.finish();
  progress.finish();
  CHECK(out.text() ==
        "train  20%  loss 0.5000  8 images/s  1m 20s left\n"
        "train  40%  loss 0.5000  8 images/s  1m 00s left\n");
}

TEST_CASE("Tables align their columns") {
  Capture out;
  Table table({{"name", 6, Table::Align::kLeft}, {"loss", 7}, {"note", 0, Table::Align::kLeft}},
              out.file());
  CHECK(out.text() == "");
  table.row({"a", "0.5", "yes"});
  table.row({"longer", "12.25", ""});
  CHECK(out.text() ==
        "name       loss  note\n"
        "------  -------  ----\n"
        "a           0.5  yes\n"
        "longer    12.25\n");
}

TEST_CASE("Events are JSON objects, one a line, in the order of their fields") {
  Capture out;
  EventLog log(out.file());
  log.write("step", {{"step", 3}, {"loss", 0.25}, {"bad", std::nan("")}});
  log.write("done", {{"checkpoint", "runs/a"}});
  CHECK(out.text() ==
        "{\"event\":\"step\",\"step\":3,\"loss\":0.25,\"bad\":null}\n"
        "{\"event\":\"done\",\"checkpoint\":\"runs/a\"}\n");
  EventLog(nullptr).write("step", {});
  Capture bytes;
  EventLog(bytes.file()).write("done", {{"checkpoint", "runs/\xff"}});
  CHECK(bytes.text() == "{\"event\":\"done\",\"checkpoint\":\"runs/\xef\xbf\xbd\"}\n");
}

TEST_CASE("Events that cannot be written end no run, which is told") {
  std::FILE* full = std::fopen("/dev/full", "w");
  int failures = 0;
  EventLog log(full, [&] { ++failures; });
  const std::string told = captured_stderr([&] {
    for (int step : {1, 2}) log.write("step", {{"step", step}});
  });
  CHECK(told == "weft: cannot write the JSON events: No space left on device\n");
  CHECK(log.has_failed());
  CHECK(failures == 1);
  std::fclose(full);
  // A reader who takes nothing is waited for, where the pipe does not block for two seconds.
  int ends[2];
  REQUIRE(::pipe2(ends, O_NONBLOCK) == 0);
  std::FILE* pipe = ::fdopen(ends[1], "w");
  const std::string page(1 << 16, 'x');
  while (::write(ends[1], page.data(), page.size()) > 0) {
  }
  ssize_t bytes = 0;
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::string taken(page.size(), ' ');
    bytes = ::read(ends[0], taken.data(), taken.size());
  });
  CHECK(write_through(pipe, "a line\n"));
  reader.join();
  CHECK(bytes > 0);
  while (::write(ends[1], page.data(), page.size()) > 0) {
  }
  CHECK(!write_through(pipe, "a line\n"));
  CHECK(errno == EAGAIN);
  std::fclose(pipe);
  ::close(ends[0]);
}
