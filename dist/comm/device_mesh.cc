#include "dist/comm/device_mesh.h"

#include <fmt/ranges.h>

namespace weft::dist {

DeviceMesh::DeviceMesh(CommunicatorPtr world, Dimensions dimensions)
    : world_(std::move(world)), dimensions_(std::move(dimensions)) {
  int64_t product = 1;
  for (const auto& [name, size] : dimensions_) {
    WEFT_CHECK(size > 0, "mesh: dimension \"{}\" must be positive, got {}", name, size);
    product *= size;
  }
  WEFT_CHECK(product == world_->size(), "mesh: {} makes {} ranks, {} has {}", describe(), product,
             world_->name(), world_->size());
  int stride = world_->size();
  for (const auto& [name, size] : dimensions_) {
    stride /= size;
    const int coordinate = world_->rank() / stride % size;
    coordinates_.push_back(coordinate);
    std::vector<int> ranks;
    for (int i = 0; i < size; ++i) ranks.push_back(world_->rank() + (i - coordinate) * stride);
    groups_.push_back(world_->group(ranks, name));
  }
}

int DeviceMesh::index_of(const std::string& dimension) const {
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].first == dimension) return static_cast<int>(i);
  }
  WEFT_FAIL("mesh: no dimension \"{}\" in {}", dimension, describe());
}

int DeviceMesh::coordinate(const std::string& dimension) const {
  return coordinates_[index_of(dimension)];
}

CommunicatorPtr DeviceMesh::shared_group(const std::string& dimension) const {
  return groups_[index_of(dimension)];
}

std::string DeviceMesh::describe() const {
  std::vector<std::string> parts;
  for (const auto& [name, size] : dimensions_) parts.push_back(fmt::format("{} {}", name, size));
  return fmt::format("{}", fmt::join(parts, " x "));
}

}  // namespace weft::dist
