// Outer products, and Einstein summation as a chain of matrix products. A label names a dimension;
// operands meet in turn, and what only they had of the labels that nobody wants any more is summed
// over.
#include <algorithm>
#include <set>
#include <string>

#include "autograd/ops.h"
#include "autograd/raw.h"

namespace weft::ops {
namespace {

/// The dimensions of an ellipsis are labelled from the last one on, so that they broadcast.
constexpr char kEllipsis = '\x01';
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// A tensor and a label for each of its dimensions.
struct Labelled {
  Tensor x;
  std::string labels;

  bool has(char label) const { return labels.find(label) != std::string::npos; }
  int place(char label) const { return static_cast<int>(labels.find(label)); }
  int64_t size(char label) const { return x.shape()[place(label)]; }
};

/// The labels of one operand, of `dims` dimensions, or of the result, whose ellipsis has `dots`.
std::string labels_of(std::string_view part, std::string_view equation, int dots) {
  std::string labels;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] == ' ') continue;
    if (part.substr(i, 3) == "...") {
      WEFT_CHECK(labels.find(kEllipsis) == std::string::npos,
                 "einsum: an ellipsis appears twice in \"{}\" of \"{}\"", part, equation);
      for (int k = dots; k > 0; --k) labels += static_cast<char>(kEllipsis + k - 1);
      i += 2;
      continue;
    }
    WEFT_CHECK(is_letter(part[i]), "einsum: expected letters and \"...\", got '{}' in \"{}\"",
               part[i], equation);
    labels += part[i];
  }
  return labels;
}

/// x with each label once: of one that names two dimensions their diagonal.
Labelled without_repeats(Labelled operand) {
  auto& [x, labels] = operand;
  for (size_t i = 0; i < labels.size(); ++i) {
    for (size_t j; (j = labels.find(labels[i], i + 1)) != std::string::npos;) {
      const char label = labels[i];
      WEFT_CHECK(x.size(i) == x.size(j), "einsum: the label '{}' means {} and {} elements of {}",
                 label, x.size(i), x.size(j), x);
      x = diagonal(x, 0, static_cast<int64_t>(i), static_cast<int64_t>(j));
      labels.erase(j, 1).erase(i, 1).push_back(label);
      i = 0;
    }
  }
  return operand;
}

/// Sums over the labels that are not among the wanted ones.
Labelled without(Labelled operand, const std::string& wanted) {
  Shape dims;
  std::string rest;
  for (size_t i = 0; i < operand.labels.size(); ++i) {
    if (wanted.find(operand.labels[i]) == std::string::npos) {
      dims.push_back(static_cast<int64_t>(i));
    } else {
      rest += operand.labels[i];
    }
  }
  if (dims.empty()) return operand;
  return {sum(operand.x, dims), rest};
}

/// The dimensions in the order of these labels; those that x lacks have size 1.
Tensor arranged(const Labelled& operand, const std::string& labels) {
  Shape order;
  for (char label : labels) {
    if (operand.has(label)) order.push_back(operand.place(label));
  }
  Tensor x = permute(operand.x, order);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (!operand.has(labels[i])) x = unsqueeze(x, static_cast<int64_t>(i));
  }
  return x;
}

int64_t elements(const Labelled& operand, const std::string& labels) {
  int64_t count = 1;
  for (char label : labels) count *= operand.size(label);
  return count;
}

/// Two operands multiplied and summed over the labels that both have and nobody wants.
Labelled contracted(Labelled a, Labelled b, const std::string& wanted) {
  a = without(a, wanted + b.labels);
  b = without(b, wanted + a.labels);
  // Sizes of 1 broadcast.
  for (char label : a.labels) {
    if (!b.has(label) || a.size(label) == b.size(label)) continue;
    WEFT_CHECK(a.size(label) == 1 || b.size(label) == 1,
               "einsum: a dimension has {} elements in {} and {} in {}", a.size(label), a.x,
               b.size(label), b.x);
    Labelled& narrow = a.size(label) == 1 ? a : b;
    Shape shape = narrow.x.shape();
    shape[narrow.place(label)] = (a.size(label) == 1 ? b : a).size(label);
    narrow.x = expand(narrow.x, shape);
  }
  std::string batch, left, right, inner;
  for (char label : a.labels) {
    const bool is_shared = b.has(label);
    const bool is_wanted = wanted.find(label) != std::string::npos;
    (!is_shared ? left : is_wanted ? batch : inner) += label;
  }
  for (char label : b.labels) {
    if (!a.has(label)) right += label;
  }
  const std::string result = batch + left + right;
  if (inner.empty() || !is_floating(promote(a.x.dtype(), b.x.dtype()))) {
    const std::string all = result + inner;
    return without({mul(arranged(a, all), arranged(b, all)), all}, result);
  }
  const int64_t batches = elements(a, batch), depth = elements(a, inner);
  const Tensor x = reshape(arranged(a, batch + left + inner), {batches, elements(a, left), depth});
  const Tensor y =
      reshape(arranged(b, batch + inner + right), {batches, depth, elements(b, right)});
  Shape shape;
  for (char label : batch + left) shape.push_back(a.size(label));
  for (char label : right) shape.push_back(b.size(label));
  return {reshape(matmul(x, y), shape), result};
}

}  // namespace

Tensor outer(const Tensor& a, const Tensor& b) {
  WEFT_CHECK(a.dim() == 1 && b.dim() == 1, "outer: expected vectors, got {} and {}", a, b);
  return mul(unsqueeze(a, 1), b);
}

Tensor einsum(std::string_view equation, const Tensors& operands) {
  const size_t arrow = equation.find("->");
  std::string_view left = equation.substr(0, arrow);
  std::vector<std::string_view> parts;
  while (true) {
    const size_t comma = left.find(',');
    parts.push_back(left.substr(0, comma));
    if (comma == std::string_view::npos) break;
    left.remove_prefix(comma + 1);
  }
  WEFT_CHECK(parts.size() == operands.size(), "einsum: \"{}\" has {} operands, got {}", equation,
             parts.size(), operands.size());
  std::vector<Labelled> all;
  int widest = 0;  // of the ellipses
  for (size_t i = 0; i < operands.size(); ++i) {
    WEFT_CHECK(operands[i].defined(), "einsum: operand {} is undefined", i);
    const int letters = static_cast<int>(std::ranges::count_if(parts[i], is_letter));
    const bool has_dots = parts[i].find("...") != std::string_view::npos;
    const int dots = has_dots ? std::max(0, operands[i].dim() - letters) : 0;
    widest = std::max(widest, dots);
    const std::string labels = labels_of(parts[i], equation, dots);
    WEFT_CHECK(static_cast<int>(labels.size()) == operands[i].dim(),
               "einsum: \"{}\" of \"{}\" does not have the dimensions of {}", parts[i], equation,
               operands[i]);
    all.push_back(without_repeats({operands[i], labels}));
  }
  std::string wanted;
  if (arrow != std::string_view::npos) {
    wanted = labels_of(equation.substr(arrow + 2), equation, widest);
  } else {  // the ellipsis, then letters that appear once, in their order
    for (int k = widest; k > 0; --k) wanted += static_cast<char>(kEllipsis + k - 1);
    const std::string_view inputs = equation;
    const std::set<char> letters(inputs.begin(), inputs.end());
    for (char c : letters) {
      if (is_letter(c) && std::ranges::count(inputs, c) == 1) wanted += c;
    }
  }
  for (char label : wanted) {
    const bool is_known = std::ranges::any_of(all, [&](const Labelled& o) { return o.has(label); });
    WEFT_CHECK(is_known && std::ranges::count(wanted, label) == 1,
               "einsum: the result of \"{}\" has '{}' twice, or no operand has it", equation,
               label);
  }
  Labelled result = all[0];
  for (size_t i = 1; i < all.size(); ++i) {
    std::string later = wanted;
    for (size_t k = i + 1; k < all.size(); ++k) later += all[k].labels;
    result = contracted(result, all[i], later);
  }
  return arranged(without(result, wanted), wanted);
}

}  // namespace weft::ops
