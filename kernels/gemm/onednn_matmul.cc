#include "kernels/gemm/onednn_packed.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "core/parallel.h"
#include "kernels/gemm/onednn.h"
#include "kernels/gemm/packed_weights.h"

namespace weft::kernels {
namespace {

using dnnl::memory;

thread_local PackedWeights::Copies* packed_weights = nullptr;

/// [batch, rows, cols] without gaps; [rows, cols] when there is one matrix.
memory::desc matrix_desc(DType dtype, int64_t batch, bool repeated, int64_t rows, int64_t cols,
                         bool transposed) {
  const int64_t row_stride = transposed ? 1 : cols, col_stride = transposed ? rows : 1;
  if (batch == 1) return {{rows, cols}, onednn_type(dtype), {row_stride, col_stride}};
  return {{repeated ? 1 : batch, rows, cols},
          onednn_type(dtype),
          {rows * cols, row_stride, col_stride}};
}

struct Primitive {
  memory::desc a, b, b_plain, c, bias, scratchpad, reorder_scratchpad;
  dnnl::matmul matmul;
  dnnl::reorder reorder;  // of B; set when b differs from b_plain
  bool is_brgemm = false, has_tiles = false;

  explicit Primitive(const MatmulKey& key) {
    a = matrix_desc(key.input, key.batch, key.a_repeated, key.m, key.k, key.a_transposed);
    b_plain = matrix_desc(key.input, key.batch, key.b_repeated, key.k, key.n, key.b_transposed);
    c = matrix_desc(key.output, key.batch, false, key.m, key.n, false);
    b = key.reorders_b
            ? memory::desc(b_plain.dims(), onednn_type(key.input), memory::format_tag::any)
            : b_plain;
    dnnl::primitive_attr attributes = onednn_attributes();
    if (key.sum) {
      dnnl::post_ops post_ops;
      post_ops.append_sum();
      attributes.set_post_ops(post_ops);
    }
    if (key.bias) {
      bias = key.batch == 1
                 ? memory::desc({1, key.n}, memory::data_type::f32, memory::format_tag::ab)
                 : memory::desc({1, 1, key.n}, memory::data_type::f32, memory::format_tag::abc);
    }
    const dnnl::matmul::desc desc =
        key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc primitive_desc(desc, attributes, onednn_engine());
    matmul = dnnl::matmul(primitive_desc);
    b = primitive_desc.weights_desc();
    scratchpad = primitive_desc.scratchpad_desc();
    const std::string_view driver = primitive_desc.impl_info_str();
    is_brgemm = driver.starts_with("brg");
    has_tiles = driver.find("amx") != driver.npos;
    if (b == b_plain) return;
    const dnnl::reorder::primitive_desc reorder_desc(onednn_engine(), b_plain, onednn_engine(), b,
                                                     onednn_attributes());
    reorder = dnnl::reorder(reorder_desc);
    reorder_scratchpad = reorder_desc.scratchpad_desc();
  }

  /// B in the layout `b`, where that is another than B's own.
  Tensor reordered(dnnl::stream& stream, const void* plain) const {
    if (!reorder) return {};
    OnednnMemory scratchpad(reorder_scratchpad), target(b);
    reorder.execute(stream, {{DNNL_ARG_FROM, OnednnMemory(b_plain, plain).object},
                             {DNNL_ARG_TO, target.object},
                             {DNNL_ARG_SCRATCHPAD, scratchpad.object}});
    return target.bytes;
  }

  /// The product of operands that lie as `a` and `b` say.
  void multiply(dnnl::stream& stream, const void* src, const void* weights, void* dst,
                const float* bias_data) const {
    const auto wrap = [](const memory::desc& desc, const void* data) {
      return OnednnMemory(desc, data).object;
    };
    OnednnMemory space(scratchpad);
    std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, wrap(a, src)},
                                                 {DNNL_ARG_WEIGHTS, wrap(b, weights)},
                                                 {DNNL_ARG_DST, wrap(c, dst)},
                                                 {DNNL_ARG_SCRATCHPAD, space.object}};
    if (bias_data) arguments.emplace(DNNL_ARG_BIAS, wrap(bias, bias_data));
    matmul.execute(stream, arguments);
  }
};

/// A product in blocks of rows whose size the shape decides, one thread each.
struct RowBlocks {
  MatmulKey whole;
  int64_t block;  // rows

  explicit RowBlocks(const MatmulKey& key)
      : whole(key), block(std::clamp<int64_t>((key.m + 511) / 512 * 32, 32, 256)) {
    whole.is_shared = false;
    whole.threads = 1;
    whole.reorders_b = key.m > block;
  }
  std::shared_ptr<const Primitive> primitive_of(int64_t rows) const {
    MatmulKey part = whole;
    part.m = rows;
    const OnednnThreads one(1);
    return cached_primitive<Primitive>(part);
  }
  std::shared_ptr<const Primitive> first() const { return primitive_of(std::min(block, whole.m)); }
};

/// C = A B in such blocks; B is brought into the blocked layout once for all of them.
void multiply_row_blocks(const MatmulKey& key, const void* a, const void* b, void* c,
                         const float* bias) {
  const RowBlocks blocks(key);
  const int64_t block = blocks.block;
  const auto first = blocks.first();
  dnnl::stream stream(onednn_engine());
  const Tensor blocked = first->reordered(stream, b);
  const auto size_in = static_cast<int64_t>(itemsize(key.input));
  const auto size_out = static_cast<int64_t>(itemsize(key.output));
  parallel_for(key.m, block, [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    const auto primitive = blocks.primitive_of(rows);
    const OnednnThreads one(1);
    dnnl::stream own_stream(onednn_engine());
    const auto* source =
        static_cast<const std::byte*>(a) + begin * size_in * (key.a_transposed ? 1 : key.k);
    Tensor columns;  // of a transposed A, [K, rows]
    if (key.a_transposed) {
      columns = Tensor::empty({key.k, rows}, key.input);
      for (int64_t k = 0; k < key.k; ++k) {
        std::memcpy(static_cast<std::byte*>(columns.raw()) + k * rows * size_in,
                    source + k * key.m * size_in, rows * size_in);
      }
      source = static_cast<std::byte*>(columns.raw());
    }
    // The last block may be shorter, and want another layout.
    const bool is_shared = blocked.defined() && primitive->b == first->b;
    const Tensor own = is_shared ? blocked : primitive->reordered(own_stream, b);
    primitive->multiply(own_stream, source, own.defined() ? own.raw() : b,
                        static_cast<std::byte*>(c) + begin * key.n * size_out,
                        key.bias ? bias : nullptr);
  });
}

}  // namespace

/// B's copies, by where it lies and how it is read there.
struct PackedWeights::Copies {
  struct Source {
    const void* b;
    int64_t k, n;
    bool is_transposed;

    friend auto operator<=>(const Source&, const Source&) = default;
  };
  struct Copy {
    std::weak_ptr<Storage> storage;
    uint64_t version = 0;
    Tensor packed = {};  // undefined until B is met again
    memory::desc layout = {};
  };

  /// B in the primitive's layout; undefined where B is met for the first time as it is now.
  Tensor of(const MatmulKey& key, const Primitive& primitive, const void* b, const Tensor& owner) {
    std::erase_if(all, [](const auto& entry) { return entry.second.storage.expired(); });
    Copy& copy = all[{b, key.k, key.n, key.b_transposed}];
    if (copy.storage.lock() != owner.storage() || copy.version != owner.version()) {
      copy = {owner.storage(), owner.version()};
      return {};
    }
    if (!copy.packed.defined() || copy.layout != primitive.b) {
      dnnl::stream stream(onednn_engine());
      copy.packed = primitive.reordered(stream, b);
      copy.layout = primitive.b;
    }
    return copy.packed;
  }

  std::map<Source, Copy> all;
};

PackedWeights::PackedWeights()
    : copies_(std::make_unique<Copies>()), in_force_(packed_weights, copies_.get()) {}
PackedWeights::~PackedWeights() = default;

int matmul_threads() {
  return omp_in_parallel() ? 1 : std::min(num_threads(), omp_get_thread_limit());
}

bool onednn_has_bf16() {
  static const bool has = [] {
    // The values are sets of bits.
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & wanted) == wanted;
  }();
  return has;
}

DType onednn_input(DType dtype) {
  return dtype == DType::bf16 && onednn_has_bf16() ? DType::bf16 : DType::f32;
}

bool onednn_keeps_bits(const MatmulKey& key) {
  const OnednnThreads threads(key.threads);
  return cached_primitive<Primitive>(key)->is_brgemm;
}

int64_t onednn_matmul_scratch(const MatmulKey& key) {
  const OnednnThreads threads(key.threads);
  auto primitive = cached_primitive<Primitive>(key);
  int64_t columns = 0;
  if (primitive->has_tiles && key.is_shared) {
    const RowBlocks blocks(key);
    primitive = blocks.first();
    const auto element = static_cast<int64_t>(itemsize(key.input));
    columns = key.a_transposed ? key.k * std::min(blocks.block, key.m) * element : 0;
  }
  const auto blocked = static_cast<int64_t>(primitive->reorder ? primitive->b.get_size() : 0);
  return blocked + columns + static_cast<int64_t>(primitive->scratchpad.get_size());
}

void onednn_packed_matmul(const MatmulKey& key, const void* a, const void* b, void* c,
                          const float* bias, const Tensor& owner) {
  const OnednnThreads threads(key.threads);
  auto primitive = cached_primitive<Primitive>(key);
  if (primitive->has_tiles && key.is_shared) return multiply_row_blocks(key, a, b, c, bias);
  Tensor blocked;
  if (packed_weights && owner.defined()) {
    MatmulKey blocks = key;
    blocks.reorders_b = true;
    const auto packing = cached_primitive<Primitive>(blocks);
    if (packing->reorder) blocked = packed_weights->of(key, *packing, b, owner);
    if (blocked.defined()) primitive = packing;
  }
  dnnl::stream stream(onednn_engine());
  if (!blocked.defined()) blocked = primitive->reordered(stream, b);
  primitive->multiply(stream, a, blocked.defined() ? blocked.raw() : b, c,
                      key.bias ? bias : nullptr);
}

void onednn_matmul(const MatmulKey& key, const void* a, const void* b, void* c, const float* bias) {
  onednn_packed_matmul(key, a, b, c, bias, {});
}

}  // namespace weft::kernels
