#include "dist/strategy/local_state.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <mutex>

#include "core/philox.h"
#include "core/view.h"
#include "dist/comm/in_process.h"
#include "dist/strategy/strategy.h"
#include "dist/strategy/testing/oracle.h"

using namespace weft;
using namespace weft::dist;

namespace {

/// Element i is i.
Tensor numbered(const Shape& shape) {
  const Tensor x = Tensor::empty(shape, DType::i64);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<int64_t>()[i] = i;
  return x;
}

/// Puts a piece into its place; throws where something is already. Elements begin as -1.
void put(const Tensor& whole, const Piece& piece) {
  Tensor place = whole;
  for (int d = 0; d < whole.dim(); ++d) {
    place = view::narrow(place, d, piece.offset[d], piece.values.size(d));
  }
  std::vector<int64_t> from, to;
  for_each_offset(piece.values.shape(), piece.values.strides(),
                  [&](int64_t offset) { from.push_back(offset); });
  for_each_offset(place.shape(), place.strides(), [&](int64_t offset) { to.push_back(offset); });
  REQUIRE(from.size() == to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    int64_t& element = place.data<int64_t>()[to[i]];
    REQUIRE(element == -1);
    element = piece.values.data<int64_t>()[from[i]];
  }
}

}  // namespace

TEST_CASE("flat ranges of any tensor are boxes that fill it") {
  Philox random(3);
  for (int trial = 0; trial < 300; ++trial) {
    Shape shape;
    const auto dims = static_cast<int>(random.below(5));
    for (int d = 0; d < dims; ++d) shape.push_back(1 + static_cast<int64_t>(random.below(4)));
    const Tensor values = numbered(shape), flat = view::reshape(values, {values.numel()});
    const Tensor whole = Tensor::full(shape, -1, DType::i64);
    for (int64_t first = 0; first < values.numel();) {
      const int64_t count =
          std::min<int64_t>(random.below(8), static_cast<uint64_t>(values.numel() - first));
      const TensorPlacement placement{.whole = shape, .flat = {{first, count}}};
      const auto pieces = placement.pieces(view::narrow(flat, 0, first, count));
      CHECK(pieces.size() <= static_cast<size_t>(2 * std::max(dims, 1) - 1) + (dims == 0));
      for (const Piece& piece : pieces) put(whole, piece);
      first += count;
    }
    CHECK(whole.to_vector() == values.to_vector());
  }
}

TEST_CASE("parts of cut layers, sharded or not, fill the whole") {
  const Shape shape{12, 10};
  struct Case {
    Cut cut;
    int ranks;
  };
  for (const auto& [cut, ranks] :
       {Case{{.dim = 0, .length = 12}, 5}, Case{{.dim = 0, .sections = {1, 1, 1}, .length = 12}, 2},
        Case{{.dim = 0, .sections = {4, 1, 1}, .length = 12}, 2}, Case{{.dim = 1, .length = 10}, 3},
        Case{{.dim = 1, .sections = {1, 1}, .length = 10}, 4}}) {
    for (const int shards : {0, 1, 3, 7}) {
      INFO("dim " << cut.dim << ", " << cut.sections.size() << " sections, " << ranks << " ranks, "
                  << shards << " shards");
      const Tensor values = numbered(shape), whole = Tensor::full(shape, -1, DType::i64);
      std::vector<Tensor> parts(ranks);
      run_ranks(ranks,
                [&, cut = cut](Communicator& c) { parts[c.rank()] = part_of(values, cut, c); });
      for (int r = 0; r < ranks; ++r) {
        TensorPlacement placement{.whole = shape, .part = {{cut, ranks, r}}};
        CHECK(placement.local_shape() == parts[r].shape());
        if (shards == 0) {
          for (const Piece& piece : placement.pieces(parts[r])) put(whole, piece);
          continue;
        }
        const int64_t n = parts[r].numel();
        const Tensor flat = view::reshape(parts[r], {n});
        for (int s = 0; s < shards; ++s) {
          placement.flat = {even_begin(n, shards, s), even_part(n, shards, s)};
          const Tensor mine = view::narrow(flat, 0, placement.flat->first, placement.flat->count);
          for (const Piece& piece : placement.pieces(mine)) put(whole, piece);
        }
      }
      CHECK(whole.to_vector() == values.to_vector());
    }
  }
}

TEST_CASE("under every strategy the ranks that write have each element of the state once") {
  struct Case {
    StrategyOptions options;
    int ranks;
  };
  for (const auto& [options, ranks] :
       std::vector<Case>{{{.name = "ddp"}, 3},
                         {{.name = "fsdp"}, 3},
                         {{.name = "zero1"}, 2},
                         {{.name = "hsdp", .shard_size = 2}, 4},
                         {{.name = "tp", .tensor_parallel = 2, .parallel_head = true}, 4},
                         {{.name = "fsdp+tp", .tensor_parallel = 2, .parallel_head = true}, 4},
                         {{.name = "pipeline", .pipeline_stages = 2}, 4}}) {
    INFO(options.name << " on " << ranks);
    const OracleTransformer reference;
    std::mutex mutex;
    std::map<std::string, std::vector<std::pair<Shape, Piece>>> written;
    run_ranks(ranks, [&, &options = options](Communicator& c) {
      OracleTransformer model;
      const auto strategy = make_strategy(options, CommunicatorPtr(&c, [](Communicator*) {}));
      ModelStructure structure(nn::wrap_modules<nn::Linear, nn::LayerNorm>());
      structure.mlps = model.mlps();
      structure.head = model.last_layer();
      structure.segments = model.segments();
      strategy->wrap(model, structure);
      const std::lock_guard lock(mutex);
      for (const auto& [name, tensor, placement] : strategy->local_state(model)) {
        WEFT_CHECK(placement.local_shape() == tensor.shape(), "{}: {}", name, tensor);
        WEFT_CHECK(placement.copy < std::max(placement.copies, 1), "{}", name);
        if (placement.copies == 0 || placement.copy != 0) continue;
        const Tensor marks = Tensor::zeros(tensor.shape(), DType::i64);
        for (const Piece& piece : placement.pieces(marks)) {
          written[name].emplace_back(placement.whole, piece);
        }
      }
    });
    for (const auto& [name, tensor] : OracleTransformer().state_dict()) {
      INFO(name);
      const Tensor whole = Tensor::full(tensor.shape(), -1, DType::i64);
      for (const auto& [shape, piece] : written[name]) {
        CHECK(shape == tensor.shape());
        put(whole, piece);
      }
      CHECK(whole.to_vector() == std::vector<double>(whole.numel(), 0));
    }
  }
}
