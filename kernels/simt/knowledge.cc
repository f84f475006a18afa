#include "kernels/simt/knowledge.h"

#include <algorithm>

namespace weft::simt {
namespace {

bool covers(const std::vector<Clock>& a, const std::vector<Clock>& b) {
  for (size_t i = 0; i < b.size(); ++i) {
    if (a[i] < b[i]) return false;
  }
  return true;
}

void join_clocks(std::vector<Clock>& into, const std::vector<Clock>& from) {
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void join_into(Knowledge& into, const Knowledge& from) {
  join_clocks(into.seen, from.seen);
  join_clocks(into.fenced, from.fenced);
  if (!from.earlier || from.earlier == into.earlier) return;
  if (!into.earlier) {
    into.earlier = from.earlier;
    return;
  }
  auto merged = std::make_shared<std::map<uint32_t, KnowledgePtr>>(*into.earlier);
  for (const auto& [cluster, known] : *from.earlier) {
    KnowledgePtr& mine = (*merged)[cluster];
    mine = mine ? join(mine, known) : known;
  }
  into.earlier = std::move(merged);
}

}  // namespace

KnowledgePtr join(const KnowledgePtr& a, const KnowledgePtr& b) {
  if (a == b || !b) return a;
  if (!a) return b;
  if (!b->earlier && covers(a->seen, b->seen) && covers(a->fenced, b->fenced)) return a;
  if (!a->earlier && covers(b->seen, a->seen) && covers(b->fenced, a->fenced)) return b;
  auto result = std::make_shared<Knowledge>(*a);
  join_into(*result, *b);
  return result;
}

KnowledgePtr with_event(const KnowledgePtr& known, int agent, Clock clock) {
  if (known->seen[agent] >= clock) return known;
  auto result = std::make_shared<Knowledge>(*known);
  result->seen[agent] = clock;
  return result;
}

void Release::add(const KnowledgePtr& known, int agent, Clock clock) {
  add(known);
  events_.push_back({agent, clock});
}

KnowledgePtr Release::take() {
  if (parts_.empty()) return nullptr;
  std::sort(parts_.begin(), parts_.end());
  parts_.erase(std::unique(parts_.begin(), parts_.end()), parts_.end());
  auto result = std::make_shared<Knowledge>(*parts_.front());
  for (size_t i = 1; i < parts_.size(); ++i) join_into(*result, *parts_[i]);
  for (const Event& event : events_) {
    result->seen[event.agent] = std::max(result->seen[event.agent], event.clock);
  }
  parts_.clear();
  events_.clear();
  return result;
}

}  // namespace weft::simt
