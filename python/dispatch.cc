// Models larger than memory, with Accelerate's words: weft.nn.infer_auto_device_map and its kin.
#include "nn/dispatch.h"

#include "core/transfer.h"
#include "io/safetensors.h"
#include "io/safetensors_index.h"
#include "nn/meta.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/scope.h"
#include "train/device_map_file.h"
#include "train/pretrained/pretrained.h"

namespace weft::python {
namespace {

/// 0, "cuda:0", "cpu" or weft.device("cpu").
Device device_of(nb::handle value) {
  if (PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr())) {
    return {DeviceType::cuda, nb::cast<int>(value)};
  }
  if (nb::isinstance<nb::str>(value)) {
    return train::parse_budgeted_device(nb::cast<std::string>(value));
  }
  if (nb::isinstance<Device>(value)) return nb::cast<Device>(value);
  throw nb::type_error("a place is a device, its name, a GPU's number or \"disk\"");
}

nn::Place place_of(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return train::parse_place(nb::cast<std::string>(value));
  return device_of(value);
}

/// {0: "10GB", "cpu": 30_000_000}, in the dict's order.
nn::MemoryBudgets budgets_of(const nb::dict& max_memory) {
  nn::MemoryBudgets budgets;
  for (const auto& [device, bytes] : max_memory) {
    budgets.emplace_back(device_of(device), nb::isinstance<nb::str>(bytes)
                                                ? io::parse_bytes(nb::cast<std::string>(bytes))
                                                : nb::cast<int64_t>(bytes));
  }
  return budgets;
}

nn::DeviceMap auto_map(nn::Module& model, const std::optional<nb::dict>& max_memory) {
  return nn::auto_device_map(model,
                             max_memory ? budgets_of(*max_memory) : train::available_budgets());
}

/// A dict of places, the path of a file with one, a place for all, or "auto".
nn::DeviceMap map_of(nn::Module& model, const nb::object& device_map,
                     const std::optional<nb::dict>& max_memory) {
  if (!nb::isinstance<nb::dict>(device_map)) {
    const auto text = nb::cast<std::string>(nb::str(device_map));
    return text == "auto" ? auto_map(model, max_memory) : train::parse_device_map(text);
  }
  nn::DeviceMap map;
  bool has_main = false;
  for (const auto& [name, value] : nb::cast<nb::dict>(device_map)) {
    const nn::Place place = place_of(value);
    map.places.emplace_back(nb::cast<std::string>(name), place);
    if (has_main || !place || place->type != DeviceType::cuda) continue;
    map.main = *place;
    has_main = true;
  }
  return map;
}

nb::dict dict_of_map(const nn::DeviceMap& map) {
  nb::dict places;
  for (const auto& [name, place] : map.places) {
    places[name.c_str()] = nn::to_string(place);
  }
  return places;
}

/// What is to rest on the disk and lies in memory goes to a file of the folder.
void offload(NamedTensors& state, const nn::DeviceMap& map, const std::string& folder) {
  NamedTensors written;
  for (const auto& [name, tensor] : state) {
    const auto place = nn::place_of(name, map);
    if (place && !*place && tensor.storage()->is_owner()) {
      written.emplace_back(name, to_device(tensor, Device{}));
    }
  }
  if (written.empty()) return;
  io::make_directories(folder);
  const io::Path file = io::Path(folder) / "offloaded.safetensors";
  io::write_safetensors(file, written);
  for (const auto& [name, tensor] : io::read_safetensors(file).tensors) {
    for (auto& [own, kept] : state) {
      if (own == name) kept = tensor;
    }
  }
}

nb::object dispatch(nb::handle_t<nn::Module> self, NamedTensors state, const nn::DeviceMap& map,
                    const std::optional<std::string>& offload_folder) {
  auto& model = nb::cast<nn::Module&>(self);
  {
    const nb::gil_scoped_release unlocked;
    if (offload_folder) offload(state, map, *offload_folder);
    nn::dispatch(model, state, map);
  }
  nb::setattr(self, "hf_device_map", dict_of_map(map));
  return nb::borrow(self);
}

}  // namespace

void bind_dispatch(nb::module_ m) {
  bind_scope<nn::MetaScope>(m, "init_empty_weights",
                            "Inside of `with init_empty_weights():` layers are made without memory "
                            "for their parameters, until a checkpoint is loaded and dispatched.");
  m.def(
      "infer_auto_device_map",
      [](nn::Module& model, const std::optional<nb::dict>& max_memory) {
        return dict_of_map(auto_map(model, max_memory));
      },
      "model"_a, "max_memory"_a = nb::none(),
      "A device map: layers in order on the first device of max_memory that has room, the "
      "remainder on \"disk\". max_memory is a dict such as {0: \"10GB\", \"cpu\": 30_000_000}; its "
      "first device is the main one, where room is kept for the largest layer that has to come. "
      "Without one it is nine tenths of what each GPU has free, then of the memory that the system "
      "has available.");
  m.def(
      "dispatch_model",
      [](nb::handle_t<nn::Module> model, const nb::object& device_map,
         const std::optional<nb::dict>& max_memory,
         const std::optional<std::string>& offload_folder) {
        auto& module = nb::cast<nn::Module&>(model);
        return dispatch(model, module.state_dict(), map_of(module, device_map, max_memory),
                        offload_folder);
      },
      "model"_a, "device_map"_a = "auto", "max_memory"_a = nb::none(),
      "offload_folder"_a = nb::none(),
      "Has a model's weights rest where the map says, and at hand while their layer runs: on "
      "\"cpu\", on a GPU by number or name, on \"disk\" in a file in offload_folder. The map is a "
      "dict from names of modules to places, the path of a JSON file with one, one place for all, "
      "or \"auto\", what infer_auto_device_map(model, max_memory) says. Returns the model, whose "
      "hf_device_map is the map; it is for inference alone.");
  m.def(
      "load_checkpoint_and_dispatch",
      [](nb::handle_t<nn::Module> model, const std::string& checkpoint,
         const nb::object& device_map, const std::optional<nb::dict>& max_memory,
         const std::optional<std::string>& offload_folder) {
        auto& module = nb::cast<nn::Module&>(model);
        return dispatch(model, train::read_pretrained(checkpoint).state,
                        map_of(module, device_map, max_memory), offload_folder);
      },
      "model"_a, "checkpoint"_a, "device_map"_a = "auto", "max_memory"_a = nb::none(),
      "offload_folder"_a = nb::none(),
      "dispatch_model of a model that was made under init_empty_weights(), with the weights of a "
      "file or folder of any kind that weft reads. Those on \"disk\" stay in that file where it "
      "has them in the model's form; offload_folder takes the others.");
}

}  // namespace weft::python
