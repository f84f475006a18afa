// Threads that work for another one: what they allocate is counted on its account, as its kind.
//
//   const memory::Owner owner = memory::current_owner();    // on the thread that starts them
//   std::thread thread([owner] {
//     const memory::WorkingFor working(owner);
//     ...
//   });
#pragma once

#include "core/memory_account.h"

namespace weft::memory {

class WorkingFor {
 public:
  explicit WorkingFor(const Owner& owner);
  ~WorkingFor();
  WorkingFor(const WorkingFor&) = delete;
  WorkingFor& operator=(const WorkingFor&) = delete;

 private:
  Owner previous_;
};

}  // namespace weft::memory
