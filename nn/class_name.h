// What the class of a module is called: for whoever picks modules by their classes, or speaks of
// one in an error.
#pragma once

#include <string>
#include <typeinfo>

#include "nn/module.h"

namespace weft::nn {

/// Of modules whose class is not C++'s, so that the language that has it knows the name.
class NamesItsClass {
 public:
  /// With what the class lies in, by dots: "net.Block".
  virtual std::string class_name() const = 0;

 protected:
  NamesItsClass() = default;
  ~NamesItsClass() = default;
};

/// "weft::models::EncoderBlock"
std::string class_name(const std::type_info& type);
/// That of the module's class, or what the module says.
std::string class_name(const Module& module);

/// Whether a class of that full name is meant by `name`, which may leave out what the class lies in
/// or some of it.
bool is_class_name(const std::string& full, const std::string& name);

}  // namespace weft::nn
