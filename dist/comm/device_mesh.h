// Ranks laid out in a grid with named dimensions, and the groups along each.
//
//   DeviceMesh mesh(world, {{"data", 2}, {"tensor", 4}});   // rank = data * 4 + tensor
//   mesh.group("tensor").all_reduce(x);                     // among the 4 ranks of this row
//
// Row-major: neighbours in the last dimension have neighbouring ranks, so what talks most, tensor
// parallelism, stands last.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dist/comm/communicator.h"

namespace weft::dist {

class DeviceMesh {
 public:
  using Dimensions = std::vector<std::pair<std::string, int>>;

  /// Every rank of `world` calls it alike. Throws Error naming the mesh and the world's size unless
  /// the dimensions multiply out to it.
  DeviceMesh(CommunicatorPtr world, Dimensions dimensions);

  /// This rank's position along a dimension.
  int coordinate(const std::string& dimension) const;
  /// The ranks that differ from this one along a dimension only, in order of that coordinate.
  Communicator& group(const std::string& dimension) const { return *shared_group(dimension); }
  CommunicatorPtr shared_group(const std::string& dimension) const;
  /// "data 2 x tensor 4"
  std::string describe() const;

 private:
  int index_of(const std::string& dimension) const;

  CommunicatorPtr world_;
  Dimensions dimensions_;
  std::vector<int> coordinates_;
  std::vector<CommunicatorPtr> groups_;
};

}  // namespace weft::dist
