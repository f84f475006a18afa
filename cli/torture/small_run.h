// The run that torture interrupts: a training that takes about a second, whose last bit is known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/torture/child.h"
#include "cli/torture/ordeal.h"

namespace weft::cli {

/// Writes a whole file.
void write_file(const io::Path& path, std::string_view bytes);

/// The longest that any of these runs may take; slower machines than ours included.
inline constexpr double kRunSeconds = 300;

/// What makes a run one of two ranks, each of which writes its part of every checkpoint.
const std::vector<std::string>& sharded_on_two_ranks();

class SmallRun {
 public:
  /// Draws the images, and trains undisturbed. `extra` goes to every start ("--devices", "4"),
  /// `environment` to every process. The rack must outlive it.
  SmallRun(Rack& rack, const std::vector<std::string>& extra = {}, int epochs = 2,
           const std::map<std::string, std::string>& environment = {});

  /// A directory for a run that does not exist yet.
  io::Path fresh_output();
  std::vector<std::string> start(const io::Path& output) const;
  std::vector<std::string> resume(const io::Path& output) const;
  /// What goes on with whatever is in `output`: resume where there is a checkpoint, else start.
  std::vector<std::string> go_on(const io::Path& output) const;
  /// Goes on to the end, undisturbed. Empty when the run then has the bits of the one that nothing
  /// disturbed, else what is wrong.
  std::string finish(const io::Path& output);

  Child run(const std::vector<std::string>& arguments,
            std::map<std::string, std::string> environment = {}) const {
    environment.insert(environment_.begin(), environment_.end());
    return Child(scratch_ / "child", arguments, environment);
  }
  /// Of the undisturbed run.
  double seconds() const { return seconds_; }
  const io::Path& reference() const { return reference_; }
  /// One of those that it trains on.
  io::Path an_image() const { return scratch_ / "images/train/tint-1/07.png"; }

 private:
  Rack& rack_;
  const io::Path scratch_;
  const std::vector<std::string> extra_;
  const int epochs_;
  const std::map<std::string, std::string> environment_;
  io::Path reference_;
  double seconds_ = 0;
};

/// The tail of a message about an end: its exit code and last words.
std::string describe(const ChildEnd& end);

}  // namespace weft::cli
