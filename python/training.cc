// weft.data, weft.models, weft.train and files of tensors.
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "data/loader.h"
#include "data/sets/open.h"
#include "io/safetensors.h"
#include "models/registry.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/json.h"
#include "python/named_tensors.h"
#include "train/fabric.h"
#include "train/pretrained/pretrained.h"

namespace weft::python {
namespace {

using data::Loader;

void bind_files(nb::module_& m) {
  m.def(
      "save_file",
      [](const nb::dict& tensors, const std::string& path,
         const std::map<std::string, std::string>& metadata) {
        NamedTensors on_cpu = tensors_of(tensors);
        const nb::gil_scoped_release unlocked;
        for (auto& [name, tensor] : on_cpu) tensor = ops::to(detach(tensor), Device{});
        io::write_safetensors(path, on_cpu, metadata);
      },
      "tensors"_a, "filename"_a, "metadata"_a = std::map<std::string, std::string>{},
      "Writes a dict of tensors as a safetensors file, which replaces an older one only when it is "
      "complete.");
  m.def(
      "load_file",
      [](const std::string& path) { return dict_of(train::read_weight_file(path).tensors); },
      "filename"_a,
      "The tensors of a safetensors file, or of a state dict that torch.save wrote, by name: views "
      "of the file's mapping.");
}

data::Filter filter_of(const std::string& name) {
  WEFT_CHECK(name == "bilinear" || name == "bicubic", "filter is bilinear or bicubic, got \"{}\"",
             name);
  return name == "bicubic" ? data::Filter::kBicubic : data::Filter::kBilinear;
}

data::LoaderOptions loader_options(int64_t batch_size, bool shuffle, bool drop_last, uint64_t seed,
                                   int workers, int size, const std::string& filter, bool normalize,
                                   const data::Dataset& dataset, const nb::dict& augmentation) {
  data::LoaderOptions options{.batch_size = batch_size,
                              .shuffle = shuffle,
                              .drop_last = drop_last,
                              .seed = seed,
                              .workers = workers};
  options.preprocess.size = size > 0 ? size : dataset.format().height;
  options.preprocess.filter = filter_of(filter);
  if (normalize) options.preprocess.normalization = dataset.format().normalization;
  data::Augmentation& a = options.augmentation;
  for (const auto& [key, value] : augmentation) {
    const auto name = nb::cast<std::string>(key);
    const auto takes = [&, given = nb::handle(value)]<class T>(std::string_view option, T& field) {
      if (name == option) field = nb::cast<T>(given);
      return name == option;
    };
    const bool is_known =
        takes("shift", a.shift) || takes("flip", a.flip) ||
        takes("alternate_flip", a.alternate_flip) || takes("random_crop", a.random_crop) ||
        takes("rand_augment", a.rand_augment) || takes("magnitude", a.magnitude) ||
        takes("erase", a.erase) || takes("mixup", a.mixup) || takes("cutmix", a.cutmix);
    WEFT_CHECK(is_known, "Loader: unknown augmentation \"{}\"", name);
  }
  return options;
}

void bind_data(nb::module_ m) {
  nb::class_<data::Dataset>(m, "Dataset", "Labelled images.")
      .def("__len__", &data::Dataset::size)
      .def_prop_ro("class_names", &data::Dataset::class_names)
      .def(
          "__getitem__",
          [](const data::Dataset& d, int64_t i) {
            if (i < 0) i += d.size();
            if (i < 0 || i >= d.size())
              throw nb::index_error(fmt::format("example {} of {}", i, d.size()).c_str());
            const data::Example e = d.example(i);
            return nb::make_tuple(Tensor::from(e.image.pixels, {e.image.height, e.image.width, 3}),
                                  e.label);
          },
          "(image, label): uint8 [height, width, 3], and a class.");
  m.def(
      "open",
      [](const std::string& spec, uint64_t seed) {
        data::Splits splits = data::open_data(spec, seed);
        const auto shared = [](const data::DatasetPtr& d) {
          return std::const_pointer_cast<data::Dataset>(d);
        };
        return std::tuple(shared(splits.train), shared(splits.validation), shared(splits.test));
      },
      "spec"_a, "seed"_a = 0,
      "(train, validation, test) of builtin, cifar10:DIR, mnist:DIR or folder:DIR; None where the "
      "data has no such split.");
  nb::class_<Loader>(m, "Loader",
                     "Batches (images, labels), prepared ahead: float32 [B, 3, size, size] and "
                     "int64 [B], or float32 [B, classes] with mixup or cutmix. normalize takes the "
                     "data set's customary mean and deviation. Iterating once is "
                     "one epoch; the next iteration is the next epoch.")
      .def(
          "__init__",
          [](Loader* self, std::shared_ptr<data::Dataset> dataset, int64_t batch_size, bool shuffle,
             bool drop_last, uint64_t seed, int workers, int size, const std::string& filter,
             bool normalize, const nb::dict& augmentation) {
            const auto options = loader_options(batch_size, shuffle, drop_last, seed, workers, size,
                                                filter, normalize, *dataset, augmentation);
            new (self) Loader(std::move(dataset), options);
          },
          "dataset"_a, "batch_size"_a = 1, "shuffle"_a = false, nb::kw_only(),
          "drop_last"_a = false, "seed"_a = 0, "workers"_a = 1, "size"_a = 0,
          "filter"_a = "bilinear", "normalize"_a = false, "augmentation"_a = nb::dict())
      .def("__len__", &Loader::batches)
      .def("__iter__", [](nb::handle_t<Loader> self) { return nb::borrow(self); })
      .def("__next__",
           [](Loader& loader) {
             std::optional<data::Batch> batch;
             {
               const nb::gil_scoped_release unlocked;
               batch = loader.next();
             }
             if (!batch) throw nb::stop_iteration();
             return std::pair(batch->images,
                              batch->soft_labels.defined() ? batch->soft_labels : batch->labels);
           })
      .def_prop_rw(
          "position",
          [](const Loader& l) { return std::pair(l.position().epoch, l.position().batch); },
          [](Loader& l, std::pair<int64_t, int64_t> position) {
            l.seek({.epoch = position.first, .batch = position.second});
          },
          "(epoch, batch) to come: set, it continues a run exactly.");
}

void bind_models(nb::module_ m) {
  nb::class_<models::Classifier, nn::Module>(m, "Classifier",
                                             "Logits [N, classes] of images [N, C, H, W].")
      .def(
          "forward", [](models::Classifier& self, const Tensor& x) { return self.forward(x); },
          "images"_a, Unlocked())
      .def_prop_ro("image_size", &models::Classifier::image_size)
      .def_prop_ro("classes", &models::Classifier::classes)
      .def_prop_ro("architecture", [](const models::Classifier& c) {
        return object_of(nlohmann::json(c.architecture()));
      });
  m.def("names", &models::model_names);
  m.def(
      "make",
      [](const std::string& name, const nb::kwargs& options) {
        return models::make_model(name, models::model_options_from_json(json_of(options)));
      },
      "name"_a, "options"_a,
      "A model by its name, with fresh parameters: make(\"cct\", image_size=32, classes=10).");
}

/// 4, -1, "auto" or [0, 2].
train::Devices devices_of(const nb::object& devices) {
  if (nb::isinstance<nb::int_>(devices)) return nb::cast<int>(devices);
  if (nb::isinstance<nb::str>(devices)) return nb::cast<std::string>(devices);
  return nb::cast<std::vector<int>>(devices);
}

void bind_fabric(nb::module_ m) {
  using train::Fabric;
  nb::class_<Fabric>(
      m, "Fabric",
      "A plain training loop on one device or many, in a precision and by a strategy "
      "that its options name.")
      .def(
          "__init__",
          [](Fabric* self, const std::string& device, const nb::object& devices, int num_nodes,
             const std::string& precision, const std::string& strategy,
             const std::string& accumulation, int64_t gradient_accumulation_steps,
             bool split_batches, const std::string& fp8_level) {
            new (self)
                Fabric({.device = device,
                        .devices = devices_of(devices),
                        .num_nodes = num_nodes,
                        .precision = precision,
                        .strategy = {.name = strategy},
                        .numerics = {.fp8_level = fp8_level,
                                     .accumulation = kernels::parse_accumulation(accumulation)},
                        .accumulate = gradient_accumulation_steps,
                        .split_batches = split_batches});
          },
          nb::kw_only(), "device"_a = "cpu", "devices"_a = 1, "num_nodes"_a = 1,
          "precision"_a = "32-true", "strategy"_a = "auto", "accumulation"_a = "ieee",
          "gradient_accumulation_steps"_a = 1, "split_batches"_a = false, "fp8_level"_a = "")
      .def(
          "launch",
          [](Fabric& self) {
            const nb::object sys = nb::module_::import_("sys");
            // This interpreter, its options, and the program with its arguments.
            auto words = nb::cast<std::vector<std::string>>(sys.attr("orig_argv"));
            words[0] = nb::cast<std::string>(sys.attr("executable"));
            std::vector<char*> argv;
            for (std::string& word : words) argv.push_back(word.data());
            argv.push_back(nullptr);
            std::optional<int> code;
            {
              const nb::gil_scoped_release unlocked;
              code = self.launch(static_cast<int>(words.size()), argv.data());
            }
            if (code) sys.attr("exit")(*code);
          },
          "With several devices, outside mpirun, torchrun and srun: starts this program again as "
          "so "
          "many ranks, waits, and ends with their exit code. Otherwise joins the ranks that are "
          "there.")
      .def_prop_ro("device", &Fabric::device)
      .def_prop_ro("global_rank", &Fabric::rank)
      .def_prop_ro("world_size", &Fabric::size)
      .def_prop_ro("is_global_zero", &Fabric::is_main)
      .def(
          "setup",
          [](Fabric& self, nn::Module& model, optim::Optimizer& optimizer) {
            self.setup(model, optimizer);
          },
          "model"_a, "optimizer"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), Unlocked(),
          "Shards a model and its optimizer, which has not stepped yet, as the strategy says. From "
          "there on model(x), optimizer.step(), zero_grad() and clip_grad_norm_() know of it.")
      .def(
          "setup_module", [](Fabric& self, nn::Module& model) { self.setup(model); }, "model"_a,
          nb::keep_alive<1, 2>(), Unlocked(), "The model alone, before setup_optimizers().")
      .def(
          "setup_optimizers",
          [](Fabric& self, optim::Optimizer& optimizer) { self.setup_optimizer(optimizer); },
          "optimizer"_a, nb::keep_alive<1, 2>(), Unlocked(),
          "An optimizer of parameters of models that were set up.")
      .def(
          "forward", [](Fabric& self, const Tensor& x) { return self.forward(x); }, "x"_a,
          Unlocked(), "The only model on x in the precision asked for, as model(x).")
      .def(
          "cross_entropy",
          [](Fabric& self, const Tensor& logits, const Tensor& labels, double label_smoothing) {
            return self.cross_entropy(logits, labels, {.label_smoothing = label_smoothing});
          },
          "logits"_a, "labels"_a, "label_smoothing"_a = 0.0, Unlocked())
      .def("backward", &Fabric::backward, "loss"_a, Unlocked(),
           "The gradients of the mean of all ranks' losses.")
      .def("clip_gradients", &Fabric::clip_gradients, "optimizer"_a, "max_norm"_a, Unlocked())
      .def(
          "step",
          [](Fabric& self, optim::Optimizer& optimizer, double gradient_scale) {
            return self.step(optimizer, gradient_scale);
          },
          "optimizer"_a, "gradient_scale"_a = 1.0, Unlocked(),
          "False, on all ranks, when a gradient was infinite on one and the step was skipped.")
      .def(
          "all_reduce",
          [](const Fabric& self, const Tensor& x) {
            const Tensor mean = ops::clone(detach(x));
            self.all_reduce(mean);
            return mean;
          },
          "x"_a, Unlocked(), "The mean over all ranks.")
      .def("all_gather", &Fabric::all_gather, "x"_a, Unlocked(), "[ranks, ...]: every rank's x.")
      .def("broadcast", &Fabric::broadcast, "x"_a, "source"_a = 0, Unlocked(), "In place.")
      .def("barrier", &Fabric::barrier, Unlocked())
      .def("gather_for_metrics", &Fabric::gather_for_metrics, "x"_a, Unlocked(),
           "[samples, ...]: the rows of all ranks, each sample of a loader's batch once.")
      .def(
          "setup_dataloader",
          [](const Fabric& self, Loader& loader) { self.setup_dataloader(loader); }, "loader"_a,
          Unlocked(), "From here on the loader gives this rank's share.")
      .def(
          "save", [](Fabric& self, const std::string& path) { self.save(path); }, "path"_a,
          Unlocked(),
          "The whole model as a safetensors file, written by rank 0. Every rank calls it.")
      .def(
          "load", [](Fabric& self, const std::string& path) { self.load(path); }, "path"_a,
          Unlocked())
      .def("seed_everything", &Fabric::seed_everything, "seed"_a)
      .def("print", [](const Fabric& self, const nb::args& arguments, const nb::kwargs& options) {
        if (self.is_main()) nb::module_::import_("builtins").attr("print")(*arguments, **options);
      });
}

}  // namespace

void bind_training(nb::module_& m) {
  bind_files(m);
  bind_data(m.def_submodule("data"));
  bind_models(m.def_submodule("models"));
  nb::module_ train = m.def_submodule("train");
  bind_fabric(train);
  bind_engine(train);
}

}  // namespace weft::python
