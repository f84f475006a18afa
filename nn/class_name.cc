#include "nn/class_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace weft::nn {

std::string class_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : type.name();
}

std::string class_name(const Module& module) {
  const auto* const own = dynamic_cast<const NamesItsClass*>(&module);
  return own ? own->class_name() : class_name(typeid(module));
}

bool is_class_name(const std::string& full, const std::string& name) {
  return full == name || full.ends_with("::" + name) || full.ends_with("." + name);
}

}  // namespace weft::nn
