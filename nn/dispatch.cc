#include "nn/dispatch.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <unordered_map>

#include "autograd/ops.h"
#include "core/mapped_pages.h"
#include "core/memory_account.h"
#include "nn/meta.h"
#include "nn/structure.h"

namespace weft::nn {
namespace {

std::string bytes_text(int64_t bytes) {
  const auto count = static_cast<double>(bytes);
  if (count < 1e6) return fmt::format("{:.1f} KB", count / 1e3);
  return count < 1e9 ? fmt::format("{:.1f} MB", count / 1e6)
                     : fmt::format("{:.1f} GB", count / 1e9);
}

NamedTensors tensors_of(const Module& model) {
  NamedTensors all = model.named_parameters();
  for (auto& buffer : model.named_buffers()) all.push_back(std::move(buffer));
  return all;
}

/// A tensor of another layer that one reads, too.
struct Loan {
  std::string name;
  size_t owner;  // the other layer
  int64_t bytes;
};

struct Layer {
  Segment segment;
  NamedTensors tensors;
  int64_t bytes = 0;
  std::vector<Loan> loans = {};

  /// What has to be at hand where the layer runs and nothing of another is.
  int64_t bytes_at_hand() const {
    int64_t all = bytes;
    for (const Loan& loan : loans) all += loan.bytes;
    return all;
  }
};

std::vector<Layer> layers_of(Module& model) {
  std::vector<Layer> layers;
  for (Segment& segment : model.structure().segments) layers.push_back({std::move(segment)});
  WEFT_CHECK(!layers.empty(),
             "device map: the model does not say what its layers are: its structure() names them "
             "as segments");
  for (const auto& [name, tensor] : tensors_of(model)) {
    const auto owner = std::ranges::find_if(
        layers, [&, &n = name](const Layer& layer) { return owns(layer.segment, n); });
    WEFT_CHECK(owner != layers.end(), "device map: \"{}\" belongs to no layer of the model", name);
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    owner->tensors.emplace_back(name, tensor);
    owner->bytes += bytes;
    for (Layer& reader : layers) {
      if (std::ranges::count(reader.segment.reads, name) == 0) continue;
      reader.loans.push_back({name, static_cast<size_t>(owner - layers.begin()), bytes});
    }
  }
  for (const Layer& layer : layers) {
    WEFT_CHECK(layer.loans.size() == layer.segment.reads.size(),
               "device map: the layer {} reads {}, of which the model has {}", layer.segment.name,
               fmt::join(layer.segment.reads, ", "), layer.loans.size());
  }
  return layers;
}

/// Where the weights of a layer at that place are when it runs.
Device runs_on(const Place& place, Device main) {
  const bool stays = place && (place->type == DeviceType::cuda || main.type == DeviceType::cpu);
  return stays ? *place : main;
}

/// A place for each layer, with `reserve` bytes of the first device left free.
std::vector<Place> fill(const std::vector<Layer>& layers, const MemoryBudgets& budgets,
                        int64_t reserve) {
  std::vector<Place> places;
  size_t device = 0;
  int64_t room = budgets[0].second - reserve;
  for (const Layer& layer : layers) {
    // Where it runs it has what it reads of others beside its own.
    const auto needed = [&] {
      const Place place = budgets[device].first;
      int64_t bytes = layer.bytes;
      if (runs_on(place, budgets[0].first) != *place) return bytes;
      for (const Loan& loan : layer.loans) {
        const bool is_there = loan.owner < places.size() && places[loan.owner] == place;
        if (!is_there) bytes += loan.bytes;
      }
      return bytes;
    };
    while (device < budgets.size() && needed() > room) {
      if (++device < budgets.size()) room = budgets[device].second;
    }
    if (device < budgets.size()) room -= needed();
    places.push_back(device < budgets.size() ? Place(budgets[device].first) : Place());
  }
  return places;
}

/// The names that stand where the last part of `name` does not: its siblings, or the model's.
std::string siblings_of(const std::string& name, const std::vector<std::string>& known) {
  const std::string parent = name.substr(0, name.rfind('.') + 1);
  std::vector<std::string> siblings, top;
  for (const std::string& other : known) {
    const bool is_child = !parent.empty() && other.starts_with(parent);
    if (is_child && other.find('.', parent.size()) == other.npos) siblings.push_back(other);
    if (!other.empty() && other.find('.') == other.npos) top.push_back(other);
  }
  return fmt::format("{}", fmt::join(siblings.empty() ? top : siblings, ", "));
}

/// The place of each layer; weightless ones have that of the layer before.
std::vector<Place> places_of(Module& model, const std::vector<Layer>& layers,
                             const DeviceMap& map) {
  std::vector<std::string> known;
  for (const auto& [name, module] : model.named_modules()) known.push_back(name);
  for (const Layer& layer : layers) {
    for (const auto& [name, tensor] : layer.tensors) known.push_back(name);
  }
  for (const auto& [name, place] : map.places) {
    WEFT_CHECK(std::ranges::find(known, name) != known.end(),
               "device map: the model has no module or tensor \"{}\"; it has {}", name,
               siblings_of(name, known));
  }
  std::vector<Place> places;
  for (const Layer& layer : layers) {
    std::pair<std::string, const Place*> first = {"", nullptr};
    for (const auto& [name, tensor] : layer.tensors) {
      const Place* const place = place_of(name, map);
      WEFT_CHECK(place, "device map: no entry places \"{}\", of the layer {}", name,
                 layer.segment.name);
      if (!first.second) first = {name, place};
      WEFT_CHECK(*place == *first.second,
                 "device map: the layer {} is placed as one, but \"{}\" is on {} and \"{}\" on {}",
                 layer.segment.name, first.first, to_string(*first.second), name,
                 to_string(*place));
    }
    const Place before = places.empty() ? Place(map.main) : places.back();
    places.push_back(first.second ? *first.second : before);
  }
  return places;
}

std::span<const std::byte> bytes_of(const Tensor& x) {
  return {static_cast<const std::byte*>(x.raw()), x.is_contiguous() ? x.nbytes() : 0};
}

/// A tensor that is at hand while its layer runs.
struct Visitor {
  Tensor tensor;  // of the model
  Tensor rest;    // where it rests, in the dtype that it has there
  bool is_mapped;
};

struct Stop {
  std::function<Tensor(const Tensor&)> forward;
  Device device;
  std::vector<Visitor> visitors;
};

/// A layer's weights, at hand while it lives.
class Visit {
 public:
  explicit Visit(const Stop& stop) : stop_(stop) {
    const MemoryScope scope(MemoryKind::kGathered);
    for (const auto& [tensor, rest, is_mapped] : stop.visitors) {
      Tensor(tensor).set_data(
          ops::contiguous(ops::cast(ops::to(rest, stop.device), tensor.dtype())));
    }
  }
  ~Visit() {
    for (const auto& [tensor, rest, is_mapped] : stop_.visitors) {
      dematerialize(tensor);
      if (is_mapped) let_go(bytes_of(rest));
    }
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  const Stop& stop_;
};

Tensor run(const std::vector<Stop>& stops, const Tensor& input) {
  const NoGrad guard;
  Tensor x = input;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (i + 1 < stops.size()) {
      for (const auto& [tensor, rest, is_mapped] : stops[i + 1].visitors) {
        if (is_mapped) will_need(bytes_of(rest));
      }
    }
    const Visit visit(stops[i]);
    x = stops[i].forward(ops::to(x, stops[i].device));
  }
  return ops::to(x, input.device());
}

/// The state's tensors by name. Throws Error unless they are the model's.
std::unordered_map<std::string, Tensor> checked(const std::vector<Layer>& layers,
                                                const NamedTensors& state) {
  std::unordered_map<std::string, Tensor> left(state.begin(), state.end()), all = left;
  std::vector<std::string> problems;
  for (const Layer& layer : layers) {
    for (const auto& [name, tensor] : layer.tensors) {
      const auto found = left.find(name);
      if (found == left.end()) {
        problems.push_back(fmt::format("\"{}\" is missing", name));
        continue;
      }
      if (found->second.shape() != tensor.shape()) {
        problems.push_back(
            fmt::format("\"{}\" is {}, expected {}", name, found->second.shape(), tensor.shape()));
      }
      left.erase(found);
    }
  }
  for (const auto& [name, tensor] : left) problems.push_back(fmt::format("unknown \"{}\"", name));
  WEFT_CHECK(problems.empty(), "dispatch: the state is not the model's: {}",
             fmt::join(problems, "; "));
  return all;
}

}  // namespace

const Place* place_of(const std::string& tensor, const DeviceMap& map) {
  const std::pair<std::string, Place>* longest = nullptr;
  for (const auto& entry : map.places) {
    const bool covers = entry.first.empty() || is_below(tensor, entry.first);
    if (covers && (!longest || entry.first.size() > longest->first.size())) longest = &entry;
  }
  return longest ? &longest->second : nullptr;
}

std::string to_string(const Place& place) { return place ? weft::to_string(*place) : "disk"; }

DeviceMap auto_device_map(Module& model, const MemoryBudgets& budgets) {
  WEFT_CHECK(!budgets.empty(), "device map: no device has a memory budget");
  for (size_t i = 0; i < budgets.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      WEFT_CHECK(budgets[i].first != budgets[j].first, "device map: {} has two memory budgets",
                 budgets[i].first);
    }
  }
  const std::vector<Layer> layers = layers_of(model);
  const auto& [main, budget] = budgets[0];
  std::vector<Place> places = fill(layers, budgets, 0);
  const auto stays = [&main = main](const Place& place) {
    return place && runs_on(place, main) == *place;
  };
  if (!std::ranges::all_of(places, stays)) {
    const Layer& largest = *std::ranges::max_element(layers, {}, &Layer::bytes_at_hand);
    const int64_t bytes = largest.bytes_at_hand();
    WEFT_CHECK(bytes <= budget,
               "device map: {} may take {} of memory, but the layer {} alone has {}", main,
               bytes_text(budget), largest.segment.name, bytes_text(bytes));
    places = fill(layers, budgets, bytes);
  }
  DeviceMap map{.main = main};
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const std::string& owner : layers[i].segment.owns) {
      const bool is_there = std::ranges::any_of(
          layers[i].tensors, [&](const auto& tensor) { return is_below(tensor.first, owner); });
      if (is_there) map.places.emplace_back(owner, places[i]);
    }
  }
  return map;
}

std::string dispatch(Module& model, const NamedTensors& state, const DeviceMap& map) {
  const std::vector<Layer> layers = layers_of(model);
  const std::vector<Place> places = places_of(model, layers, map);
  const std::unordered_map<std::string, Tensor> sources = checked(layers, model.adapted(state));
  for (size_t i = 0; i < layers.size(); ++i) {
    if (places[i]) continue;
    for (const auto& [name, tensor] : layers[i].tensors) {
      const auto& storage = sources.at(name).storage();
      WEFT_CHECK(!storage->is_owner() && storage->device().type == DeviceType::cpu,
                 "device map: \"{}\" is to stay on disk, but its file has it in another form, of "
                 "which there is a copy in memory; weft convert or weft consolidate writes a file "
                 "that can be used as it is",
                 name);
    }
  }

  const NoGrad guard;
  std::vector<Stop> stops;
  struct Sum {
    Place place;
    int64_t layers = 0, bytes = 0;
  };
  std::vector<Sum> sums;
  for (size_t i = 0; i < layers.size(); ++i) {
    stops.push_back({layers[i].segment.forward, runs_on(places[i], map.main), {}});
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const Place& place = places[i];
    for (auto [name, tensor] : layers[i].tensors) {
      const Tensor source = sources.at(name);
      const bool is_mapped = !source.storage()->is_owner();
      Tensor rest = source;
      if (place) {
        const MemoryScope scope(MemoryKind::kParameters);
        rest = Tensor::empty(tensor.shape(), tensor.dtype(), *place);
        ops::copy_(rest, ops::to(source, *place));
        if (is_mapped) let_go(bytes_of(source));
      }
      // Not a parameter any more: Autocast keeps no narrow copy of it.
      tensor.autograd_handle().reset();
      std::vector<Stop*> users = {&stops[i]};
      for (size_t j = 0; j < layers.size(); ++j) {
        if (std::ranges::count(layers[j].loans, name, &Loan::name) > 0) users.push_back(&stops[j]);
      }
      const bool stays =
          std::ranges::all_of(users, [&](const Stop* user) { return place == user->device; });
      if (stays) {
        tensor.set_data(rest);
        continue;
      }
      tensor.set_data(meta(tensor.shape(), tensor.dtype(), stops[i].device));
      for (Stop* user : users) user->visitors.push_back({tensor, rest, is_mapped && !place});
    }
    auto sum = std::ranges::find(sums, place, &Sum::place);
    if (sum == sums.end()) sum = sums.insert(sum, Sum{place});
    ++sum->layers;
    sum->bytes += layers[i].bytes;
  }
  model.set_route({.forward = [&model, stops = std::move(stops)](const Tensor& x) {
    WEFT_CHECK(!model.is_training(),
               "dispatch: a model whose weights come and go is for inference: call eval() first");
    return run(stops, x);
  }});

  std::string text;
  for (const Sum& sum : sums) {
    text += text.empty() ? fmt::format("{} of {} layers", sum.layers, layers.size())
                         : fmt::format(", {}", sum.layers);
    text += fmt::format(" on {} ({})", to_string(sum.place), bytes_text(sum.bytes));
  }
  return text;
}

}  // namespace weft::nn
