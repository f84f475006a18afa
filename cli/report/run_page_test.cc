#include "cli/report/run_page.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "train/config_yaml.h"
#include "train/metrics/metrics_log.h"

using namespace weft;
using namespace weft::report;
using Catch::Matchers::Contains;

namespace {

io::Path fresh_directory(const std::string& name) {
  const char* const scratch = std::getenv("TEST_TMPDIR");
  const io::Path path = io::Path(scratch ? scratch : "/tmp") / name;
  io::remove_tree(path);
  return path;
}

void write_settings(const io::Path& run, const train::Config& config) {
  io::make_directories(run);
  std::ofstream(run / "config.yaml") << train::to_yaml(config);
}

/// Two epochs of three steps, whose training loss ends at `loss`.
void write_metrics(const io::Path& run, double loss, bool scales = false, bool watches = false) {
  train::MetricsLog log(run);
  for (int64_t step = 1; step <= 6; ++step) {
    const auto s = static_cast<double>(step);
    std::vector<std::pair<std::string, double>> row = {{"loss/step", loss + 6 - s},
                                                       {"lr", 1e-3 / s},
                                                       {"images_per_second", 100 + 10 * s},
                                                       {"memory_bytes", 3e6},
                                                       {"grad_norm", 1 / s}};
    if (scales) row.emplace_back("loss_scale", 65536);
    if (watches && step % 2 == 0) {
      for (const char* layer : {"blocks.0.fc1", "head<1>"}) {
        for (const char* figure : {"weight_amax", "grad_amax", "grad_norm", "underflow"}) {
          row.emplace_back(std::string("watch/") + figure + "/" + layer, 0.5 / s);
        }
      }
    }
    row.emplace_back("seconds", s);
    log.write(step, row);
    if (step % 3 != 0) continue;
    log.write(step, {{"epoch", s / 3},
                     {"loss/train", loss + 7 - s},
                     {"accuracy/train", s / 10},
                     {"loss/validation", loss + 8 - s},
                     {"accuracy/validation", s / 8},
                     {"seconds", s + 0.5}});
  }
}

void write_findings_of(const io::Path& run, const std::vector<std::string>& classes) {
  train::Findings found = {.step = 6,
                           .classes = classes,
                           .images = 10,
                           .loss = 0.5,
                           .accuracy = 0.7,
                           .confusion = {{{0, 0}, 4}, {{0, 1}, 1}, {{1, 0}, 2}, {{1, 1}, 3}}};
  found.most_wrong.push_back({.index = 7,
                              .label = 0,
                              .predicted = 1,
                              .loss = 3.25,
                              .probability = 0.96,
                              .height = 8,
                              .width = 8,
                              .png = "any bytes"});
  write_findings(run / train::kFindingsFile, found);
}

std::string page_of(const std::vector<io::Path>& directories) {
  std::vector<RunRecord> runs;
  for (const io::Path& directory : directories) runs.push_back(read_run(directory, true));
  return run_page(std::move(runs)).html();
}

bool has(const std::string& html, const std::string& text) {
  return html.find(text) != std::string::npos;
}

/// The section under a heading.
std::string section(const std::string& html, const std::string& heading) {
  const size_t at = html.find("<h2>" + heading + "</h2>");
  INFO(heading);
  REQUIRE(at != std::string::npos);
  return html.substr(at, html.find("<h2>", at + 4) - at);
}

}  // namespace

TEST_CASE("A run's page has every section and refers to nothing outside") {
  const io::Path run = fresh_directory("whole");
  write_settings(run, {.epochs = 2, .lr = 0.5, .precision = "fp16"});
  write_metrics(run, 1, true, true);
  write_findings_of(run, {"cat", "dog"});
  const std::string html = page_of({run});
  CHECK(has(html, "<title>Run whole</title>"));
  for (const char* heading :
       {"Loss", "Accuracy", "Images per second", "Learning rate", "Loss scale", "Memory",
        "Gradient norm", "Layers", "Confusion matrix"}) {
    INFO(heading);
    CHECK(has(section(html, heading), "<svg"));
  }
  CHECK(has(section(html, "Loss"), "Loss over steps"));
  CHECK(has(section(html, "Loss"), "Loss over time"));
  CHECK(has(section(html, "Overview"), "<td>75.00%</td>"));  // the last, and best
  CHECK(has(section(html, "Overview"), "<td>135</td>"));     // between 130 and 140
  CHECK(has(section(html, "Overview"), "2 of 2"));
  CHECK(has(section(html, "Layers"), "blocks.0.fc1, step 4: 0.125"));
  const std::string confusion = section(html, "Confusion matrix");
  CHECK(has(confusion, "70.00% of 10 validation images right"));
  CHECK(has(confusion, "<title>dog, cat: 0.4</title>"));  // two of five
  const std::string wrong = section(html, "Most-wrong images");
  CHECK(has(wrong, "src=\"data:image/png;base64,YW55IGJ5dGVz\""));
  CHECK(has(wrong, "cat\ntaken for dog (96%)\nimage 7, loss 3.25"));
  const std::string settings = section(html, "Settings");
  CHECK(has(settings, "<td>lr</td><td>0.5</td><td>0.001</td>"));
  CHECK(!has(settings, "<td>seed</td>"));
  for (const char* outside : {"http:", "https:", "<script", "<link", "url(", "@import"}) {
    INFO(outside);
    CHECK(!has(html, outside));
  }
  CHECK(has(html, "prefers-color-scheme: dark"));
}

TEST_CASE("Runs beside each other list what differs between them") {
  const io::Path a = fresh_directory("runs/a"), b = fresh_directory("runs/b");
  write_settings(a, {.epochs = 2, .lr = 0.5});
  write_settings(b, {.data = "folder:/x", .epochs = 2, .lr = 0.25});
  write_metrics(a, 1);
  write_metrics(b, 2, true);
  write_findings_of(b, {"cat", "dog"});
  const std::string html = page_of({a, b});
  CHECK(has(html, "<title>2 runs</title>"));
  const std::string settings = section(html, "Settings that differ");
  CHECK(has(settings, "<th>a</th><th>b</th>"));
  CHECK(has(settings, "<td>lr</td><td>0.5</td><td>0.25</td>"));
  CHECK(has(settings, "<td>data</td><td>builtin</td><td>folder:/x</td>"));
  CHECK(!has(settings, "<td>epochs</td>"));
  const std::string loss = section(html, "Loss");
  for (const char* name : {"a: training", "b: training", "a: validation", "b: validation"}) {
    CHECK(has(loss, std::string("</svg>") + name + "</span>"));
  }
  CHECK(has(section(html, "Confusion matrix"), "b: 70.00% of 10"));
  CHECK(has(section(html, "Confusion matrix"), "a: no validation.json, and no checkpoint"));

  // Of one name they go by their paths.
  const io::Path other = fresh_directory("others/a");
  write_settings(other, {});
  const std::string both = page_of({a, other});
  CHECK(has(both, "<th>" + a.string() + "</th><th>" + other.string() + "</th>"));
  CHECK(has(both, other.string() + ": no metrics.jsonl in " + other.string()));
}

TEST_CASE("What is missing is said in its place") {
  const io::Path run = fresh_directory("bare");
  write_settings(run, {});
  const std::string bare = page_of({run});
  CHECK(has(section(bare, "Overview"), "bare: no metrics.jsonl in "));
  CHECK(has(section(bare, "Loss"), "No run recorded it."));
  CHECK(has(section(bare, "Loss scale"), "No run scaled its loss"));
  CHECK(has(section(bare, "Layers"), "No run was trained with --watch"));
  CHECK(has(section(bare, "Most-wrong images"), "no validation.json, and no checkpoint"));
  CHECK(has(section(bare, "Settings"), "All settings have their defaults."));
  std::filesystem::remove(run / "config.yaml");
  write_metrics(run, 1);
  CHECK(has(section(page_of({run}), "Settings"), "bare: no config.yaml in "));

  const io::Path none = fresh_directory("none");
  CHECK_THROWS_WITH(read_run(none, true), Contains(none.string() + ": no such directory"));
  io::make_directories(none);
  CHECK_THROWS_WITH(read_run(none, true), Contains(none.string() + ": no run: expected "));
}

TEST_CASE("Names are text, whatever they hold") {
  const io::Path run = fresh_directory("<img src=x onerror='a\"&b'>");
  write_settings(run, {.data = "folder:<script>&\"'", .weights = "</style>"});
  write_metrics(run, 1);
  train::MetricsLog(run).write(7, {{"<b>'&", 1}});
  write_findings_of(run, {"<i>\"'&", "</svg>"});
  const std::string html = page_of({run});
  for (const char* raw : {"<img src=x", "<script", "<b>", "<i>", "onerror='"}) {
    INFO(raw);
    CHECK(!has(html, raw));
  }
  CHECK(html.find("</style>") == html.rfind("</style>"));  // the page's own
  CHECK(has(html, "&lt;img src=x onerror=&#39;a&quot;&amp;b&#39;&gt;"));
  CHECK(has(html, "folder:&lt;script&gt;&amp;&quot;&#39;"));
  CHECK(has(html, "&lt;/style&gt;"));
  CHECK(has(section(html, "Other figures"), "&lt;b&gt;&#39;&amp;"));
  const std::string confusion = section(html, "Confusion matrix");
  CHECK(has(confusion, "&lt;i&gt;&quot;&#39;&amp;, &lt;/svg&gt;: 0.2"));
}

TEST_CASE("Metrics are read to their last whole line, and a damaged line is named") {
  const io::Path run = fresh_directory("cut");
  write_settings(run, {});
  write_metrics(run, 1);
  const io::Path file = run / "metrics.jsonl";
  const std::string whole = io::read_text(file);
  std::ofstream(file) << whole.substr(0, whole.size() - 9);
  CHECK(read_run(run, true).metrics.size() == 7);
  std::ofstream(file) << "{\"step\":1}\n{\"step\":2,\"loss\n" << whole;
  CHECK_THROWS_WITH(read_run(run, true), Contains(file.string() + ":2: expected an object"));
}

TEST_CASE("A long run's curves are of as many points as can be seen") {
  const io::Path run = fresh_directory("long");
  io::make_directories(run);
  std::ofstream file(run / "metrics.jsonl");
  for (int step = 1; step <= 20000; ++step) {
    file << "{\"step\":" << step << ",\"loss/step\":" << (step % 2 == 0 ? 1.5 : 0.5) << "}\n";
  }
  file.close();
  const std::string loss = section(page_of({run}), "Loss");
  CHECK(has(loss, "Points are means of up to 40 rows"));
  CHECK(std::ranges::count(loss, 'L') < 600);
}
