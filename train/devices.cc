#include "train/devices.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.h"
#include "core/runtime.h"
#include "dist/comm/device/device_of_rank.h"

namespace weft::train {
namespace {

int number_in(std::string_view text, const std::string& all) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  WEFT_CHECK(error == std::errc() && rest == end && !text.empty(),
             "devices: expected a number, \"auto\", -1 or a list of devices \"0,2\", got \"{}\"",
             all);
  return number;
}

}  // namespace

Devices::Devices(int given) : count(given == -1 ? 0 : given) {
  WEFT_CHECK(given == -1 || given > 0,
             "devices: expected a positive number, \"auto\" or -1, got {}", given);
}

Devices::Devices(const std::string& text) {
  if (text == "auto") {
    count = 0;
  } else if (text.find(',') == std::string::npos) {
    *this = Devices(number_in(text, text));
  } else {
    std::vector<int> list;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      list.push_back(number_in(std::string_view(text).substr(begin, end - begin), text));
      begin = end + 1;
    }
    *this = Devices(list);
  }
}

Devices::Devices(std::vector<int> list)
    : count(static_cast<int>(list.size())), numbers(std::move(list)) {
  WEFT_CHECK(count > 0, "devices: an empty list");
  for (int number : numbers) {
    WEFT_CHECK(number >= 0, "devices: the number of a device is not negative, got {}", number);
  }
  WEFT_CHECK(std::set<int>(numbers.begin(), numbers.end()).size() == numbers.size(),
             "devices: a device is listed twice");
}

int Devices::on(Device kind) const {
  WEFT_CHECK(numbers.empty() || kind.type == DeviceType::cuda,
             "devices: a list of numbers is one of GPUs; expected their count on device {}",
             to_string(kind));
  if (count != 0) return count;
  if (kind.type == DeviceType::cpu) return 1;
  const int there = runtime::device_count();
  WEFT_CHECK(there > 0, "devices: all of none: {}", runtime::no_device_reason());
  return there;
}

Device Devices::of_rank(Device kind, int local_rank) const {
  if (numbers.empty()) return dist::device_of_rank(kind, local_rank);
  kind.index = numbers.at(static_cast<size_t>(local_rank) % numbers.size());
  return kind;
}

}  // namespace weft::train
