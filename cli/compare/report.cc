#include "cli/compare/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/report/html_report.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;

constexpr auto kLeft = io::Table::Align::kLeft;

ordered_json json_of(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
}

ordered_json json_of(const CaseResult& result) {
  ordered_json json = {{"group", result.about.group},
                       {"name", result.about.name},
                       {"unit", result.is_memory() ? "bytes" : "seconds"},
                       {"work", result.about.work}};
  if (result.failure.empty()) {
    json["weft"] = json_of(Spread::of(result.values));
    json["weft"]["best"] = result.best;
    json["weft"]["values"] = result.values;
  } else {
    json["weft"] = {{"failure", result.failure}};
  }
  if (!result.profile.is_null()) json["weft"]["profile"] = result.profile;
  json["peers"] = ordered_json::object();
  for (const PeerResult& peer : result.peers) {
    ordered_json& entry = json["peers"][peer.side];
    if (!peer.failure.empty()) {
      entry = {{"failure", peer.failure}};
      continue;
    }
    entry = json_of(Spread::of(peer.values));
    entry["best"] = peer.best;
    entry["values"] = peer.values;
    if (!peer.ratios.empty()) {
      entry["ratio"] = json_of(Spread::of(peer.ratios));
      entry["ratio"]["best"] = peer.best / result.best;
      entry["ratio"]["values"] = peer.ratios;
    }
    if (!peer.profile.is_null()) entry["profile"] = peer.profile;
  }
  return json;
}

/// Bars of ratios, one group per kind of peer.
report::BarChart chart_of(const std::vector<const CaseResult*>& results) {
  report::BarChart chart = {
      .title = "PyTorch's figure over Weft's",
      .x = {.label = "ratio", .scale = report::Scale::kLog2},
      .origin = 1,
      .caption = "To the right of 1 Weft is ahead, to the left PyTorch is. Medians of the pairs."};
  std::vector<std::string> sides;
  for (const CaseResult* result : results) {
    chart.categories.push_back(result->about.name);
    for (const PeerResult& peer : result->peers) {
      if (!peer.ratios.empty() && std::ranges::find(sides, peer.side) == sides.end()) {
        sides.push_back(peer.side);
      }
    }
  }
  for (const std::string& side : sides) {
    report::BarGroup bars = {.name = "against " + side, .values = {}};
    for (const CaseResult* result : results) {
      double ratio = std::numeric_limits<double>::quiet_NaN();
      for (const PeerResult& peer : result->peers) {
        if (peer.side == side && !peer.ratios.empty()) ratio = Spread::of(peer.ratios).median;
      }
      bars.values.push_back(std::round(100 * ratio) / 100);
    }
    chart.groups.push_back(std::move(bars));
  }
  return chart;
}

std::string format_range(const Spread& spread) {
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", spread.median, spread.least, spread.most);
}

report::Table table_of(const std::vector<const CaseResult*>& results) {
  report::Table table = {.columns = {"case", "Weft", "spread", "PyTorch", "figure", "spread",
                                     "ratio (pairs)", "best samples"},
                         .rows = {},
                         .caption = "Spread: largest less smallest turn, over the median."};
  for (const CaseResult* result : results) {
    const bool memory = result->is_memory();
    const auto spread = [](const std::vector<double>& values) {
      return fmt::format("{:.0f}%", 100 * Spread::of(values).relative());
    };
    const bool failed = !result->failure.empty();
    const std::vector<std::string> weft = {
        result->about.name,
        failed ? result->failure : format_figure(Spread::of(result->values).median, memory),
        failed ? "" : spread(result->values)};
    if (result->peers.empty())
      table.rows.push_back({weft[0], weft[1], weft[2], "", "", "", "", ""});
    for (const PeerResult& peer : result->peers) {
      if (!peer.failure.empty()) {
        table.rows.push_back({weft[0], weft[1], weft[2], peer.side, peer.failure, "", "", ""});
        continue;
      }
      const bool has_ratio = !peer.ratios.empty();
      table.rows.push_back({weft[0], weft[1], weft[2], peer.side,
                            format_figure(Spread::of(peer.values).median, memory),
                            spread(peer.values),
                            has_ratio ? format_range(Spread::of(peer.ratios)) : "",
                            has_ratio ? fmt::format("{:.2f}", peer.best / result->best) : ""});
    }
  }
  return table;
}

/// Everything that is known of the run but its cases and commands.
report::Table table_of_setting(const ordered_json& about) {
  report::Table table = {.columns = {"setting", "value"}, .rows = {}, .caption = ""};
  const auto text = [](const ordered_json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  for (const auto& [key, value] : about.items()) {
    if (!value.is_object()) {
      table.rows.push_back({key, text(value)});
      continue;
    }
    for (const auto& [name, entry] : value.items()) {
      if (name != "command") table.rows.push_back({key + " " + name, text(entry)});
    }
  }
  return table;
}

/// Where the time of lost cases goes, on both sides.
void add_profiles(report::Page& page, const std::vector<CaseResult>& cases) {
  bool has_heading = false;
  for (const CaseResult& result : cases) {
    if (!result.is_lost() || result.profile.is_null()) continue;
    if (!has_heading) page.heading("Where the time of the lost cases goes");
    has_heading = true;
    const auto add = [&](const std::string& who, const ordered_json& rows) {
      if (!rows.is_array()) return;
      report::Table table = {.columns = {who, "calls", "ms"}, .rows = {}, .caption = ""};
      for (const ordered_json& row : rows) {
        table.rows.push_back({row.value("name", "?"), row.value("calls", ordered_json(0)).dump(),
                              fmt::format("{:.3f}", row.value("ms", 0.0))});
      }
      page.add(table);
    };
    page.paragraph(result.about.name);
    add("Weft", result.profile);
    for (const PeerResult& peer : result.peers) add("PyTorch, " + peer.side, peer.profile);
  }
}

}  // namespace

Spread Spread::of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const size_t n = values.size();
  return {n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values.front(),
          values.back()};
}

double CaseResult::worst_ratio() const {
  double worst = std::numeric_limits<double>::infinity();
  for (const PeerResult& peer : peers) {
    if (!peer.ratios.empty()) worst = std::min(worst, Spread::of(peer.ratios).median);
  }
  return worst;
}

bool CaseResult::is_lost() const { return worst_ratio() < 1; }

std::string format_figure(double value, bool is_memory) {
  if (is_memory) return fmt::format("{:.0f} MB", 1e-6 * value);
  if (value < 1e-3) return fmt::format("{:.3g} us", 1e6 * value);
  if (value < 1) return fmt::format("{:.3g} ms", 1e3 * value);
  return fmt::format("{:.3g} s", value);
}

CompareTable::CompareTable()
    : table_({{"case", 40, kLeft},
              {"Weft", 8},
              {"+-", 4},
              {"PyTorch", 8, kLeft},
              {"", 8},
              {"+-", 4},
              {"ratio", 6},
              {"best", 6},
              {"pair by pair", 12, kLeft}}) {}

void CompareTable::row(const CaseResult& result) {
  const bool memory = result.is_memory();
  const auto spread = [](const Spread& s) { return fmt::format("{:.0f}%", 100 * s.relative()); };
  const Spread weft = Spread::of(result.values);
  const bool failed = !result.failure.empty();
  const std::string figure = failed ? "failed" : format_figure(weft.median, memory);
  const std::string range = failed ? "" : spread(weft);
  if (result.peers.empty()) {
    table_.row({result.about.name, figure, range, "", "", "", "", "", result.failure});
    return;
  }
  for (const PeerResult& peer : result.peers) {
    if (!peer.failure.empty()) {
      table_.row({result.about.name, figure, range, peer.side, "-", "", "", "", peer.failure});
      continue;
    }
    const Spread other = Spread::of(peer.values), ratio = Spread::of(peer.ratios);
    std::string pairs;
    for (const double value : peer.ratios) {
      pairs += fmt::format("{}{:.2f}", pairs.empty() ? "" : " ", value);
    }
    table_.row({result.about.name, figure, range, peer.side, format_figure(other.median, memory),
                spread(other), peer.ratios.empty() ? "" : fmt::format("{:.2f}", ratio.median),
                peer.ratios.empty() ? "" : fmt::format("{:.2f}", peer.best / result.best),
                failed ? result.failure : pairs});
  }
}

ordered_json to_json(const CompareReport& report) {
  ordered_json json = report.about;
  json["cases"] = ordered_json::array();
  for (const CaseResult& result : report.cases) json["cases"].push_back(json_of(result));
  return json;
}

std::string to_html(const CompareReport& report) {
  const ordered_json& about = report.about;
  report::Page page("Weft beside PyTorch", about.value("started", ""));
  page.paragraph(
      "Both programs did the same work in turns, each in a process of its own, on the same cores "
      "with as many threads. A ratio is PyTorch's figure over Weft's of the same pair of turns: "
      "above 1 Weft is ahead, below 1 PyTorch is.");
  size_t lost = 0;
  for (const CaseResult& result : report.cases) lost += result.is_lost();
  page.paragraph(fmt::format("{} cases; PyTorch was ahead in {}. Processor: {}; threads: {}.",
                             report.cases.size(), lost, about.value("processor", "this machine"),
                             about.value("threads", 0)));
  std::vector<std::string> groups;
  for (const CaseResult& result : report.cases) {
    if (std::ranges::find(groups, result.about.group) == groups.end()) {
      groups.push_back(result.about.group);
    }
  }
  for (const std::string& group : groups) {
    std::vector<const CaseResult*> results;
    for (const CaseResult& result : report.cases) {
      if (result.about.group == group) results.push_back(&result);
    }
    std::ranges::stable_sort(results, {}, [](const CaseResult* r) { return r->worst_ratio(); });
    page.heading(group);
    if (const report::BarChart chart = chart_of(results); !chart.groups.empty()) page.add(chart);
    page.add(table_of(results));
  }
  add_profiles(page, report.cases);
  page.heading("Settings");
  page.add(table_of_setting(about));
  page.heading("Commands");
  for (const char* program : {"weft", "pytorch"}) {
    if (about.contains(program) && about[program].contains("command")) {
      page.code(about[program]["command"].get<std::string>());
    }
  }
  return page.html();
}

}  // namespace weft::cli
