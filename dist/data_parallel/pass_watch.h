// What a strategy does when a backward pass is over, and how it notices one that has failed: a
// program may catch the error, drop the gradients and go on.
//
//   void on_ready() {                                       // in the pass, again and again
//     if (watch_.is_under_way()) return;
//     watch_.begin([this] { finish(); });
//     recover();
//   }
//   void recover() {
//     if (!watch_.recover("ddp", {group_.get()})) return;
//     ...                                                   // drops what the failed pass has left
//   }
//
// After a pass that has failed on all ranks these recover together. Where it has failed on some of
// them, the others wait for collectives that do not come: recover() then makes it an Error of all.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>

#include "autograd/tape.h"
#include "dist/comm/communicator.h"

namespace weft::dist {

class PassWatch {
 public:
  /// What has failed unless it is_over when it goes.
  struct Attempt {
    ~Attempt();
    std::shared_ptr<bool> has_failed;
    std::function<void()> on_failure;  // throws nothing
    bool is_over = false;
  };
  std::shared_ptr<Attempt> attempt(std::function<void()> on_failure = {}) const;

  /// To be called in a backward pass: finish() runs when the pass is over. Does nothing where it
  /// will already. If the pass fails, or finish(), on_failure() runs at once.
  void begin(std::function<void()> finish, std::function<void()> on_failure = {});
  /// Whether finish() is to run yet.
  bool is_under_way() const;

  /// False where no pass, or other attempt, has failed since the last call. Else meets the ranks of
  /// these groups, of which some may be null, and returns true; throws Error, on all of them,
  /// unless each comes here from the same place.
  bool recover(std::string_view what, std::initializer_list<Communicator*> groups);

 private:
  std::shared_ptr<bool> has_failed_ = std::make_shared<bool>(false);
  std::weak_ptr<Attempt> pass_;
};

/// Calls a member function of an object for as long as that lives; `object` is a weak pointer to
/// it, or to a pointer to it.
template <class T, class Member, class... Arguments>
auto while_alive(std::weak_ptr<T> object, Member member, Arguments... arguments) {
  return [=] {
    if (const auto alive = object.lock()) std::invoke(member, *alive, arguments...);
  };
}

/// Calls hook() in backward passes that come by one of a model's outputs, but not in grad(): a rank
/// none of whose parameters a loss reaches still comes to what all ranks do.
void register_output_hook(const Tensors& outputs, const std::function<void()>& hook);

/// register_ready_hook() of a model's parameter that may be frozen: it may be trained later.
void register_parameter_hook(const Tensor& parameter, std::function<void()> hook);

}  // namespace weft::dist
