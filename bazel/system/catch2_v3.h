// Catch2 3 under the names of Catch2 2, in which the tests are written: it takes the place of
// <catch2/catch.hpp> where that is not installed.
#pragma once

#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

namespace Catch {
namespace Matchers {

inline StringContainsMatcher Contains(const std::string& text,
                                      CaseSensitive case_sensitivity = CaseSensitive::Yes) {
  return ContainsSubstring(text, case_sensitivity);
}

}  // namespace Matchers

using Matchers::Contains;
using Matchers::EndsWith;
using Matchers::StartsWith;

}  // namespace Catch

using Catch::Approx;
