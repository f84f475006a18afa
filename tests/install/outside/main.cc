// A program outside Weft's tree: an op and a module of its own, ten steps, and the weights saved.
#include <fmt/core.h>
#include <weft/weft.h>

#include <exception>

using namespace weft;

/// y = log(1 + exp(x)), whose derivative is the logistic function.
Tensor softplus(const Tensor& x) {
  Tensor y;
  {
    const NoGrad guard;
    y = ops::log(ops::add(ops::exp(x), ops::full_like(x, 1)));
  }
  return record("softplus", {x}, y, {x}, [](const Backward& b) -> Tensors {
    return {ops::mul(b.dy(), ops::sigmoid(b.saved(0)))};
  });
}

struct Net : nn::Module {
  Net() : fc1(add<nn::Linear>("fc1", 8, 16)), fc2(add<nn::Linear>("fc2", 16, 3)) {}
  Tensor forward(const Tensor& x) override { return fc2(softplus(fc1(x))); }
  nn::Linear &fc1, &fc2;
};

int main(int argc, char** argv) try {
  static_assert(WEFT_VERSION_NUMBER >= 100);
  manual_seed(1);
  gradcheck([](const Tensors& x) { return softplus(x[0]); },
            {ops::randn({3, 5}, DType::f64).set_requires_grad(true)});

  Net model;
  optim::AdamW optimizer(model.named_parameters(), {.lr = 0.05});
  const Tensor images = ops::randn({32, 8});
  const Tensor classes = Tensor::empty({32}, DType::i64);
  for (int64_t i = 0; i < 32; ++i) classes.data<int64_t>()[i] = i % 3;
  double first = 0, last = 0;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const Tensor loss = ops::cross_entropy(model(images), classes);
    backward(loss);
    optimizer.step();
    last = loss.item();
    if (step == 0) first = last;
  }
  if (argc > 1) io::write_safetensors(argv[1], model.state_dict(), {{"format", "pt"}});
  fmt::print("weft {} loss {:.4f} to {:.4f}\n", WEFT_VERSION, first, last);

  // Errors of the library are caught as such, wherever they were thrown.
  try {
    ops::matmul(images, images);
  } catch (const Error&) {
    return last < 0.8 * first ? 0 : 1;
  }
  return 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
