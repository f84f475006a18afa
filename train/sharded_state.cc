#include "train/sharded_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <unordered_map>

#include "autograd/ops.h"
#include "core/log.h"
#include "core/transfer.h"
#include "dist/comm/agreement.h"
#include "io/quote.h"

namespace weft::train {
namespace {

using dist::LocalTensor;
using dist::LocalTensors;
using dist::Piece;
using dist::TensorPlacement;

/// Of an optimizer's "<parameter>.<kind>".
std::pair<std::string, std::string> parameter_and_kind(const std::string& name) {
  const size_t dot = name.rfind('.');
  return {name.substr(0, dot), dot == name.npos ? "" : name.substr(dot + 1)};
}

constexpr const char* kStep = "step";  // a count, no matter of slices

/// Of a count that all ranks with a part of a parameter have: who has its first element writes it.
TensorPlacement place_of_count(const LocalTensor& parameter) {
  TensorPlacement count = parameter.placement;
  const auto pieces = count.pieces(parameter.tensor);
  const bool has_first =
      !pieces.empty() && std::ranges::all_of(pieces[0].offset, [](int64_t at) { return at == 0; });
  if (!has_first) count.copies = 0;
  count.whole = {};
  count.part.reset();
  count.flat.reset();
  return count;
}

/// A copy of the elements on the CPU, contiguous.
Tensor copy_of(const Tensor& x) {
  const NoGrad guard;
  const Tensor dense = ops::contiguous(x);
  return x.device().type == DeviceType::cpu && dense.storage() == x.storage()
             ? ops::clone(dense)
             : to_device(dense, Device{});
}

/// This rank's part of a tensor, newly made.
Tensor read_local(io::ShardedReader& reader, const std::string& name,
                  const TensorPlacement& placement) {
  const Tensor local = Tensor::empty(placement.local_shape(), reader.entry(name).dtype);
  for (const Piece& piece : placement.pieces(local)) reader.read(name, piece.offset, piece.values);
  return local;
}

void check_shape(io::ShardedReader& reader, const std::string& name, const Shape& expected) {
  const Shape& shape = reader.entry(name).shape;
  WEFT_CHECK(shape == expected, "{}: tensor {} has the shape {}, expected {}",
             reader.directory().string(), io::quote(name), shape, expected);
}

/// Texts of all ranks, on all ranks.
std::vector<std::string> all_texts(const std::string& mine, const dist::CommunicatorPtr& world) {
  if (!world) return {mine};
  const Tensor sizes = Tensor::empty({world->size()}, DType::i64);
  world->all_gather(sizes, Tensor::from(std::vector{static_cast<int64_t>(mine.size())}, {1}))
      .wait();
  const std::vector<int64_t> counts(sizes.data<int64_t>(), sizes.data<int64_t>() + world->size());
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  const Tensor bytes = Tensor::from(std::vector<uint8_t>(mine.begin(), mine.end()),
                                    {static_cast<int64_t>(mine.size())});
  const Tensor all = Tensor::empty({total}, DType::u8);
  world->all_gather(all, bytes, counts).wait();
  std::vector<std::string> texts;
  const auto* next = reinterpret_cast<const char*>(all.data<uint8_t>());
  for (const int64_t count : counts) {
    texts.emplace_back(next, next + count);
    next += count;
  }
  return texts;
}

}  // namespace

std::string broadcast_text(const std::string& text, const dist::CommunicatorPtr& world) {
  return world ? dist::broadcast_text(*world, text) : text;
}

void on_rank_0(const std::function<void()>& function, const dist::CommunicatorPtr& world) {
  std::exception_ptr failure;
  std::string words;
  if (!world || world->rank() == 0) {
    try {
      function();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      words = error.what();
      if (words.empty()) words = "unknown";
    }
  }
  words = broadcast_text(words, world);
  if (failure) std::rethrow_exception(failure);
  WEFT_CHECK(words.empty(), "{}", words);
}

void SliceCopies::add(const std::string& prefix, const LocalTensors& tensors) {
  for (const auto& [name, tensor, placement] : tensors) {
    if (placement.copies == 0) continue;
    if (placement.copies > 1) {
      std::vector<int64_t>& written = written_[placement.copies];
      written.resize(placement.copies);
      const auto least = std::ranges::min_element(written);
      *least += static_cast<int64_t>(tensor.nbytes());
      if (least - written.begin() != placement.copy) continue;
    }
    for (const Piece& piece : placement.pieces(detach(tensor))) {
      slices_.push_back(
          {prefix + "." + name, placement.whole, piece.offset, copy_of(piece.values)});
    }
  }
}

void SliceCopies::add(const NamedTensors& tensors) {
  for (const auto& [name, x] : tensors) {
    slices_.push_back({name, x.shape(), Shape::filled(x.dim(), 0), copy_of(x)});
  }
}

LocalTensors optimizer_tensors(const NamedTensors& state, const LocalTensors& parameters) {
  std::unordered_map<std::string, const LocalTensor*> by_name;
  for (const LocalTensor& parameter : parameters) by_name[parameter.name] = &parameter;
  LocalTensors all;
  for (const auto& [name, tensor] : state) {
    const auto [parameter, kind] = parameter_and_kind(name);
    const auto found = by_name.find(parameter);
    WEFT_CHECK(found != by_name.end(), "the optimizer's {} belongs to no parameter of the model",
               io::quote(name));
    const LocalTensor& its = *found->second;
    all.push_back({name, tensor, kind == kStep ? place_of_count(its) : its.placement});
  }
  return all;
}

void read_into(io::ShardedReader& reader, const std::string& prefix, const LocalTensors& tensors) {
  const NoGrad guard;
  for (const auto& [name, tensor, placement] : tensors) {
    check_shape(reader, prefix + "." + name, placement.whole);
  }
  for (const auto& [name, tensor, placement] : tensors) {
    Tensor target = detach(tensor);
    ops::copy_(target,
               ops::to(read_local(reader, prefix + "." + name, placement), tensor.device()));
  }
}

NamedTensors read_optimizer(io::ShardedReader& reader, const std::string& prefix,
                            const LocalTensors& parameters) {
  std::unordered_map<std::string, const LocalTensor*> by_name;
  for (const LocalTensor& parameter : parameters) by_name[parameter.name] = &parameter;
  NamedTensors state;
  const std::string beginning = prefix + ".";
  const auto& all = reader.index().tensors;
  for (auto entry = all.lower_bound(beginning);
       entry != all.end() && entry->first.starts_with(beginning); ++entry) {
    const std::string name = entry->first.substr(beginning.size());
    const auto [parameter, kind] = parameter_and_kind(name);
    const auto found = by_name.find(parameter);
    if (found == by_name.end()) continue;  // of another stage of a pipeline
    if (kind == kStep) {
      check_shape(reader, entry->first, {});
      state.emplace_back(name, reader.read(entry->first));
    } else {
      const TensorPlacement& placement = found->second->placement;
      check_shape(reader, entry->first, placement.whole);
      state.emplace_back(name, read_local(reader, entry->first, placement));
    }
  }
  return state;
}

PendingSave::PendingSave(dist::CommunicatorPtr world, std::string path,
                         std::function<nlohmann::json()> write,
                         std::function<void(const std::vector<nlohmann::json>&)> commit)
    : world_(std::move(world)),
      path_(std::move(path)),
      commit_(std::move(commit)),
      thread_([this, write = std::move(write)] {
        try {
          shard_ = write();
        } catch (const std::exception& error) {
          failure_ = error.what();
          if (failure_.empty()) failure_ = "unknown";
        }
        is_done_ = true;
      }) {}

PendingSave::~PendingSave() {
  if (!thread_.joinable()) return;
  thread_.join();
  if (world_ && world_->rank() != 0) return;
  log_once(
      fmt::format("the save to {} was dropped: it was not complete when its Fabric went; "
                  "wait_for_save() waits until it is",
                  path_));
}

bool PendingSave::poll() {
  int64_t writing = is_done_ ? 0 : 1;
  if (world_) {
    const Tensor all = Tensor::from(std::vector{writing}, {1});
    world_->all_reduce(all).wait();
    writing = all.data<int64_t>()[0];
  }
  if (writing > 0) return false;
  finish();
  return true;
}

void PendingSave::wait() {
  while (!poll()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void PendingSave::finish() {
  thread_.join();
  const nlohmann::json mine = {{"failure", failure_}, {"shard", shard_}};
  std::vector<nlohmann::json> shards;
  std::string failures;
  const std::vector<std::string> texts =
      all_texts(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), world_);
  for (size_t r = 0; r < texts.size(); ++r) {
    nlohmann::json one = nlohmann::json::parse(texts[r]);
    const std::string failure = one.at("failure");
    shards.push_back(std::move(one.at("shard")));
    if (failure.empty()) continue;
    if (!failures.empty()) failures += "; ";
    failures += texts.size() > 1 ? fmt::format("rank {}: {}", r, failure) : failure;
  }
  WEFT_CHECK(failures.empty(), "{}", failures);
  on_rank_0([&] { commit_(shards); }, world_);
}

}  // namespace weft::train
