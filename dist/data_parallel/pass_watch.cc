#include "dist/data_parallel/pass_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "autograd/backward.h"

namespace weft::dist {

PassWatch::Attempt::~Attempt() {
  if (is_over) return;
  *has_failed = true;
  if (on_failure) on_failure();
}

std::shared_ptr<PassWatch::Attempt> PassWatch::attempt(std::function<void()> on_failure) const {
  auto attempt = std::make_shared<Attempt>();
  attempt->has_failed = has_failed_;
  attempt->on_failure = std::move(on_failure);
  return attempt;
}

void PassWatch::begin(std::function<void()> finish, std::function<void()> on_failure) {
  if (is_under_way()) return;
  const std::shared_ptr<Attempt> pass = attempt(std::move(on_failure));
  pass_ = pass;
  // A pass that fails drops the function, and the attempt with it.
  after_backward([pass, finish = std::move(finish)] {
    finish();
    pass->is_over = true;
  });
}

bool PassWatch::is_under_way() const {
  const std::shared_ptr<Attempt> pass = pass_.lock();
  return pass && !pass->is_over;
}

bool PassWatch::recover(std::string_view what, std::initializer_list<Communicator*> groups) {
  if (!*has_failed_) return false;
  struct Meeting {
    Communicator* group;
    Tensor mine, theirs;
    Work work;
  };
  std::vector<Meeting> meetings;
  try {
    for (Communicator* const group : groups) {
      if (!group) continue;
      // Where a rank is, its collectives' number tells. Gradients and parameters travel otherwise:
      // to a rank that is in the midst of one of theirs, or goes on, this is another collective.
      const std::vector<int64_t> place(group->size(), static_cast<int64_t>(group->collectives()));
      Meeting meeting{group,
                      Tensor::from(place, {group->size()}),
                      Tensor::empty({group->size()}, DType::i64),
                      {}};
      meeting.work = group->all_to_all(meeting.theirs, meeting.mine);
      meetings.push_back(std::move(meeting));
    }
    for (const auto& [group, mine, theirs, work] : meetings) {
      work.wait();
      const int64_t* const places = theirs.data<int64_t>();
      for (int r = 0; r < group->size(); ++r) {
        WEFT_CHECK(places[r] == mine.data<int64_t>()[0],
                   "rank {} of {} has begun {} collectives, this one {}", r, group->name(),
                   places[r], mine.data<int64_t>()[0]);
      }
    }
  } catch (const Error& error) {
    WEFT_FAIL(
        "{}: the pass before this one has failed here; expected the same, at the same place, of "
        "every rank: {}",
        what, error.what());
  }
  *has_failed_ = false;
  return true;
}

void register_output_hook(const Tensors& outputs, const std::function<void()>& hook) {
  for (const Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || !grad_enabled()) continue;
    register_hook(output, [hook](const Tensor&) {
      if (!in_grad()) hook();
      return Tensor();
    });
  }
}

void register_parameter_hook(const Tensor& parameter, std::function<void()> hook) {
  parameter.make_autograd().ready_hooks.push_back(std::move(hook));
}

}  // namespace weft::dist
