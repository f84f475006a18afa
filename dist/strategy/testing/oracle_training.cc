#include "dist/strategy/testing/oracle_training.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "autograd/autocast.h"
#include "core/transfer.h"
#include "dist/comm/device/on_device.h"
#include "dist/comm/in_process.h"
#include "dist/comm/tree_accumulator.h"
#include "optim/clip.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer_state.h"

namespace weft::dist {
namespace {

std::unique_ptr<OracleModule> make_model(const OracleSetting& setting, int rank) {
  // Weights of other ranks than the first are to be replaced.
  auto model = setting.is_transformer
                   ? make_oracle<OracleTransformer>(setting.dtype, 3 + rank)
                   : std::unique_ptr<OracleModule>(make_oracle_model(setting.dtype, 3 + rank));
  model->checkpoints = setting.checkpoints;
  model->dropout = setting.dropout;
  for (auto& [name, parameter] : model->named_parameters()) {
    if (std::count(setting.frozen.begin(), setting.frozen.end(), name)) {
      parameter.set_requires_grad(false);
    }
  }
  return model;
}

/// A copy.
Tensor on_cpu(const Tensor& x) {
  const NoGrad guard;
  return ops::clone(to_device(x, Device{}));
}

NamedTensors trained(const nn::Module& model) {
  NamedTensors all = model.named_parameters();
  std::erase_if(all, [](const auto& named) { return !named.second.requires_grad(); });
  return all;
}

}  // namespace

OracleResult train_oracle(const OracleSetting& setting, const MakeStrategy& make,
                          const CommunicatorPtr& host) {
  const int rank = host ? host->rank() : 0;
  const Device device = setting.on_device ? device_of_rank({DeviceType::cuda, 0}, rank) : Device{};
  const auto connect = setting.communicator ? setting.communicator : make_staged_communicator;
  const CommunicatorPtr world = host && setting.on_device ? connect(host, device) : host;
  const auto model = make_model(setting, rank);
  model->to(device);
  const std::unique_ptr<Strategy> strategy = make(world);
  ModelStructure structure(setting.units);
  structure.mlps = model->mlps();
  structure.tokens = model->tokens();
  structure.head = model->last_layer();
  structure.segments = model->segments();
  structure.replica = [&] { return make_model(setting, 0); };
  strategy->wrap(*model, structure);
  optim::AdamW optimizer(strategy->groups(optim::without_decay_of_vectors(trained(*model))),
                         {.lr = 0.01, .weight_decay = 0.1});
  optim::GradScaler scaler(
      {.init_scale = setting.loss_scale, .growth_interval = 2, .enabled = setting.loss_scale > 0});

  const int64_t ranks = strategy->data_size();
  const int64_t micro_batches = setting.deterministic > 0
                                    ? setting.deterministic
                                    : ranks * strategy->micro_batches() * setting.accumulate;
  OracleResult result;
  for (int step = 0; step < setting.steps; ++step) {
    OracleBatch whole = oracle_batch(step, setting.rows * setting.accumulate, setting.dtype);
    whole = {to_device(whole.x, device), to_device(whole.labels, device)};
    optimizer.zero_grad();
    double loss_sum = 0;
    const auto micro_batch_at = [&](int64_t i) {
      const int64_t index = i * ranks + strategy->data_rank();
      const OracleShare share =
          share_of(whole, static_cast<int>(micro_batches), static_cast<int>(index));
      generator() = {.seed = 1, .stream = static_cast<uint64_t>(step * micro_batches + index)};
      // A rank without a row still takes part in the collectives of the others.
      const OracleBatch batch = share.weight > 0 ? share.batch : rows_of(whole, 0, 1);
      return MicroBatch{batch.x, [&, batch, weight = share.weight](const Tensor& logits) {
                          const Tensor wide =
                              setting.dtype == DType::f64 ? logits : ops::cast(logits, DType::f32);
                          const Tensor loss =
                              strategy->cross_entropy(wide, batch.labels, setting.loss) * weight;
                          loss_sum += loss.item();
                          return scaler.scale(loss);
                        }};
    };
    scaler.scale(Tensor::scalar(0));  // also where a pipeline's stage has no loss of its own
    {
      const Autocast precision(setting.autocast);
      if (setting.deterministic > 0) {
        TreeAccumulator tree;
        strategy->run(*model,
                      {.count = micro_batches / ranks,
                       .at = micro_batch_at,
                       .accumulates = false,
                       .after_each = [&] { tree.push(take_gradients(optimizer.parameters())); }});
        set_gradients(optimizer.parameters(), tree.finish());
      } else {
        strategy->run(*model, {.count = micro_batches / ranks, .at = micro_batch_at});
      }
    }
    const Tensor sum = Tensor::scalar(strategy->counts() ? loss_sum : 0, DType::f64);
    if (world) world->all_reduce(sum).wait();
    result.losses.push_back(sum.item());
    if (step == 0) {
      for (const auto& [name, p] : model->named_parameters()) {
        if (p.grad().defined()) result.first_gradients.emplace_back(name, on_cpu(p.grad()));
      }
    }
    if (scaler.is_enabled()) {
      scaler.unscale(optimizer);
      const Tensor found = Tensor::scalar(scaler.found_inf(optimizer), DType::f32);
      if (world) world->all_reduce(found, ReduceOp::kMax).wait();
      scaler.set_found_inf(optimizer, found.item() != 0);
      result.scales.push_back(scaler.get_scale());
    }
    // With the bits of several ranks where those are asked for.
    const double norm = setting.deterministic > 0 || world
                            ? strategy->Strategy::grad_norm(optimizer.parameters())
                            : strategy->grad_norm(optimizer.parameters());
    result.norms.push_back(norm);
    scaler.step(optimizer, optim::clip_coefficient(norm, setting.clip_norm));
    if (scaler.is_enabled()) scaler.update();
    strategy->after_step();
  }
  for (const auto& [name, tensor] : strategy->model_state(*model)) {
    result.parameters.emplace_back(name, on_cpu(tensor));
  }
  for (const auto& [name, tensor] : strategy->optimizer_state(optimizer).tensors) {
    result.optimizer.emplace_back(name, on_cpu(tensor));
  }
  return result;
}

std::vector<OracleResult> train_oracle_ranks(const OracleSetting& setting, const MakeStrategy& make,
                                             int ranks) {
  std::vector<OracleResult> results(ranks);
  run_ranks(ranks, [&](Communicator& c) {
    results[c.rank()] = train_oracle(setting, make, {&c, [](Communicator*) {}});
  });
  return results;
}

OracleResult train_oracle_alone(const OracleSetting& setting) {
  return train_oracle(setting, [](const CommunicatorPtr&) { return make_strategy({}, nullptr); });
}

void check_against_one_rank(const OracleSetting& setting, const MakeStrategy& make, int ranks) {
  OracleSetting whole = setting;
  whole.rows *= setting.accumulate;
  whole.accumulate = 1;
  const OracleResult one = train_oracle_alone(whole);
  const std::vector<OracleResult> many = train_oracle_ranks(setting, make, ranks);
  const auto sorted = [](NamedTensors tensors) {
    std::sort(tensors.begin(), tensors.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    return tensors;
  };
  for (const OracleResult& result : many) {
    if (!result.parameters.empty()) CHECK(difference(result.parameters, one.parameters) < 1e-10);
    if (!result.optimizer.empty()) {
      CHECK(difference(sorted(result.optimizer), sorted(one.optimizer)) < 1e-10);
    }
    REQUIRE(result.losses.size() == one.losses.size());
    for (size_t step = 0; step < one.losses.size(); ++step) {
      CHECK(std::abs(result.losses[step] - one.losses[step]) < 1e-10);
      CHECK(std::abs(result.norms[step] - one.norms[step]) < 1e-10);
    }
  }
  CHECK(many[0].parameters.size() == one.parameters.size());
  CHECK(many[0].optimizer.size() == one.optimizer.size());
}

void check_first_gradients(const MakeStrategy& make, int ranks, bool is_transformer) {
  const OracleSetting setting{
      .dtype = DType::f32, .is_transformer = is_transformer, .steps = 1, .clip_norm = 1e30};
  const std::string moment = ".exp_avg";
  const auto gradients_of = [&](const OracleResult& result) {
    std::map<std::string, std::vector<double>> gradients;
    for (const auto& [name, tensor] : result.optimizer) {
      if (name.ends_with(moment)) {
        gradients[name.substr(0, name.size() - moment.size())] = tensor.to_vector();
      }
    }
    return gradients;
  };
  constexpr double kMoment = 0.1;  // 1 - beta_1
  // Sums of the rows' magnitudes, in f64.
  OracleSetting wide = setting;
  wide.dtype = DType::f64;
  const auto model = make_model(wide, 0);
  const OracleBatch batch = oracle_batch(0, setting.rows, DType::f64);
  std::map<std::string, std::vector<double>> magnitudes;
  for (int64_t row = 0; row < setting.rows; ++row) {
    const OracleBatch alone = rows_of(batch, row, 1);
    model->zero_grad();
    backward(ops::cross_entropy((*model)(alone.x), alone.labels) *
             (1.0 / static_cast<double>(setting.rows)));
    for (const auto& [name, p] : model->named_parameters()) {
      const std::vector<double> g = p.grad().to_vector();
      std::vector<double>& sum = magnitudes.try_emplace(name, g.size(), 0.0).first->second;
      for (size_t i = 0; i < g.size(); ++i) sum[i] += std::abs(g[i]);
    }
  }
  using T = OracleTransformer;
  const int64_t block = 2 * T::kWidth + (T::kWidth + T::kTokens + T::kTokens + T::kWidth) +
                        (T::kWidth + 2 * T::kWidth);  // two norms, attention, MLP
  const int64_t chain =
      is_transformer ? 7 + T::kBlocks * block + T::kTokens + T::kWidth + 5 : 7 + 11 + 11 + 11 + 5;
  const auto terms =
      static_cast<double>(setting.rows * (is_transformer ? T::kTokens : 1) + 2 * chain + 2);
  const double u = unit_roundoff(DType::f32), gamma = terms * u / (1 - terms * u);

  const auto one = gradients_of(train_oracle_alone(setting));
  const auto many = gradients_of(train_oracle_ranks(setting, make, ranks)[0]);
  REQUIRE(many.size() == one.size());
  REQUIRE(one.size() == magnitudes.size());
  for (const auto& [name, expected] : one) {
    INFO(name);
    const std::vector<double>& got = many.at(name);
    const std::vector<double>& bound = magnitudes.at(name);
    const double largest = *std::max_element(bound.begin(), bound.end());
    int64_t outside = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      // The moments themselves are rounded once more.
      const double allowed =
          kMoment * (2 * gamma * std::max(bound[i], largest) + 2 * u * std::abs(expected[i]));
      if (!(std::abs(got[i] - expected[i]) <= allowed)) ++outside;
    }
    CHECK(outside == 0);
  }
}

bool same_bits(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].first != b[i].first || a[i].second.dtype() != b[i].second.dtype() ||
        a[i].second.nbytes() != b[i].second.nbytes() ||
        std::memcmp(a[i].second.raw(), b[i].second.raw(), a[i].second.nbytes()) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace weft::dist
