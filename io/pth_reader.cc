#include "io/pth_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "io/pickle_reader.h"
#include "io/quote.h"
#include "io/zip_reader.h"

namespace weft::io {
namespace {

using Kind = PickleNode::Kind;

static_assert(std::endian::native == std::endian::little, "storages are little endian");

constexpr std::string_view kRebuildTensor = "torch._utils._rebuild_tensor_v2",
                           kRebuildParameter = "torch._utils._rebuild_parameter";

/// Elements as they lie in the file and as the tensor holds them.
struct StorageType {
  std::string_view global;
  size_t itemsize;
  DType dtype;
  bool is_widened = false;
};

constexpr StorageType kStorageTypes[] = {
    {"torch.DoubleStorage", 8, DType::f64},      {"torch.FloatStorage", 4, DType::f32},
    {"torch.HalfStorage", 2, DType::f16},        {"torch.BFloat16Storage", 2, DType::bf16},
    {"torch.LongStorage", 8, DType::i64},        {"torch.IntStorage", 4, DType::i32},
    {"torch.ShortStorage", 2, DType::i32, true}, {"torch.CharStorage", 1, DType::i32, true},
    {"torch.ByteStorage", 1, DType::u8},         {"torch.BoolStorage", 1, DType::boolean},
};

// What tensors of other dtypes are made of; those after _rebuild_tensor_v3 are its last argument.
constexpr std::string_view kRebuildOther = "torch._utils._rebuild_tensor_v3",
                           kOtherGlobals[] = {kRebuildOther,
                                              "torch.storage.UntypedStorage",
                                              "torch.float8_e4m3fn",
                                              "torch.float8_e5m2",
                                              "torch.float8_e4m3fnuz",
                                              "torch.float8_e5m2fnuz",
                                              "torch.float8_e8m0fnu",
                                              "torch.uint16",
                                              "torch.uint32",
                                              "torch.uint64",
                                              "torch.ComplexFloatStorage",
                                              "torch.ComplexDoubleStorage"};

// PyTorch <= 1.5: a pickle of the number 0x1950a86a20f9469cfc6c, then others. The older ones are
// tar archives.
constexpr std::string_view kLegacyMagic =
                               "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
                           kZipMagic = "PK\x03\x04", kTarMagic = "ustar";
constexpr size_t kTarMagicOffset = 257;

bool holds_at(std::span<const std::byte> bytes, size_t offset, std::string_view text) {
  return bytes.size() >= offset + text.size() &&
         std::memcmp(bytes.data() + offset, text.data(), text.size()) == 0;
}
bool is_zip(std::span<const std::byte> bytes) { return holds_at(bytes, 0, kZipMagic); }
bool is_legacy(std::span<const std::byte> bytes) {
  return holds_at(bytes, 0, kLegacyMagic) || holds_at(bytes, kTarMagicOffset, kTarMagic);
}

/// Of any tensor: 2^60 elements of 8 bytes still count in 64 bits.
constexpr int64_t kLargestNumel = int64_t{1} << 60;

template <class From>
void widen(const std::byte* from, size_t count, int32_t* to) {
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    to[i] = value;
  }
}

class PthReader {
 public:
  PthReader(std::span<std::byte> bytes, std::shared_ptr<void> owner, const std::string& file,
            Crc32Of crc32)
      : bytes_(bytes), owner_(std::move(owner)), file_(file), crc32_(std::move(crc32)) {}

  PthFile read();

 private:
  struct LoadedStorage {
    std::shared_ptr<Storage> storage;
    const StorageType* type;
    int64_t numel;
  };

  void open_archive();
  /// The dict of tensors, which may stand under a key of another one.
  const PickleNode& find_state_dict(PthFile& result) const;
  Tensor tensor_of(const PickleNode& value);
  Tensor rebuild_tensor(std::span<const PickleIndex> arguments);
  const LoadedStorage& storage_of(const PickleNode& id);
  LoadedStorage load_storage(const std::string& key, const StorageType& type, int64_t numel);
  int64_t integer(PickleIndex index, const char* what) const;
  Shape integers(PickleIndex index, const char* what) const;

  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... arguments) const {
    if (condition) [[likely]]
      return;
    WEFT_FAIL("{}: tensor {}: {}", file_, quote(name_),
              fmt::format(format, std::forward<Args>(arguments)...));
  }

  const std::span<std::byte> bytes_;
  const std::shared_ptr<void> owner_;
  const std::string& file_;
  const Crc32Of crc32_;
  std::string root_;  // of the archive's names, with its slash
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, const ZipEntry*> by_name_;
  Pickle pickle_;
  std::unordered_map<std::string, LoadedStorage> storages_;
  std::string name_;             // of the tensor at hand
  uint64_t expanded_bytes_ = 0;  // of all tensors, as if none shared elements
};

void PthReader::open_archive() {
  entries_ = read_zip(bytes_, file_);
  constexpr std::string_view kPickle = "/data.pkl";
  for (const ZipEntry& entry : entries_) {
    by_name_.emplace(entry.name, &entry);
    const size_t slash = entry.name.find('/');
    if (slash != std::string::npos && entry.name.substr(slash) == kPickle) {
      WEFT_CHECK(root_.empty(), "{}: two pickles in the archive, {} and {}", file_,
                 quote(root_ + "data.pkl"), quote(entry.name));
      root_ = entry.name.substr(0, slash + 1);
    }
  }
  WEFT_CHECK(!root_.empty(),
             "{}: a ZIP archive without an entry NAME/data.pkl: not written by torch.save", file_);
  WEFT_CHECK(!by_name_.count(root_ + "constants.pkl"),
             "{}: a TorchScript program, not a state dict; in Python: "
             "torch.save(torch.jit.load(FILE).state_dict(), NEW)",
             file_);
  for (const ZipEntry& entry : entries_) check_stored(entry, file_);
  if (const auto order = by_name_.find(root_ + "byteorder"); order != by_name_.end()) {
    const auto data = order->second->data;
    const std::string text(reinterpret_cast<const char*>(data.data()),
                           std::min<size_t>(data.size(), 16));
    WEFT_CHECK(text == "little", "{}: byte order {}, only \"little\" is read", file_, quote(text));
  }
}

const PickleNode& PthReader::find_state_dict(PthFile& result) const {
  const PickleNode& root = pickle_[pickle_.root];
  WEFT_CHECK(root.kind == Kind::kDict, "{}: holds {}, not a state dict", file_, describe(root));
  const PickleNode* found = &root;
  for (const std::string_view wrapper : {"state_dict", "model", "model_state_dict"}) {
    for (size_t i = 0; i < root.items.size() && found == &root; i += 2) {
      const PickleNode &key = pickle_[root.items[i]], &value = pickle_[root.items[i + 1]];
      if (key.kind != Kind::kString || key.text != wrapper || value.kind != Kind::kDict) continue;
      found = &value;
      result.wrapper = wrapper;
    }
  }
  if (found == &root) return root;
  for (size_t i = 0; i < root.items.size(); i += 2) {
    const PickleNode& key = pickle_[root.items[i]];
    const std::string name = key.kind == Kind::kString ? key.text : describe(key);
    if (name != result.wrapper) result.others.push_back(name);
  }
  return *found;
}

PthFile PthReader::read() {
  WEFT_CHECK(!is_legacy(bytes_),
             "{}: written by PyTorch 1.5 or older, or with _use_new_zipfile_serialization=False; "
             "save it again with a newer one: torch.save(torch.load(OLD), NEW)",
             file_);
  WEFT_CHECK(is_zip(bytes_), "{}: not a file of torch.save: it does not begin as a ZIP archive",
             file_);
  open_archive();
  const ZipEntry& data = *by_name_.at(root_ + "data.pkl");
  check_crc(data, file_, crc32_);
  std::vector<std::string_view> globals = {kRebuildTensor, kRebuildParameter};
  for (const StorageType& type : kStorageTypes) globals.push_back(type.global);
  globals.insert(globals.end(), std::begin(kOtherGlobals), std::end(kOtherGlobals));
  pickle_ = read_pickle(data.data, globals, file_ + ": data.pkl");

  PthFile result;
  const PickleNode& dict = find_state_dict(result);
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < dict.items.size(); i += 2) {
    const PickleNode &key = pickle_[dict.items[i]], &value = pickle_[dict.items[i + 1]];
    WEFT_CHECK(key.kind == Kind::kString, "{}: the state dict has the key {}, expected a string",
               file_, describe(key));
    name_ = key.text;
    check(names.insert(key.text).second, "stands in the state dict twice");
    check(value.kind == Kind::kCall, "the state dict holds {} under this key, expected a tensor{}",
          describe(value),
          value.kind == Kind::kDict && result.wrapper.empty()
              ? "; state dicts are looked for under \"state_dict\", \"model\" and "
                "\"model_state_dict\""
              : "");
    result.tensors.emplace_back(key.text, tensor_of(value));
  }
  return result;
}

Tensor PthReader::tensor_of(const PickleNode& value) {
  const std::string& function = pickle_[value.items[0]].text;
  const std::span<const PickleIndex> arguments = pickle_[value.items[1]].items;
  if (function == kRebuildParameter) {
    // data, requires_grad, backward hooks
    check(arguments.size() == 3 && pickle_[arguments[0]].kind == Kind::kCall &&
              pickle_[pickle_[arguments[0]].items[0]].text != kRebuildParameter,
          "a Parameter that is not made from a tensor");
    return tensor_of(pickle_[arguments[0]]);
  }
  if (function == kRebuildOther) {
    // storage, offset, size, stride, requires_grad, backward hooks, dtype[, metadata]
    check(false,
          "it is of {}, which is not read from a file of torch.save; save it in another dtype",
          arguments.size() > 6 ? describe(pickle_[arguments[6]]) : "no dtype");
  }
  check(function == kRebuildTensor, "{} is called, which makes no tensor", function);
  return rebuild_tensor(arguments);
}

int64_t PthReader::integer(PickleIndex index, const char* what) const {
  const PickleNode& node = pickle_[index];
  check(node.kind == Kind::kInt && node.integer >= 0,
        "its {} is {}, expected an integer that is not negative", what, describe(node));
  return node.integer;
}

Shape PthReader::integers(PickleIndex index, const char* what) const {
  const PickleNode& node = pickle_[index];
  check(node.kind == Kind::kTuple, "its {} is {}, expected a tuple", what, describe(node));
  check(node.items.size() <= static_cast<size_t>(kMaxDims),
        "its {} has {} dimensions, {} is Weft's most", what, node.items.size(), kMaxDims);
  Shape result;
  for (const PickleIndex item : node.items) result.push_back(integer(item, what));
  return result;
}

Tensor PthReader::rebuild_tensor(std::span<const PickleIndex> arguments) {
  // storage, offset, size, stride, requires_grad, backward hooks[, metadata]
  check(arguments.size() == 6 || arguments.size() == 7,
        "_rebuild_tensor_v2 with {} arguments, expected 6 or 7", arguments.size());
  check(pickle_[arguments[0]].kind == Kind::kPersistent, "{} instead of a storage",
        describe(pickle_[arguments[0]]));
  if (arguments.size() == 7) {
    // Among others "this is the negative of what is stored".
    const PickleNode& metadata = pickle_[arguments[6]];
    check(metadata.kind == Kind::kNone || (metadata.kind == Kind::kDict && metadata.items.empty()),
          "it has metadata, {}, which is not read", describe(metadata));
  }
  const LoadedStorage& storage = storage_of(pickle_[arguments[0]]);
  const int64_t offset = integer(arguments[1], "offset");
  const Shape shape = integers(arguments[2], "shape"), strides = integers(arguments[3], "stride");
  check(shape.size() == strides.size(), "its shape {} and its strides {} differ in length", shape,
        strides);

  // Sizes of 0 count as 1, so that strides can be computed from any shape that passes.
  int64_t elements = 1;
  for (const int64_t size : shape) {
    check(!__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements) &&
              elements <= kLargestNumel,
          "its shape {} is too large", shape);
  }
  Strides reached = contiguous_strides(shape);
  int64_t last = offset;  // the element farthest from the storage's first
  bool is_empty = false, overflows = false;
  for (int d = 0; d < shape.size(); ++d) {
    is_empty |= shape[d] == 0;
    if (shape[d] <= 1) continue;  // their strides are never taken and may be anything
    int64_t reach = 0;
    reached[d] = strides[d];
    overflows |= __builtin_mul_overflow(shape[d] - 1, strides[d], &reach) ||
                 __builtin_add_overflow(last, reach, &last);
  }
  // PyTorch gives a view without elements an offset of any size.
  check(is_empty || (!overflows && last < storage.numel),
        "offset {}, shape {} and strides {} reach beyond a storage of {} elements", offset, shape,
        strides, storage.numel);
  const uint64_t bytes = nbytes(shape, storage.type->dtype);
  // With strides of 0, or many views of one storage, a small file could stand for any size.
  expanded_bytes_ += bytes;
  const uint64_t most = (uint64_t{64} << 20) + 8 * bytes_.size();
  check(expanded_bytes_ <= most && bytes <= most,
        "with this one the tensors would hold {} bytes, more than a file of {} bytes should",
        expanded_bytes_, bytes_.size());
  return Tensor::view_of(storage.storage, shape, is_empty ? contiguous_strides(shape) : reached,
                         is_empty ? 0 : offset, storage.type->dtype);
}

const PthReader::LoadedStorage& PthReader::storage_of(const PickleNode& id) {
  // ("storage", class, key, location, numel), as one tuple
  const PickleNode& tuple = pickle_[id.items[0]];
  check(tuple.kind == Kind::kTuple && tuple.items.size() == 5 &&
            pickle_[tuple.items[0]].text == "storage" &&
            pickle_[tuple.items[1]].kind == Kind::kGlobal &&
            pickle_[tuple.items[2]].kind == Kind::kString,
        "its storage is not named as torch.save does");
  const std::string &global = pickle_[tuple.items[1]].text, &key = pickle_[tuple.items[2]].text;
  const auto type = std::ranges::find(kStorageTypes, global, &StorageType::global);
  const bool is_other = std::ranges::count(kOtherGlobals, global) > 0;
  check(type != std::end(kStorageTypes), "{} is {}", global,
        is_other ? "a storage of a dtype that is not read; save it in another one" : "no storage");
  const int64_t numel = integer(tuple.items[4], "number of elements");
  auto found = storages_.find(key);
  if (found == storages_.end()) {
    found = storages_.emplace(key, load_storage(key, *type, numel)).first;
  }
  check(found->second.type == type && found->second.numel == numel,
        "storage {} is a {} of {} elements here and a {} of {} elsewhere", quote(key), global,
        numel, found->second.type->global, found->second.numel);
  return found->second;
}

PthReader::LoadedStorage PthReader::load_storage(const std::string& key, const StorageType& type,
                                                 int64_t numel) {
  const auto found = by_name_.find(root_ + "data/" + key);
  check(found != by_name_.end(), "the archive has no entry {}", quote(root_ + "data/" + key));
  const ZipEntry& entry = *found->second;
  const auto count = static_cast<uint64_t>(numel);
  check(count <= entry.data.size() / type.itemsize && count * type.itemsize == entry.data.size(),
        "entry {} holds {} bytes, not the {} of {} elements", quote(entry.name), entry.data.size(),
        fmt::format("{} * {}", numel, type.itemsize), numel);
  check_crc(entry, file_, crc32_);
  std::byte* data = entry.data.data();
  if (type.dtype == DType::boolean) {
    const auto wrong =
        std::ranges::find_if(entry.data, [](std::byte b) { return b > std::byte{1}; });
    check(wrong == entry.data.end(), "entry {} is of bools but holds the byte {} at index {}",
          quote(entry.name), wrong == entry.data.end() ? 0 : std::to_integer<int>(*wrong),
          wrong - entry.data.begin());
  }
  if (type.is_widened) {
    auto storage = std::make_shared<Storage>(count * sizeof(int32_t), Device{});
    auto* to = static_cast<int32_t*>(storage->data());
    type.itemsize == 1 ? widen<int8_t>(data, count, to) : widen<int16_t>(data, count, to);
    return {std::move(storage), &type, numel};
  }
  if (reinterpret_cast<uintptr_t>(data) % type.itemsize != 0) {
    auto storage = std::make_shared<Storage>(entry.data.size(), Device{});
    if (count > 0) std::memcpy(storage->data(), data, entry.data.size());
    return {std::move(storage), &type, numel};
  }
  return {std::make_shared<Storage>(data, entry.data.size(), Device{}, [owner = owner_] {}), &type,
          numel};
}

}  // namespace

bool looks_like_pth(std::span<const std::byte> bytes) {
  return is_zip(bytes) || is_legacy(bytes) ||
         (bytes.size() >= 2 && bytes[0] == std::byte{0x80} && bytes[1] <= std::byte{5});
}

PthFile read_pth(std::span<std::byte> bytes, std::shared_ptr<void> owner, const std::string& file) {
  return PthReader(bytes, std::move(owner), file, crc32_of).read();
}

PthFile read_pth(const std::shared_ptr<MappedFile>& file) {
  const std::string name = file->path().string();
  return PthReader(file->bytes(), file, name, std::bind_front(&MappedFile::crc32_of, file.get()))
      .read();
}

PthFile read_pth(const Path& path) { return read_pth(std::make_shared<MappedFile>(path)); }

}  // namespace weft::io
