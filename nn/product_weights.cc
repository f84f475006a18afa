#include "nn/product_weights.h"

#include <string_view>
#include <typeinfo>

#include "nn/layers.h"

namespace weft::nn {
namespace {

/// The name of the parameter that a layer multiplies by; empty for what is no such layer.
std::string_view product_weight(const Module& module) {
  const std::type_info& type = typeid(module);
  if (type == typeid(Linear) || type == typeid(Conv2d)) return "weight";
  return type == typeid(MultiheadAttention) ? "in_proj_weight" : "";
}

}  // namespace

std::unordered_set<const void*> product_weights(Module& root) {
  std::unordered_set<const void*> of_products, of_others;
  for (const auto& [path, module] : root.named_modules()) {
    const std::string_view weight = product_weight(*module);
    for (const auto& [name, tensor] : module->named_parameters()) {
      if (name.find('.') != std::string::npos) continue;  // a child's
      (name == weight ? of_products : of_others).insert(tensor.id());
    }
  }
  for (const void* id : of_others) of_products.erase(id);
  return of_products;
}

}  // namespace weft::nn
