// Module: a tree of layers with named parameters and buffers.
//
//   class Mlp : public nn::Module {
//    public:
//     Mlp(int64_t width, int64_t hidden)
//         : fc1(add<nn::Linear>("fc1", width, hidden)), fc2(add<nn::Linear>("fc2", hidden, width))
//         {}
//     Tensor forward(const Tensor& x) override { return fc2(ops::gelu(fc1(x))); }
//     nn::Linear &fc1, &fc2;
//   };
//
// A module owns its children, which others may own, too. Names are dotted paths as in PyTorch,
// "fc1.weight", in order of registration, a module's own tensors before its children's. Tensors are
// replaced only through Tensor::set_data or in place, so that handles kept elsewhere follow; never
// assign to a member.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/tape.h"
#include "core/scoped_value.h"

namespace weft::nn {

struct ModelStructure;

/// A row of a batch: an f32 image [C, H, W] and its class, or tokens i64 [T] and those that follow.
struct BatchRow {
  Shape shape;
  int64_t classes = 0;  // of images, or different tokens
  bool has_tokens = false;
};

struct LoadOptions {
  bool strict = true;  // false: missing and unexpected keys are reported, not refused
};

/// Keys that a load left out; both empty after a strict one.
struct LoadResult {
  std::vector<std::string> missing;     // of the module, not in the state
  std::vector<std::string> unexpected;  // in the state, not of the module
};

class Module;

/// A call that has come to the end of a model's route: while it lives, this thread's calls of
/// modules are a part of it.
class RoutedCall {
 public:
  /// `model`: the one that has been led, as a whole; null where only parts of it are here.
  explicit RoutedCall(const Module* model = nullptr) : scope_(now_, {true, model}) {}
  static bool is_under_way() { return now_.is_under_way; }
  static bool is_of(const Module& model) { return now_.model == &model; }

 private:
  struct Call {
    bool is_under_way = false;
    const Module* model = nullptr;
  };
  static thread_local Call now_;
  ScopedValue<Call> scope_;
};

class Module {
 public:
  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// The module's function. Throws Error when a subclass defines none of one tensor.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) {
    if (route_.forward) return route_.forward(x);
    check_call();
    return unrouted(x);
  }
  /// operator() without the route: for those who are its end.
  Tensor unrouted(const Tensor& x);
  /// Throws Error for a part of a model that was set up where it is not that model that calls: for
  /// those who call forward() in the place of operator().
  void check_call() const {
    if (route_.refuse) refuse_strangers();
  }
  /// Calls `function` in place of forward() wherever the module is called: how a layer is cut over
  /// ranks without its owner's knowledge (dist/model_parallel/tensor_parallel.h).
  void set_stand_in(std::function<Tensor(const Tensor&)> function) {
    stand_in_ = std::move(function);
  }
  bool has_stand_in() const { return stand_in_ != nullptr; }

  /// What becomes of a program's own calls of a model that was set up to train on several devices
  /// or in another precision, and of its parts (train/fabric.h). An empty function changes nothing.
  struct Route {
    std::function<Tensor(const Tensor&)> forward;  // of operator()
    std::function<void()> zero_grad;               // besides what zero_grad() does
    /// Of load_state_dict() and state_dict(); nothing: the module is to do that itself.
    std::function<std::optional<LoadResult>(const NamedTensors&, const LoadOptions&)>
        load_state_dict = {};
    std::function<std::optional<NamedTensors>()> state_dict = {};
    /// Of a part: asked before each call but those in a backward pass, where activations are
    /// computed again; throws for one that is not its model's.
    std::function<void()> refuse = {};
  };
  void set_route(Route route) { route_ = std::move(route); }
  bool has_route() const { return route_.forward != nullptr; }

  /// What strategies, fine-tuning and the planner have to know of it (nn/structure.h). A module
  /// that does not say has no structure.
  virtual ModelStructure structure();
  /// A row of the batches that it is trained on; no shape where it does not say.
  virtual BatchRow batch_row() const { return {}; }

  /// Each parameter once, under its first name.
  NamedTensors named_parameters() const;
  Tensors parameters() const;
  NamedTensors named_buffers() const;
  /// This module, named "", then its descendants, each before its children.
  std::vector<std::pair<std::string, Module*>> named_modules();
  int64_t num_parameters() const;  // elements

  /// Handles, without history, on the data of all parameters and buffers. Of a model that was set
  /// up on ranks that share it out, or of a part of one: copies of the whole tensors, on the CPU;
  /// then every rank has to call, and gets them.
  NamedTensors state_dict() const;
  /// state_dict() without the route: of such a model what this rank has.
  NamedTensors unrouted_state() const;
  /// A state that was saved under older names, under today's.
  NamedTensors adapted(NamedTensors state) const;
  /// Copies a state into the parameters and buffers, converting dtypes. All keys and shapes are
  /// checked first: on an Error, which names every offending key, nothing has changed.
  LoadResult load_state_dict(const NamedTensors& state, const LoadOptions& options = {});

  Module& train(bool mode = true);
  Module& eval() { return train(false); }
  bool is_training() const { return training_; }

  /// Moves parameters, their gradients and buffers.
  Module& to(Device device);
  /// Converts parameters, their gradients and buffers that are floating.
  Module& to(DType dtype);
  Module& to(Device device, DType dtype) { return to(device).to(dtype); }
  /// Drops the gradients: they are undefined until the next backward.
  void zero_grad();
  /// Freezes (false) or unfreezes all parameters.
  Module& requires_grad_(bool value);

 protected:
  /// Constructs a child T(arguments...) under a name without dots, and returns it.
  template <class T, class... Args>
  T& add(std::string_view name, Args&&... arguments) {
    auto child = std::make_unique<T>(std::forward<Args>(arguments)...);
    T& reference = *child;
    add_child(name, std::move(child));
    return reference;
  }
  void add_child(std::string_view name, std::shared_ptr<Module> child);
  /// The same, but takes the place of a child of that name.
  void set_child(std::string_view name, std::shared_ptr<Module> child);
  const std::vector<std::pair<std::string, std::shared_ptr<Module>>>& children() const {
    return children_;
  }
  /// Without those of children; a tensor may have several names.
  const NamedTensors& own_parameters() const { return parameters_; }
  const NamedTensors& own_buffers() const { return buffers_; }

  /// Registers a tensor that is trained, and returns it. An undefined one is not registered.
  Tensor parameter(std::string_view name, Tensor tensor);
  /// Registers a tensor that is saved but not trained, and returns it.
  Tensor buffer(std::string_view name, Tensor tensor);

  /// Renames keys of states that were saved under older names, and adds what older ones lack.
  /// `prefix` is this module's path, with its final dot. Called before a state's keys are checked.
  virtual void adapt_state(const std::string& prefix, NamedTensors& state) const;

 private:
  void check_name(std::string_view name) const;
  void refuse_strangers() const;
  template <class Root, class Visit>
  static void visit(Root& root, Visit&& visitor);
  template <class Convert>
  void convert(Convert&& converted);

  NamedTensors parameters_, buffers_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::function<Tensor(const Tensor&)> stand_in_;
  Route route_;
  bool training_ = true;
};

}  // namespace weft::nn
