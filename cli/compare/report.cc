#include "cli/compare/report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/report/median.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;

ordered_json json_of(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
}

ordered_json json_of(const SideResult& side, const ordered_json& ratio = {}) {
  if (!side.failure.empty()) return {{"failure", side.failure}};
  ordered_json json = json_of(Spread::of(side.values));
  json["best"] = side.best;
  json["values"] = side.values;
  if (!ratio.is_null()) json["ratio"] = ratio;
  if (!side.profile.is_null()) json["profile"] = side.profile;
  return json;
}

ordered_json json_of(const CaseResult& result) {
  ordered_json peers = ordered_json::object();
  for (const PeerResult& peer : result.peers) {
    ordered_json ratio;
    if (!peer.ratios.empty()) {
      ratio = json_of(Spread::of(peer.ratios));
      ratio["best"] = peer.best / result.best;
      ratio["values"] = peer.ratios;
    }
    peers[peer.side] = json_of(peer, ratio);
  }
  return {{"group", result.about.group},
          {"name", result.about.name},
          {"unit", result.is_memory() ? "bytes" : "seconds"},
          {"work", result.about.work},
          {"weft", json_of(static_cast<const SideResult&>(result))},
          {"peers", peers}};
}

/// Bars of ratios, one group per kind of peer.
report::BarChart chart_of(const std::vector<const CaseResult*>& results) {
  report::BarChart chart = {
      .title = "The peer's figure over Weft's",
      .x = {.label = "ratio", .scale = report::Scale::kLog2},
      .origin = 1,
      .caption = "To the right of 1 Weft is ahead, to the left the peer is. Medians of the pairs."};
  for (size_t i = 0; i < results.size(); ++i) {
    chart.categories.push_back(results[i]->about.name);
    for (const PeerResult& peer : results[i]->peers) {
      if (peer.ratios.empty()) continue;
      const std::string name = "against " + peer.side;
      auto group = std::ranges::find(chart.groups, name, &report::BarGroup::name);
      if (group == chart.groups.end()) group = chart.groups.insert(group, {name, {}});
      group->values.resize(i, NAN);  // of cases without this peer
      group->values.push_back(std::round(100 * Spread::of(peer.ratios).median) / 100);
    }
  }
  return chart;
}

std::string format_figure(double value, bool is_memory) {
  if (is_memory) return fmt::format("{:.0f} MB", 1e-6 * value);
  if (value < 1e-3) return fmt::format("{:.3g} us", 1e6 * value);
  if (value < 1) return fmt::format("{:.3g} ms", 1e3 * value);
  return fmt::format("{:.3g} s", value);
}

/// A row for each peer, or one of Weft alone. On a page failures stand in the place of figures, and
/// a ratio has its extremes; in the terminal a last cell has the failure or the pairs' ratios.
std::vector<std::vector<std::string>> rows_of(const CaseResult& result, bool on_page) {
  const auto figure = [&](const SideResult& side, const char* failed) {
    if (!side.failure.empty()) return on_page ? side.failure : std::string(failed);
    return format_figure(Spread::of(side.values).median, result.is_memory());
  };
  const auto spread = [](const SideResult& side) {
    if (!side.failure.empty()) return std::string();
    return fmt::format("{:.0f}%", 100 * Spread::of(side.values).relative());
  };
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::vector<std::string>& cells, const std::string& note) {
    rows.push_back({result.about.name, figure(result, "failed"), spread(result)});
    rows.back().insert(rows.back().end(), cells.begin(), cells.end());
    if (!on_page) rows.back().push_back(note);
  };
  if (result.peers.empty()) add({"", "", "", "", ""}, result.failure);
  for (const PeerResult& peer : result.peers) {
    const Spread ratio = Spread::of(peer.ratios);
    std::string range, best;
    if (peer.failure.empty() && !peer.ratios.empty()) {
      range = fmt::format("{:.2f}", ratio.median);
      if (on_page) range += fmt::format(" ({:.2f} to {:.2f})", ratio.least, ratio.most);
      best = fmt::format("{:.2f}", peer.best / result.best);
    }
    add({peer.side, figure(peer, "-"), spread(peer), range, best},
        !peer.failure.empty()     ? peer.failure
        : !result.failure.empty() ? result.failure
                                  : fmt::format("{:.2f}", fmt::join(peer.ratios, " ")));
  }
  return rows;
}

/// Everything that is known of the run but its cases and commands.
report::Table table_of_setting(const ordered_json& about) {
  report::Table table = {.columns = {"setting", "value"}};
  const auto add = [&](const std::string& name, const ordered_json& value) {
    table.rows.push_back({name, value.is_string() ? value.get<std::string>() : value.dump()});
  };
  for (const auto& [key, value] : about.items()) {
    if (!value.is_object()) add(key, value);
    if (!value.is_object()) continue;
    for (const auto& [name, entry] : value.items()) {
      if (name == "command") continue;
      if (!entry.is_object()) {
        add(key + " " + name, entry);
        continue;
      }
      for (const auto& [fact, of_peer] : entry.items()) {
        if (fact != "command") add(name + " " + fact, of_peer);
      }
    }
  }
  return table;
}

/// Where the time of lost cases goes, on both sides.
void add_profiles(report::Page& page, const std::vector<CaseResult>& cases) {
  bool has_heading = false;
  for (const CaseResult& result : cases) {
    if (!result.is_lost() || result.profile.is_null()) continue;
    if (!std::exchange(has_heading, true)) page.heading("Where the time of the lost cases goes");
    const auto add = [&](const std::string& who, const ordered_json& rows) {
      if (!rows.is_array()) return;
      report::Table table = {.columns = {who, "calls", "ms"}};
      for (const ordered_json& row : rows) {
        table.rows.push_back({row.value("name", "?"), row.value("calls", ordered_json(0)).dump(),
                              fmt::format("{:.3f}", row.value("ms", 0.0))});
      }
      page.add(table);
    };
    page.paragraph(result.about.name);
    add("Weft", result.profile);
    for (const PeerResult& peer : result.peers) add(peer.side, peer.profile);
  }
}

}  // namespace

Spread Spread::of(std::vector<double> values) {
  if (values.empty()) return {};
  const auto [least, most] = std::ranges::minmax(values);
  return {report::median(values), least, most};
}

double CaseResult::worst_ratio() const {
  double worst = std::numeric_limits<double>::infinity();
  for (const PeerResult& peer : peers) {
    if (!peer.ratios.empty()) worst = std::min(worst, Spread::of(peer.ratios).median);
  }
  return worst;
}

io::Table compare_table() {
  constexpr auto kLeft = io::Table::Align::kLeft;
  return io::Table({{"case", 40, kLeft},
                    {"Weft", 8},
                    {"+-", 4},
                    {"peer", 11, kLeft},
                    {"", 8},
                    {"+-", 4},
                    {"ratio", 6},
                    {"best", 6},
                    {"pair by pair", 12, kLeft}});
}

void print_rows(io::Table& table, const CaseResult& result) {
  for (const auto& row : rows_of(result, false)) table.row(row);
}

ordered_json to_json(const CompareReport& report) {
  ordered_json json = report.about;
  json["cases"] = ordered_json::array();
  for (const CaseResult& result : report.cases) json["cases"].push_back(json_of(result));
  return json;
}

report::Page to_page(const CompareReport& report) {
  const ordered_json& about = report.about;
  report::Page page("Weft beside its peers", about.value("started", ""));
  page.paragraph(
      "The programs did the same work in turns, each in a process of its own, on the same cores "
      "with as many threads. A ratio is the peer's figure over Weft's of the same turns: above 1 "
      "Weft is ahead, below 1 the peer is.");
  size_t lost = 0;
  for (const CaseResult& result : report.cases) lost += result.is_lost();
  page.paragraph(fmt::format("{} cases; a peer was ahead in {}. Processor: {}; threads: {}.",
                             report.cases.size(), lost, about.value("processor", "this machine"),
                             about.value("threads", 0)));
  std::vector<std::pair<std::string, std::vector<const CaseResult*>>> groups;
  for (const CaseResult& result : report.cases) {
    auto group = std::ranges::find(groups, result.about.group, [](auto& g) { return g.first; });
    if (group == groups.end()) group = groups.insert(group, {result.about.group, {}});
    group->second.push_back(&result);
  }
  for (auto& [group, results] : groups) {
    std::ranges::stable_sort(results, {}, [](const CaseResult* r) { return r->worst_ratio(); });
    page.heading(group);
    if (const report::BarChart chart = chart_of(results); !chart.groups.empty()) page.add(chart);
    report::Table table = {.columns = {"case", "Weft", "spread", "peer", "figure", "spread",
                                       "ratio (pairs)", "best samples"},
                           .caption = "Spread: largest less smallest turn, over the median."};
    for (const CaseResult* result : results) {
      std::ranges::copy(rows_of(*result, true), std::back_inserter(table.rows));
    }
    page.add(table);
  }
  add_profiles(page, report.cases);
  page.heading("Settings");
  page.add(table_of_setting(about));
  page.heading("Commands");
  const auto add_command = [&](const ordered_json& program) {
    if (program.contains("command")) page.code(program["command"].get<std::string>());
  };
  add_command(about.value("weft", ordered_json::object()));
  for (const ordered_json& peer : about.value("peers", ordered_json::object())) add_command(peer);
  return page;
}

}  // namespace weft::cli
