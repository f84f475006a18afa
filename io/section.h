// An object of a configuration file while it is read: values by key and type, and in the end the
// keys that nobody asked for.
//
//   Section bf16 = file.section("bf16");
//   if (const auto enabled = bf16.boolean("enabled")) ...
//   bf16.finish();                       // "ds.json: bf16: unknown key "enable"; did you mean ..."
//
// A key that is missing, null or, where a library fills it in, "auto" has no value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace weft::io {

class Section {
 public:
  /// `path`: of the keys that lead here, "" for the file. `object`, where an empty list is one
  /// without keys, outlives it.
  Section(std::string file, std::string path, const nlohmann::json& object);

  /// Throw Error naming file, key and value where it is of another type.
  std::optional<bool> boolean(const std::string& key);  // true, false, yes and no
  std::optional<int64_t> whole_number(const std::string& key);
  std::optional<double> number(const std::string& key);
  std::optional<std::string> text(const std::string& key);  // a number's, too
  std::optional<std::vector<double>> numbers(const std::string& key);
  /// One of `choices`, which may be true and false; case does not count, and the choice's own is
  /// returned. Throws Error for others.
  std::optional<std::string> choice(const std::string& key,
                                    const std::vector<std::string>& choices);
  /// Empty where there is none.
  Section section(const std::string& key);
  bool has(const std::string& key) const { return value(key) != nullptr; }
  bool is_auto(const std::string& key);
  /// Whether the key is there, whatever its value.
  bool names(const std::string& key) const { return object_->contains(key); }
  /// Keys that are known and read nowhere; returns those that are there, and no empty list or
  /// section.
  std::vector<std::string> known(const std::vector<std::string>& keys);
  /// Throws Error naming a key that is none of those above, and the nearest one. Returns those
  /// above.
  const std::vector<std::string>& finish() const;

  /// Null where there is none.
  const nlohmann::json* value(const std::string& key) const;
  /// "bf16.enabled"
  std::string path_of(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;
  /// What fail() says.
  std::string fault(const std::string& key, const std::string& expected) const;

 private:
  const nlohmann::json* take(const std::string& key);

  std::string file_, path_;
  const nlohmann::json* object_;
  std::vector<std::string> known_;
};

}  // namespace weft::io
