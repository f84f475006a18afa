// What Weft's tests need of an ONNX model: its nodes, their attributes, and tensors.
//
// The messages and their field numbers are those of onnx.proto (ONNX 1.12, onnx/onnx.proto in
// github.com/onnx/onnx). Subgraphs, sequences, sparse and external tensors are not read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace weft::onnx {

using Path = std::filesystem::path;

struct Attribute {
  double f = 0;
  int64_t i = 0;
  std::string s;
  Tensor t;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  bool is_graph = false;
};

struct Node {
  std::string op_type;
  std::vector<std::string> inputs, outputs;  // an optional value that is absent has no name
  std::map<std::string, Attribute, std::less<>> attributes;

  const Attribute* find(std::string_view name) const;
  double f(std::string_view name, double fallback) const;
  int64_t i(std::string_view name, int64_t fallback) const;
  std::string s(std::string_view name, std::string_view fallback) const;
  /// Empty when the attribute is absent.
  std::vector<int64_t> ints(std::string_view name) const;
};

struct Model {
  std::vector<Node> nodes;  // in an order in which they can run
  std::vector<std::pair<std::string, Tensor>> initializers;
  std::vector<std::string> inputs, outputs;
  std::vector<std::string> not_tensors;  // of these, the sequences, maps and optionals
};

/// Parses a ModelProto. Throws Error naming the message and field at fault.
Model parse_model(std::string_view bytes);
/// The dtype of a TensorProto.DataType; throws Error for those that Weft lacks.
DType element_type(int64_t type);
/// Parses a TensorProto. Throws Error also for element types that Weft lacks.
Tensor parse_tensor(std::string_view bytes);

std::string read_file(const Path& path);

}  // namespace weft::onnx
