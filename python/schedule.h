// Schedules that are functions of Python's.
#pragma once

#include "optim/schedule.h"
#include "python/containers.h"

namespace weft::python {

using ScheduleFunction = std::function<nb::object(int64_t)>;

/// It throws a TypeError naming `whose`, the step and what came, where that is no number.
inline optim::Schedule schedule_of(const char* whose, ScheduleFunction function) {
  return [whose, function = std::move(function)](int64_t step) {
    const nb::gil_scoped_acquire locked;
    const nb::object factor = function(step);
    double number = 0;
    if (nb::try_cast(factor, number)) return number;
    throw type_error("{}: expected a number from the schedule for step {}, got {}, a {}", whose,
                     step, nb::repr(factor).c_str(), type_of(factor));
  };
}

}  // namespace weft::python
