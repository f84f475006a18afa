#include "train/trainer/logged_means.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "autograd/ops.h"
#include "io/json_field.h"
#include "train/exact_text.h"

namespace weft::train {

void LoggedMeans::add(const std::string& name, const Tensor& value, double weight) {
  WEFT_CHECK(value.defined() && value.numel() == 1,
             "log: \"{}\": expected one number, got a tensor of shape {}", name,
             value.defined() ? value.shape() : Shape({0}));
  auto entry = std::ranges::find(entries_, name, &Entry::name);
  if (entry == entries_.end()) entry = entries_.insert(entry, {.name = name});
  const NoGrad guard;
  // A batch that is there to fill up must not bring its NaN.
  if (weight == 0 && entry->sum.defined()) return;
  const Tensor number = ops::cast(ops::reshape(detach(value), {}), DType::f64);
  const Tensor share = weight == 0 ? Tensor::scalar(0, DType::f64) : number * weight;
  entry->sum = entry->sum.defined() ? ops::to(entry->sum, share.device()) + share : share;
  entry->weight += weight;
}

/// Ranks that have added nothing take the names of those that have, with a weight of 0.
void LoggedMeans::agree_on_names(const Fabric& fabric) {
  std::string names;
  for (const Entry& entry : entries_) names += entry.name + "\n";
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(names));
  const auto size = static_cast<int64_t>(names.size());
  const Tensor all = fabric.all_gather(Tensor::from(std::vector<int64_t>{hash, size}, {2}));
  const int64_t* const theirs = all.data<int64_t>();
  int source = 0;
  while (source + 1 < fabric.size() && theirs[2 * source + 1] == 0) ++source;
  bool is_complete = true;
  for (int rank = 0; rank < fabric.size(); ++rank) {
    const bool is_silent = theirs[2 * rank + 1] == 0;
    WEFT_CHECK(is_silent || theirs[2 * rank] == theirs[2 * source],
               "log: rank {} has logged other names than rank {}, or in another order", rank,
               source);
    is_complete = is_complete && (!is_silent || theirs[2 * source + 1] == 0);
  }
  if (is_complete) return;
  const Tensor text = Tensor::zeros({theirs[2 * source + 1]}, DType::u8);
  if (fabric.rank() == source) std::ranges::copy(names, text.data<uint8_t>());
  fabric.broadcast(text, source);
  if (!entries_.empty()) return;
  std::stringstream lines(std::string(text.data<uint8_t>(), text.data<uint8_t>() + text.numel()));
  for (std::string name; std::getline(lines, name);) {
    entries_.push_back({.name = name, .sum = Tensor::scalar(0, DType::f64)});
  }
}

/// [ranks, names, 2]: each rank's sums and weights.
std::vector<double> LoggedMeans::all_sums(const Fabric& fabric) {
  if (fabric.size() > 1) agree_on_names(fabric);
  std::vector<double> mine;
  for (const Entry& entry : entries_) {
    mine.push_back(entry.sum.item());
    mine.push_back(entry.weight);
  }
  if (fabric.size() == 1 || mine.empty()) return mine;
  return fabric.all_gather(Tensor::from(mine, {static_cast<int64_t>(mine.size())})).to_vector();
}

NamedValues LoggedMeans::means(const Fabric& fabric) {
  const std::vector<double> sums = all_sums(fabric);
  const size_t row = 2 * entries_.size();
  NamedValues means;
  for (size_t i = 0; i < entries_.size(); ++i) {
    double sum = 0, weight = 0;
    for (size_t at = 2 * i; at < sums.size(); at += row) {
      sum += sums[at];
      weight += sums[at + 1];
    }
    means.emplace_back(entries_[i].name, sum / weight);
  }
  return means;
}

nlohmann::json LoggedMeans::state_dict(const Fabric& fabric) {
  std::vector<std::string> names, sums;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  for (const double value : all_sums(fabric)) sums.push_back(exact_text(value));
  return {{"names", names}, {"sums", sums}};
}

void LoggedMeans::load_state_dict(const nlohmann::json& state, int rank) {
  clear();
  const auto names = io::field<std::vector<std::string>>(state, "names");
  const auto sums = io::field<std::vector<std::string>>(state, "sums");
  WEFT_CHECK(sums.size() >= 2 * (rank + 1) * names.size(),
             "\"sums\": expected two of each name and rank, got {}", sums.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t at = 2 * (rank * names.size() + i);
    entries_.push_back(
        {names[i], Tensor::scalar(exact_number(sums[at]), DType::f64), exact_number(sums[at + 1])});
  }
}

}  // namespace weft::train
