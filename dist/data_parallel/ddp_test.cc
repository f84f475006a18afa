#include "dist/data_parallel/ddp.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>

#include "autograd/checkpoint.h"
#include "dist/comm/in_process.h"
#include "dist/strategy/strategies.h"
#include "dist/strategy/testing/oracle_training.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

NamedTensors gradients_of(nn::Module& model) {
  NamedTensors result;
  for (const auto& [name, p] : model.named_parameters()) {
    if (p.grad().defined()) result.emplace_back(name, p.grad());
  }
  return cloned(result);
}

MakeStrategy ddp(const DdpOptions& options = {}) {
  return [options](const CommunicatorPtr& world) { return make_ddp(world, options); };
}

CommunicatorPtr borrowed(Communicator& c) {
  return {&c, [](Communicator*) {}};
}

}  // namespace

TEST_CASE("DDP on N ranks equals one rank: uneven batches, a tied weight, clipping") {
  for (int ranks : {1, 2, 3, 4, 8}) {
    INFO(ranks);
    check_against_one_rank({}, ddp(), ranks);
  }
  // All ranks hold the same, bit for bit.
  const std::vector<OracleResult> all = train_oracle_ranks({}, ddp(), 3);
  for (const OracleResult& result : all) CHECK(same_bits(result.parameters, all[0].parameters));
}

TEST_CASE("DDP with several buckets, views, accumulation, checkpointed activations") {
  DdpOptions options{.bucket_bytes = 300, .first_bucket_bytes = 100};
  check_against_one_rank({}, ddp(options), 3);
  options.gradient_as_bucket_view = true;
  check_against_one_rank({}, ddp(options), 2);
  OracleSetting setting{.accumulate = 3};
  check_against_one_rank(setting, ddp(options), 3);
  setting.checkpoints = true;
  check_against_one_rank(setting, ddp(options), 2);
  options.find_unused_parameters = true;
  check_against_one_rank(setting, ddp(options), 4);
  options.find_unused_parameters = false;
  options.static_graph = true;
  check_against_one_rank(setting, ddp(options), 4);
}

TEST_CASE("a rank without a sample synchronises without a backward") {
  run_ranks(3, [](Communicator& c) {
    nn::Linear model(1, 1, false);
    DistributedDataParallel ddp(model, borrowed(c), {.average = ReduceOp::kSum});
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      if (c.rank() == 1) {
        ddp.synchronize();
      } else {
        backward(ops::sum(ddp(Tensor::full({1, 1}, 1 + c.rank()))));
      }
      WEFT_CHECK(model.weight.grad().item() == 4, "rank {}: {}", c.rank(),
                 model.weight.grad().item());
    }
  });
}

TEST_CASE("f32 gradients of the first step lie within the bound of their summation") {
  // A row's gradient is computed alike on one rank and on many; the orders in which the rows are
  // added differ. Two orders of adding n terms differ by at most 2 gamma_{n-1} sum |terms| (Higham,
  // "Accuracy and Stability of Numerical Algorithms", 2nd ed., equation 4.4). The loss's weights
  // and the matrix products' blocking add roundings to each term: inner lengths of 7, 11, 11, 11
  // and 5 forward and backward, and one division each.
  const OracleSetting setting{.dtype = DType::f32};
  const OracleResult one = train_oracle_alone(setting);
  const auto model = make_oracle_model(DType::f64);
  NamedTensors absolute;
  const int64_t rows = setting.rows;
  const OracleBatch batch = oracle_batch(0, rows, DType::f64);
  for (int64_t row = 0; row < rows; ++row) {
    const OracleBatch alone = rows_of(batch, row, 1);
    model->zero_grad();
    backward(ops::cross_entropy((*model)(alone.x), alone.labels) *
             (1.0 / static_cast<double>(rows)));
    const NamedTensors gradients = gradients_of(*model);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Tensor magnitude = ops::abs(gradients[i].second);
      if (row == 0) {
        absolute.emplace_back(gradients[i].first, magnitude);
      } else {
        absolute[i].second = absolute[i].second + magnitude;
      }
    }
  }
  const double terms = static_cast<double>(rows) + 2 * (7 + 11 + 11 + 11 + 5) + 2;
  const double u = unit_roundoff(DType::f32), gamma = terms * u / (1 - terms * u);
  for (int ranks : {2, 3, 8}) {
    const OracleResult many = train_oracle_ranks(setting, ddp(), ranks)[0];
    REQUIRE(many.first_gradients.size() == absolute.size());
    int64_t different = 0;
    for (size_t i = 0; i < absolute.size(); ++i) {
      const auto a = many.first_gradients[i].second.to_vector(),
                 b = one.first_gradients[i].second.to_vector(),
                 bound = absolute[i].second.to_vector();
      // The scale of a row's own roundings is that of the tensor's largest term.
      const double largest = *std::max_element(bound.begin(), bound.end());
      for (size_t j = 0; j < a.size(); ++j) {
        if (std::abs(a[j] - b[j]) > 2 * gamma * std::max(bound[j], largest)) ++different;
      }
    }
    CHECK(different == 0);
  }
}

TEST_CASE("ranks with different seeds start from rank 0's weights") {
  run_ranks(3, [](Communicator& c) {
    const auto expected = make_oracle_model(DType::f32, 5);
    const auto model = make_oracle_model(DType::f32, 5 + c.rank());
    DistributedDataParallel ddp(*model, borrowed(c));
    WEFT_CHECK(same_bits(model->state_dict(), expected->state_dict()), "rank {} differs", c.rank());
  });
}

TEST_CASE("models that differ are refused by every rank, naming rank and tensor") {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(3, [&](Communicator& c) {
    nn::Sequential model;
    model.append<nn::Linear>(4, 3);
    model.append<nn::Linear>(3, c.rank() == 2 ? 6 : 5);
    try {
      DistributedDataParallel ddp(model, borrowed(c));
    } catch (const Error& error) {
      std::lock_guard lock(mutex);
      errors.push_back(error.what());
    }
  });
  REQUIRE(errors.size() == 3);
  for (const std::string& error : errors) {
    CHECK_THAT(error, Contains("rank 0 has 1.weight f32 [5, 3], rank 2 has 1.weight f32 [6, 3]"));
  }
}

TEST_CASE("buckets follow the order of arrival from the second iteration on") {
  run_ranks(2, [](Communicator& c) {
    const auto model = make_oracle_model(DType::f32);
    DistributedDataParallel ddp(*model, borrowed(c), {.bucket_bytes = 1, .first_bucket_bytes = 1});
    const auto first = [&] { return ddp.buckets().front()[0]; };
    WEFT_CHECK(first() == "fc2.bias", "before: {}", first());
    const OracleBatch batch = oracle_batch(0, 4, DType::f32);
    backward(ops::cross_entropy(ddp(batch.x), batch.labels));
    const auto buckets = ddp.buckets();
    WEFT_CHECK(buckets.size() == model->parameters().size(), "{} buckets", buckets.size());
    // The tied layer is complete only when its first use is reached, after `scale`.
    size_t scale = 0, tied = 0;
    for (size_t i = 0; i < buckets.size(); ++i) {
      if (buckets[i][0] == "scale") scale = i;
      if (buckets[i][0] == "tied.weight") tied = i;
    }
    WEFT_CHECK(scale < tied, "scale in bucket {}, tied.weight in bucket {}", scale, tied);
  });
}

TEST_CASE("trap: mean of means is not the global mean with uneven batches") {
  const auto gradient = [](ReduceOp average) {
    double value = 0;
    run_ranks(2, [&](Communicator& c) {
      nn::Linear model(1, 1, false);
      model.weight.data<float>()[0] = 1;
      DistributedDataParallel ddp(model, borrowed(c), {.average = average});
      // The samples 1, 2, 3 on rank 0, and 6 on rank 1: the mean is 3, the mean of means 4.
      const Tensor x = c.rank() == 0 ? Tensor::from(std::vector<float>{1, 2, 3}, {3, 1})
                                     : Tensor::from(std::vector<float>{6}, {1, 1});
      const double weight = average == ReduceOp::kMean ? 1 : static_cast<double>(x.size(0)) / 4;
      backward(ops::mean(ddp(x)) * weight);
      if (c.rank() == 0) value = model.weight.grad().item();
    });
    return value;
  };
  CHECK(gradient(ReduceOp::kSum) == 3);
  CHECK(gradient(ReduceOp::kMean) == 4);
}

namespace {

/// Uses `b` in some iterations only.
class Choosing : public nn::Module {
 public:
  Choosing() : a(add<nn::Linear>("a", 2, 2)), b(add<nn::Linear>("b", 2, 2)) {}
  Tensor forward(const Tensor& x) override { return uses_b ? a(x) + b(x) : a(x); }
  nn::Linear &a, &b;
  bool uses_b = true;
};

}  // namespace

TEST_CASE("parameters that one rank does not use") {
  const Tensor x = Tensor::full({3, 2}, 1);
  run_ranks(2, [&](Communicator& c) {
    manual_seed(1);
    Choosing model;
    model.uses_b = c.rank() == 0;
    DistributedDataParallel ddp(model, borrowed(c), {.find_unused_parameters = true});
    backward(ops::sum(ddp(x)));
    // Rank 0's gradient is 3 in every element, rank 1's is 0.
    for (double g : model.b.weight.grad().to_vector()) WEFT_CHECK(g == 1.5, "gradient {}", g);
    model.zero_grad();
    model.uses_b = false;
    backward(ops::sum(ddp(x)));
    WEFT_CHECK(!model.b.weight.grad().defined(), "an unused parameter has a gradient");
    WEFT_CHECK(model.a.weight.grad().defined(), "a used parameter has none");
  });
  CHECK_THROWS_WITH(run_ranks(2,
                              [&](Communicator& c) {
                                Choosing model;
                                model.uses_b = false;
                                DistributedDataParallel ddp(model, borrowed(c));
                                backward(ops::sum(ddp(x)));
                              }),
                    Contains("no gradient reached 2 parameters") && Contains("b.weight, b.bias") &&
                        Contains("find_unused_parameters allows that"));
  run_ranks(2, [&](Communicator& c) {
    Choosing model;
    model.uses_b = false;
    DistributedDataParallel ddp(model, borrowed(c), {.static_graph = true});
    for (int i = 0; i < 3; ++i) {
      model.zero_grad();
      backward(ops::sum(ddp(x)));
      WEFT_CHECK(!model.b.weight.grad().defined(), "an unused parameter has a gradient");
    }
    model.uses_b = true;
    expect_error([&] { backward(ops::sum(ddp(x))); },
                 "had none on any rank in the first iteration");
  });
}

TEST_CASE("trap: with activation checkpointing a parameter must not be marked ready twice") {
  // `tied` is used in two recomputed segments: its gradient arrives in two parts, in passes inside
  // the pass, and the first part must not leave alone.
  for (int64_t bucket : {1, 1 << 20}) {
    NamedTensors expected;
    const OracleBatch batch = oracle_batch(0, 8, DType::f64);
    const auto segments = [](OracleModel& m, const Tensor& x) {
      const Tensor h = checkpoint(
          [&](const Tensors& in) { return m.tied(m.norm(ops::gelu(m.fc1(in[0])))); }, {x});
      return checkpoint([&](const Tensors& in) { return m.fc2(m.tied(in[0] * m.scale)); }, {h});
    };
    {
      const auto model = make_oracle_model(DType::f64);
      backward(ops::cross_entropy(segments(*model, batch.x), batch.labels));
      expected = gradients_of(*model);
    }
    run_ranks(2, [&](Communicator& c) {
      const auto model = make_oracle_model(DType::f64);
      DistributedDataParallel ddp(*model, borrowed(c),
                                  {.bucket_bytes = bucket, .first_bucket_bytes = bucket});
      const OracleShare share = share_of(batch, 2, c.rank());
      for (int iteration = 0; iteration < 3; ++iteration) {
        model->zero_grad();
        const Tensor logits = ddp.forward([&] { return segments(*model, share.batch.x); });
        backward(ops::cross_entropy(logits, share.batch.labels));
        const double d = difference(gradients_of(*model), expected);
        WEFT_CHECK(d < 1e-13, "iteration {}: the gradients differ by {}", iteration, d);
      }
    });
  }
}

namespace {

/// Its deepest layer may be unused, another one is used in several recomputed segments.
class Uneven : public nn::Module {
 public:
  Uneven()
      : extra(add<nn::Linear>("extra", 4, 4)),
        shared(add<nn::Linear>("shared", 4, 4)),
        last(add<nn::Linear>("last", 4, 2)) {
    to(DType::f64);
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = uses_extra ? x + extra(x) : x;
    for (int i = 0; i < segments; ++i) {
      y = checkpoint([this](const Tensors& in) { return ops::gelu(shared(in[0])); }, {y});
    }
    return last(y);
  }
  nn::Linear &extra, &shared, &last;
  bool uses_extra = false;
  int segments = 1;
};

}  // namespace

TEST_CASE("trap: ranks that use a parameter differently often reduce it alike") {
  enum class Uses { kAll, kSame, kOther };  // in each iteration
  for (const auto& [options, uses] : {std::pair(DdpOptions{}, Uses::kAll),
                                      {{.static_graph = true}, Uses::kSame},
                                      {{.find_unused_parameters = true}, Uses::kSame},
                                      {{.find_unused_parameters = true}, Uses::kOther}}) {
    // Of this rank in this iteration.
    const auto pass = [uses = uses](Uneven& model, int rank, int iteration,
                                    const std::function<Tensor(const Tensor&)>& call) {
      const int kind = uses == Uses::kOther ? (rank + iteration) % 2 : rank;
      model.uses_extra = uses == Uses::kAll || kind == 1;
      model.segments = 1 + kind;
      backward(ops::sum(ops::square(call(Tensor::full({3, 4}, 0.5 + rank, DType::f64)))));
    };
    std::vector<NamedTensors> expected;
    manual_seed(1);
    Uneven one;
    for (int iteration = 0; iteration < 4; ++iteration) {
      one.zero_grad();
      for (int rank = 0; rank < 2; ++rank) {
        pass(one, rank, iteration, [&](const Tensor& x) { return one(x) * std::sqrt(0.5); });
      }
      expected.push_back(gradients_of(one));
    }
    for (const int64_t bucket : {1, 1 << 20}) {
      for (const bool is_view : {false, true}) {
        INFO("uses " << static_cast<int>(uses) << ", static graph " << options.static_graph
                     << ", buckets of " << bucket);
        run_ranks(2,
                  [&, &given = options](Communicator& c) {
                    manual_seed(1);
                    Uneven model;
                    DdpOptions options = given;
                    options.bucket_bytes = options.first_bucket_bytes = bucket;
                    options.gradient_as_bucket_view = is_view;
                    DistributedDataParallel ddp(model, borrowed(c), options);
                    for (int iteration = 0; iteration < 4; ++iteration) {
                      model.zero_grad();
                      pass(model, c.rank(), iteration, [&](const Tensor& x) { return ddp(x); });
                      const double d = difference(gradients_of(model), expected[iteration]);
                      WEFT_CHECK(d < 1e-13, "iteration {}: the gradients differ by {}", iteration,
                                 d);
                    }
                  },
                  {.host = {.timeout_seconds = 5}});
      }
    }
  }
}

TEST_CASE("a gradient that comes late on some ranks alone is an error that names it") {
  for (const bool is_everywhere : {true, false}) {
    std::string errors[2];
    run_ranks(2,
              [&](Communicator& c) {
                manual_seed(1);
                Uneven model, one;
                one.load_state_dict(model.state_dict());
                model.uses_extra = one.uses_extra = true;
                DistributedDataParallel ddp(model, borrowed(c),
                                            {.bucket_bytes = 1, .first_bucket_bytes = 1});
                const Tensor x = Tensor::full({3, 4}, 0.5, DType::f64);
                try {
                  for (int iteration = 0; iteration < 3; ++iteration) {
                    const bool is_late = iteration == 1 && (is_everywhere || c.rank() == 1);
                    model.segments = one.segments = is_late ? 2 : 1;
                    model.zero_grad();
                    one.zero_grad();
                    backward(ops::sum(ddp(x)));
                    backward(ops::sum(one(x)));
                    const double d = difference(gradients_of(model), gradients_of(one));
                    WEFT_CHECK(d < 1e-13 || !is_everywhere,
                               "iteration {}: the gradients differ by {}", iteration, d);
                  }
                } catch (const Error& error) {
                  errors[c.rank()] = error.what();
                }
              },
              {.host = {.timeout_seconds = 5}});
    if (is_everywhere) {
      CHECK(errors[0] + errors[1] == "");
    } else {
      CHECK_THAT(errors[0], Contains("all_to_all"));
      CHECK_THAT(errors[1], Contains("of 2 parameters came on rank 1 when their buckets had left: "
                                     "shared.weight, shared.bias"));
    }
  }
}

TEST_CASE("a pass that fails when buckets have left, or when it is over, leaves nothing behind") {
  const OracleBatch batch = oracle_batch(0, 8, DType::f64);
  const auto one = make_oracle_model(DType::f64);
  backward(ops::cross_entropy((*one)(batch.x), batch.labels));
  const NamedTensors expected = gradients_of(*one);
  for (const bool is_view : {false, true}) {
    run_ranks(
        2,
        [&](Communicator& c) {
          const auto model = make_oracle_model(DType::f64);
          DistributedDataParallel ddp(
              *model, borrowed(c),
              {.bucket_bytes = 1, .first_bucket_bytes = 1, .gradient_as_bucket_view = is_view});
          const OracleShare share = share_of(batch, 2, c.rank());
          for (int iteration = 0; iteration < 6; ++iteration) {
            model->zero_grad();
            const Tensor loss = ops::cross_entropy(ddp(share.batch.x), share.batch.labels);
            if (iteration == 1 || iteration == 2) {
              fail_at(model->fc1.weight);
              expect_error([&] { backward(loss); }, "no memory");
            } else if (iteration == 4) {
              expect_error(
                  [&] { backward(ops::sum(ddp.forward([&] { return model->fc2.bias; }))); },
                  "no gradient reached");
            } else {
              backward(loss);
              const double d = difference(gradients_of(*model), expected);
              WEFT_CHECK(d < 1e-13, "iteration {}: the gradients differ by {}", iteration, d);
            }
          }
        },
        {.latency_seconds = 0.001});
  }
}

TEST_CASE("a pass that fails leaves the gradients that there were") {
  for (const bool is_view : {false, true}) {
    run_ranks(2, [&](Communicator& c) {
      const auto model = make_oracle_model(DType::f64);
      DistributedDataParallel ddp(
          *model, borrowed(c),
          {.bucket_bytes = 1, .first_bucket_bytes = 1, .gradient_as_bucket_view = is_view});
      const auto loss = [&](int number) {
        const OracleShare share = share_of(oracle_batch(number, 8, DType::f64), 2, c.rank());
        return ops::cross_entropy(ddp(share.batch.x), share.batch.labels);
      };
      const auto expect_same = [&](const NamedTensors& expected) {
        WEFT_CHECK(same_bits(gradients_of(*model), expected), "the gradients differ by {}",
                   difference(gradients_of(*model), expected));
      };
      backward(loss(0));
      for (const bool is_local : {true, false}) {  // what is there: a sum of this rank, or of all
        if (is_local) {
          const std::shared_ptr<void> local = ddp.no_sync();
          backward(loss(1));
        }
        const NamedTensors before = cloned(gradients_of(*model));
        fail_at(model->fc1.weight);
        expect_error([&] { backward(loss(2)); }, "no memory");
        expect_same(before);
        if (is_local) backward(loss(3));
      }
    });
  }
}

TEST_CASE("a pass on top of gradients that are summed already adds its own sum to them") {
  for (const bool is_view : {false, true}) {
    run_ranks(2, [&](Communicator& c) {
      const auto model = make_oracle_model(DType::f64);
      DistributedDataParallel ddp(*model, borrowed(c),
                                  {.bucket_bytes = 1,
                                   .first_bucket_bytes = 1,
                                   .average = ReduceOp::kSum,
                                   .gradient_as_bucket_view = is_view});
      const auto pass = [&](int number) {
        const OracleShare share = share_of(oracle_batch(number, 8, DType::f64), 2, c.rank());
        backward(ops::cross_entropy(ddp(share.batch.x), share.batch.labels));
      };
      const auto drop = [&] {
        for (Tensor& parameter : model->parameters()) parameter.set_grad({});
      };
      NamedTensors expected;
      for (int number = 0; number < 3; ++number) {
        drop();
        pass(number);
        const NamedTensors one = cloned(gradients_of(*model));
        if (number == 0) expected = one;
        for (size_t i = 0; number > 0 && i < one.size(); ++i) {
          expected[i].second = expected[i].second + one[i].second;
        }
      }
      drop();
      for (int number = 0; number < 3; ++number) pass(number);
      WEFT_CHECK(same_bits(gradients_of(*model), expected), "the gradients differ by {}",
                 difference(gradients_of(*model), expected));
      ddp.synchronize();
      WEFT_CHECK(same_bits(gradients_of(*model), expected), "synchronize() summed them again");
      {
        const std::shared_ptr<void> local = ddp.no_sync();
        pass(0);
      }
      expect_error([&] { pass(1); }, "zero_grad() comes before no_sync()");
    });
  }
}

TEST_CASE("ranks whose passes have failed at different places do not go on") {
  run_ranks(2,
            [](Communicator& c) {
              const auto model = make_oracle_model(DType::f64);
              DistributedDataParallel ddp(*model, borrowed(c),
                                          {.bucket_bytes = 1, .first_bucket_bytes = 1});
              const OracleBatch batch = oracle_batch(0, 4, DType::f64);
              const auto pass = [&] { backward(ops::cross_entropy(ddp(batch.x), batch.labels)); };
              fail_at(c.rank() == 0 ? model->fc1.weight : model->tied.weight);
              expect_error(pass, "no memory");
              expect_error(pass, "expected the same, at the same place");
            },
            {.host = {.timeout_seconds = 5}});
}

TEST_CASE("trap: uneven step counts hang; join lets ranks without batches follow") {
  // Rank r has r + 1 batches. A rank that is out of batches adds zeros, the mean stays over all.
  for (bool finds_unused : {false, true}) {
    std::vector<NamedTensors> results(3);
    run_ranks(3, [&](Communicator& c) {
      const auto model = make_oracle_model(DType::f64);
      DistributedDataParallel ddp(*model, borrowed(c),
                                  {.bucket_bytes = 200, .find_unused_parameters = finds_unused});
      optim::SGD optimizer(model->named_parameters(), {.lr = 0.1});
      DistributedDataParallel::Join join(ddp);
      for (int i = 0; i <= c.rank(); ++i) {
        const OracleBatch batch = oracle_batch(10 * c.rank() + i, 4, DType::f64);
        optimizer.zero_grad();
        backward(ops::cross_entropy(ddp(batch.x), batch.labels));
        optimizer.step();
      }
      join.finish();
      results[c.rank()] = cloned(model->state_dict());
    });
    const auto model = make_oracle_model(DType::f64);
    optim::SGD optimizer(model->named_parameters(), {.lr = 0.1});
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      for (int r = i; r < 3; ++r) {
        const OracleBatch batch = oracle_batch(10 * r + i, 4, DType::f64);
        backward(ops::cross_entropy((*model)(batch.x), batch.labels) * (1.0 / 3));
      }
      optimizer.step();
    }
    for (const NamedTensors& result : results) {
      CHECK(difference(result, model->state_dict()) < 1e-12);
    }
  }
}

TEST_CASE("trap: join and no_sync must issue matching collectives") {
  // Rank 0 has one batch, rank 1 three, of which only the last is synchronised.
  run_ranks(2, [&](Communicator& c) {
    const auto model = make_oracle_model(DType::f32);
    DistributedDataParallel ddp(*model, borrowed(c));
    DistributedDataParallel::Join join(ddp);
    const int batches = c.rank() == 0 ? 1 : 3;
    for (int i = 0; i < batches; ++i) {
      const std::shared_ptr<void> local = i < 2 ? ddp.no_sync() : nullptr;
      const OracleBatch batch = oracle_batch(i, 4, DType::f32);
      backward(ops::cross_entropy(ddp(batch.x), batch.labels));
    }
    join.finish();
  });
}

TEST_CASE("trap: buffers changed in place and reassigned buffers both get synchronised") {
  run_ranks(2, [](Communicator& c) {
    class WithBuffers : public nn::Module {
     public:
      WithBuffers()
          : fc(add<nn::Linear>("fc", 1, 1)),
            changed(buffer("changed", Tensor::zeros({2}))),
            replaced(buffer("replaced", Tensor::zeros({2}))) {}
      Tensor forward(const Tensor& x) override { return fc(x); }
      nn::Linear& fc;
      Tensor changed, replaced;
    } model;
    DistributedDataParallel ddp(model, borrowed(c));
    model.changed.data<float>()[0] = static_cast<float>(10 + c.rank());
    model.replaced.set_data(Tensor::full({2}, 20 + c.rank()));
    ddp(Tensor::zeros({1, 1}));
    const double changed = model.changed.to_vector()[0], replaced = model.replaced.to_vector()[0];
    WEFT_CHECK(changed == 10 && replaced == 20, "rank {} has {} and {}", c.rank(), changed,
               replaced);
    model.eval();
    model.changed.data<float>()[0] = static_cast<float>(c.rank());
    ddp(Tensor::zeros({1, 1}));
    WEFT_CHECK(model.changed.to_vector()[0] == c.rank(), "evaluation changed a buffer");
  });
}

TEST_CASE("gradients compressed to bf16 and f16 lie within a rounding of each rank's") {
  for (DType narrow : {DType::bf16, DType::f16}) {
    NamedTensors exact, compressed;
    for (bool compresses : {false, true}) {
      run_ranks(3, [&](Communicator& c) {
        const auto model = make_oracle_model(DType::f32);
        DdpOptions options{.average = ReduceOp::kMean};
        if (compresses) options.hook = compress_gradients(narrow);
        DistributedDataParallel ddp(*model, borrowed(c), options);
        const OracleBatch batch = oracle_batch(c.rank(), 4, DType::f32);
        backward(ops::cross_entropy(ddp(batch.x), batch.labels));
        if (c.rank() == 0) (compresses ? compressed : exact) = gradients_of(*model);
      });
    }
    // |rounded - exact| <= u |g_r| per rank, then u of the mean; |g_r| is below 1 here.
    for (size_t i = 0; i < exact.size(); ++i) {
      const auto a = exact[i].second.to_vector(), b = compressed[i].second.to_vector();
      for (size_t j = 0; j < a.size(); ++j) {
        CHECK(std::abs(a[j] - b[j]) <= 2.01 * unit_roundoff(narrow));
      }
    }
    CHECK(difference(compressed, exact) > 0);
  }
  CHECK_THROWS_WITH(compress_gradients(DType::f32), Contains("expected f16 or bf16"));
  run_ranks(2, [](Communicator& c) {
    const CommunicationHook hook = compress_gradients(DType::f16);
    expect_error([&] { hook(c, {.flat = Tensor::zeros({4}, DType::bf16)}); },
                 "expected gradients of f32 or f16, got bf16");
  });
}

TEST_CASE("bytes sent are those of the formula") {
  // 2 (N - 1) / N of the padded buckets, each step.
  for (int ranks : {2, 4}) {
    run_ranks(ranks, [&](Communicator& c) {
      const auto model = make_oracle_model(DType::f32);
      DistributedDataParallel ddp(*model, borrowed(c),
                                  {.bucket_bytes = 400, .first_bucket_bytes = 100});
      for (int step = 0; step < 2; ++step) {
        const OracleBatch batch = oracle_batch(step, 4, DType::f32);
        const int64_t expected = 2 * (ranks - 1) * ddp.bucket_bytes() / ranks;
        const int64_t before = c.traffic().sent;
        model->zero_grad();
        const Tensor loss = ops::cross_entropy(ddp(batch.x), batch.labels);
        backward(loss);
        const int64_t sent = c.traffic().sent - before;
        // The first step also tells the order of the buckets.
        if (step == 1) WEFT_CHECK(sent == expected, "sent {} bytes, expected {}", sent, expected);
      }
    });
  }
}

TEST_CASE("buckets travel while backward computes") {
  // Four layers that take 20 ms each to differentiate, buckets that take 25 ms each to reduce: one
  // after the other 180 ms, overlapped 20 ms and then four times 25.
  InProcessOptions options;
  options.latency_seconds = 0.0125;  // an all_reduce is two exchanges
  double seconds = 1e9;
  for (int attempt = 0; attempt < 5 && seconds > 0.16; ++attempt) {
    run_ranks(
        2,
        [&](Communicator& c) {
          nn::Sequential model;
          for (int i = 0; i < 4; ++i) model.append<nn::Linear>(4, 4, false);
          DistributedDataParallel ddp(model, borrowed(c),
                                      {.bucket_bytes = 1, .first_bucket_bytes = 1});
          for (int step = 0; step < 2; ++step) {
            model.zero_grad();
            const Tensor y = ddp.forward([&] {
              Tensor h = Tensor::full({2, 4}, 1);
              for (int i = 0; i < 4; ++i) {
                h = model[i](h);
                register_hook(h, [](const Tensor&) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(20));
                  return Tensor();
                });
              }
              return h;
            });
            c.barrier().wait();
            const auto begin = std::chrono::steady_clock::now();
            backward(ops::sum(y));
            const double took =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            if (step == 1 && c.rank() == 0) seconds = std::min(seconds, took);
          }
        },
        options);
  }
  CHECK(seconds > 0.119);
  CHECK(seconds < 0.16);
}
