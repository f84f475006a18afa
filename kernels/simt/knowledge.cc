#include "kernels/simt/knowledge.h"

#include <algorithm>
#include <functional>

namespace weft::simt {
namespace {

/// Whether a has all of b.
bool covers(const Knowledge& a, const Knowledge& b) {
  const auto none_less = [](const std::vector<Clock>& x, const std::vector<Clock>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), std::greater_equal<>());
  };
  return !b.earlier && none_less(a.seen, b.seen) && none_less(a.fenced, b.fenced);
}

void merge(Knowledge& into, const Knowledge& from) {
  for (const auto clocks : {&Knowledge::seen, &Knowledge::fenced}) {
    std::ranges::transform(into.*clocks, from.*clocks, (into.*clocks).begin(), std::ranges::max);
  }
  if (!into.earlier) into.earlier = from.earlier;
  if (!from.earlier || from.earlier == into.earlier) return;
  auto merged = std::make_shared<KnowledgeByCluster>(*into.earlier);
  for (const auto& [cluster, known] : *from.earlier) join_into((*merged)[cluster], known);
  into.earlier = std::move(merged);
}

}  // namespace

KnowledgePtr join(const KnowledgePtr& a, const KnowledgePtr& b) {
  if (a == b || !b) return a;
  if (!a) return b;
  if (covers(*a, *b)) return a;
  if (covers(*b, *a)) return b;
  auto result = std::make_shared<Knowledge>(*a);
  merge(*result, *b);
  return result;
}

void join_into(KnowledgePtr& mine, const KnowledgePtr& known) { mine = join(mine, known); }

KnowledgePtr with_event(const KnowledgePtr& known, int agent, Clock clock) {
  if (known->seen[agent] >= clock) return known;
  auto result = std::make_shared<Knowledge>(*known);
  result->seen[agent] = clock;
  return result;
}

void Release::add(const KnowledgePtr& known, int agent, Clock clock) {
  if (parts_.empty() || parts_.back() != known) parts_.push_back(known);
  events_.emplace_back(agent, clock);
}

KnowledgePtr Release::take() {
  if (parts_.empty()) return nullptr;
  std::sort(parts_.begin(), parts_.end());
  parts_.erase(std::unique(parts_.begin(), parts_.end()), parts_.end());
  auto result = std::make_shared<Knowledge>(*parts_.front());
  for (size_t i = 1; i < parts_.size(); ++i) merge(*result, *parts_[i]);
  for (const auto& [agent, clock] : events_) {
    result->seen[agent] = std::max(result->seen[agent], clock);
  }
  parts_.clear();
  events_.clear();
  return result;
}

}  // namespace weft::simt
