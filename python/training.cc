// weft.data's images and tensors, files of tensors, and what else training needs.
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "data/loader.h"
#include "data/sets/open.h"
#include "data/tensors/tensor_dataset.h"
#include "io/safetensors.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/iteration.h"
#include "python/named_tensors.h"
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
  options.preprocess.fit = data::Fit::kShorterSide;  // as weft train
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
            const data::Example e = d.example(place_of("example", i, d.size()));
            return nb::make_tuple(Tensor::from(e.image.pixels, {e.image.height, e.image.width, 3}),
                                  e.label);
          },
          "(image, label): uint8 [height, width, 3], and a class.");
  m.def(
      "open",
      [](const std::string& spec, uint64_t seed) {
        data::Splits splits = data::open_data(spec, seed);
        for (const std::string& line : data::left_out(splits)) {
          nb::module_::import_("warnings").attr("warn")(line);
        }
        const auto shared = [](const data::DatasetPtr& d) {
          return std::const_pointer_cast<data::Dataset>(d);
        };
        return std::tuple(shared(splits.train), shared(splits.validation), shared(splits.test));
      },
      "spec"_a, "seed"_a = 0,
      "(train, validation, test) of builtin, cifar10:DIR, mnist:DIR or folder:DIR; None where the "
      "data has no such split.");
  nb::class_<Loader> loader(
      m, "Loader",
      "Batches (images, labels), prepared ahead: float32 [B, 3, size, size] and int64 [B], or "
      "float32 [B, classes] with mixup or cutmix. Of an image whose shorter side is resized to "
      "size pixels the middle is taken, or a place at random by the augmentation random_crop. "
      "normalize takes the data set's customary mean and deviation. Iterating once is one epoch, "
      "from `position` on where that was set, and the next iteration is the next epoch.");
  loader
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
      .def("__len__", &Loader::batches);
  define_iteration(m, "LoaderIterator", loader, [](const data::Batch& batch) {
    return std::pair(batch.images, batch.soft_labels.defined() ? batch.soft_labels : batch.labels);
  });
  define_position(loader);
}

/// Samples of a program's own: an object with a length, whose items are tensors or tuples of them.
class Samples : public data::TensorDataset {
 public:
  explicit Samples(nb::object samples) : samples_(std::move(samples)) {}
  ~Samples() override {
    const nb::gil_scoped_acquire locked;
    samples_.reset();
  }
  int64_t size() const override {
    const nb::gil_scoped_acquire locked;
    return static_cast<int64_t>(nb::len(samples_));
  }
  Tensors sample(int64_t index) const override {
    const nb::gil_scoped_acquire locked;
    const nb::object sample = samples_[index];
    if (nb::isinstance<Tensor>(sample)) return {nb::cast<Tensor>(sample)};
    Tensors tensors;
    if (nb::try_cast(sample, tensors)) return tensors;
    throw type_error("sample {}: expected a tensor or a tuple of tensors, got {}", index,
                     type_of(sample));
  }

 private:
  nb::object samples_;
};

void bind_tensor_data(nb::module_ m) {
  using data::TensorDataset;
  using data::TensorLoader;
  nb::class_<TensorDataset>(m, "TensorDataset", "Sample i is row i of each tensor.")
      .def(nb::new_([](const nb::args& tensors) {
        Tensors all;
        for (nb::handle tensor : tensors) all.push_back(nb::cast<Tensor>(tensor));
        return std::const_pointer_cast<TensorDataset>(data::tensor_dataset(std::move(all)));
      }))
      .def("__len__", &TensorDataset::size)
      .def("__getitem__", [](const TensorDataset& self, int64_t i) {
        return nb::tuple(nb::cast(self.sample(place_of("sample", i, self.size()))));
      });
  nb::class_<TensorLoader> loader(
      m, "TensorLoader",
      "Batches of a TensorDataset, or of an object with a length whose items are tensors or tuples "
      "of them. Iterating once is one epoch, from `position` on where that was set, and the next "
      "iteration is the next epoch.");
  loader
      .def(
          "__init__",
          [](TensorLoader* self, nb::object dataset, int64_t batch_size, bool shuffle,
             bool drop_last, uint64_t seed) {
            data::TensorDatasetPtr samples;
            if (nb::isinstance<TensorDataset>(dataset)) {
              samples = nb::cast<std::shared_ptr<TensorDataset>>(dataset);
            } else {
              samples = std::make_shared<Samples>(std::move(dataset));
            }
            new (self) TensorLoader(std::move(samples), {.batch_size = batch_size,
                                                         .shuffle = shuffle,
                                                         .drop_last = drop_last,
                                                         .seed = seed});
          },
          "dataset"_a, "batch_size"_a = 1, "shuffle"_a = false, nb::kw_only(),
          "drop_last"_a = false, "seed"_a = 0)
      .def("__len__", &TensorLoader::batches);
  define_iteration(m, "TensorLoaderIterator", loader, &tuple_of);
  define_position(loader);
}

}  // namespace

void bind_training(nb::module_& m) {
  bind_files(m);
  nb::module_ data = m.def_submodule("data");
  bind_data(data);
  bind_tensor_data(data);
  bind_text(data);
  bind_models(m.def_submodule("models"));
  nb::module_ train = m.def_submodule("train");
  bind_fabric(train);
  bind_trainer(train);
  bind_engine(train);
}

}  // namespace weft::python
