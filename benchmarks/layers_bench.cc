// Each layer of the models of `train` beside oneDNN's own primitives: what the backend takes, with the weights' and
// gradients' reordering that training needs, over what the primitives alone take in the layouts that they like best,
// with relu as their post-op. The sums over a model are the bound that its training step cannot pass with this library.
//
// The sides take turns, call by call; times are medians.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench_options.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/random.h"
#include "evenkeel/kernels/backend.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace evenkeel {
namespace {

using dnnl::memory;
using dnnl::prop_kind;

struct Layer {
  enum class Kind { kConv, kDense, kBatchNorm, kMaxPool };
  Kind kind;
  int count;                 // in the model
  std::int64_t in, out = 0;  // channels or units
  std::int64_t side = 1;     // of the input image
  std::int64_t kernel = 3, stride = 1;
  bool relu = false;
  bool first = false;  // its input needs no gradient

  std::int64_t output_side() const { return (side + stride - 1) / stride; }
  std::string Name() const {
    const std::string behind = relu ? " relu" : "";
    switch (kind) {
      case Kind::kConv:
        return absl::StrCat("conv ", kernel, "x", kernel, stride > 1 ? absl::StrCat("/", stride) : "", " ", in, "-",
                            out, " on ", side, behind);
      case Kind::kDense:
        return absl::StrCat("dense ", in, "-", out, behind);
      case Kind::kBatchNorm:
        return absl::StrCat("batch norm ", in, " on ", side, behind);
      case Kind::kMaxPool:
        return absl::StrCat("max pool 2 ", in, " on ", side);
    }
    return "";
  }
};

// Errors: an unknown name ends the program.
std::vector<Layer> LayersOf(const std::string& model, const bench::Options& options) {
  using enum Layer::Kind;
  if (model == "mlp") {
    return {{.kind = kDense, .count = 1, .in = 784, .out = 512, .relu = true, .first = true},
            {.kind = kDense, .count = 1, .in = 512, .out = 512, .relu = true},
            {.kind = kDense, .count = 1, .in = 512, .out = 10}};
  }
  if (model == "cnn") {
    return {{.kind = kConv, .count = 1, .in = 3, .out = 32, .side = 32, .relu = true, .first = true},
            {.kind = kConv, .count = 1, .in = 32, .out = 64, .side = 32, .relu = true},
            {.kind = kMaxPool, .count = 1, .in = 64, .side = 32},
            {.kind = kDense, .count = 1, .in = 16384, .out = 128, .relu = true},
            {.kind = kDense, .count = 1, .in = 128, .out = 10}};
  }
  if (model != "resnet20") options.Refuse("there is no model '" + model + "'; there are mlp, cnn, resnet20");
  std::vector<Layer> layers{{.kind = kConv, .count = 1, .in = 3, .out = 16, .side = 32, .first = true},
                            {.kind = kBatchNorm, .count = 4, .in = 16, .side = 32, .relu = true},
                            {.kind = kBatchNorm, .count = 3, .in = 16, .side = 32},
                            {.kind = kConv, .count = 6, .in = 16, .out = 16, .side = 32}};
  for (const std::int64_t width : {32, 64}) {
    const std::int64_t side = 32 * 16 / width;
    layers.push_back({.kind = kConv, .count = 1, .in = width / 2, .out = width, .side = 2 * side, .stride = 2});
    layers.push_back(
        {.kind = kConv, .count = 1, .in = width / 2, .out = width, .side = 2 * side, .kernel = 1, .stride = 2});
    layers.push_back({.kind = kConv, .count = 5, .in = width, .out = width, .side = side});
    layers.push_back({.kind = kBatchNorm, .count = 3, .in = width, .side = side, .relu = true});
    layers.push_back({.kind = kBatchNorm, .count = 4, .in = width, .side = side});
  }
  layers.push_back({.kind = kDense, .count = 1, .in = 64, .out = 10});
  return layers;
}

// One way of doing a layer. What they run on lives in what they hold.
struct Passes {
  std::function<void()> forward, backward;
};

void Need(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "layers: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

// --- the backend ----------------------------------------------------------------------------------------------------

class Memory {
 public:
  explicit Memory(Backend& backend) : backend_(backend) {}
  Tensor Make(const Shape& shape) {
    Tensor tensor{Bytes(static_cast<std::size_t>(shape.elements()) * sizeof(float)), shape, DType::kFloat32};
    for (float& value : tensor.as<float>()) value = rng_.NextFloat() - 0.5f;
    return tensor;
  }
  void* Bytes(std::size_t bytes) {
    absl::StatusOr<std::unique_ptr<DeviceBuffer>> buffer = backend_.Allocate(bytes);
    Need(buffer.status());
    buffers_.push_back(*std::move(buffer));
    return buffers_.back()->data();
  }

 private:
  Backend& backend_;
  Rng rng_{1};
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

// SAME padding, as the models have it.
Conv2dSpec ConvOf(const Layer& layer) {
  const std::int64_t pad =
      std::max<std::int64_t>((layer.output_side() - 1) * layer.stride + layer.kernel - layer.side, 0);
  return {.stride_h = layer.stride,
          .stride_w = layer.stride,
          .pad_top = pad / 2,
          .pad_bottom = pad - pad / 2,
          .pad_left = pad / 2,
          .pad_right = pad - pad / 2};
}

// Products: dense layers and convolutions, with the activation behind them.
Passes Products(const Layer& layer, std::int64_t batch, Backend& backend) {
  const auto held = std::make_shared<Memory>(backend);
  const bool conv = layer.kind == Layer::Kind::kConv;
  const Shape input = conv ? Shape{batch, layer.side, layer.side, layer.in} : Shape{batch, layer.in};
  const Shape output =
      conv ? Shape{batch, layer.output_side(), layer.output_side(), layer.out} : Shape{batch, layer.out};
  const Shape weights = conv ? Shape{layer.kernel, layer.kernel, layer.in, layer.out} : Shape{layer.in, layer.out};
  const Tensor x = held->Make(input), w = held->Make(weights), b = held->Make({layer.out}), y = held->Make(output),
               dy = held->Make(output), dw = held->Make(weights), db = held->Make({layer.out});
  const Tensor dx = layer.first ? Tensor{nullptr, input, DType::kFloat32} : held->Make(input);
  const Conv2dSpec spec = conv ? ConvOf(layer) : Conv2dSpec();
  const bool relu = layer.relu;
  Passes passes;
  passes.forward = [=, &backend] {
    backend.WeightsChanged();
    Need(conv ? backend.Conv2d(spec, x, w, b, y) : backend.Dense(x, w, b, y));
    if (relu) Need(backend.Activation(ActivationKind::kRelu, y, y));
    (void)held;
  };
  passes.backward = [=, &backend] {
    if (relu) Need(backend.ActivationBackward(ActivationKind::kRelu, y, y, dy, dy));
    Need(conv ? backend.Conv2dBackward(spec, x, w, dy, dx, dw, db) : backend.DenseBackward(x, w, dy, dx, dw, db));
    (void)held;
  };
  return passes;
}

Passes BatchNorm(const Layer& layer, std::int64_t batch, Backend& backend) {
  constexpr double kEpsilon = 1e-5;
  const auto held = std::make_shared<Memory>(backend);
  const Shape images{batch, layer.side, layer.side, layer.in}, channels{layer.in};
  const Tensor x = held->Make(images), y = held->Make(images), dy = held->Make(images), dx = held->Make(images);
  const Tensor gamma = held->Make(channels), beta = held->Make(channels), mean = held->Make(channels),
               variance = held->Make(channels), dgamma = held->Make(channels), dbeta = held->Make(channels);
  void* mask = nullptr;
  if (layer.relu) {
    const absl::StatusOr<std::size_t> bytes = backend.BatchNormMaskBytes(images);
    Need(bytes.status());
    mask = held->Bytes(*bytes);
  }
  Passes passes;
  passes.forward = [=, &backend] {
    Need(backend.BatchNormTrain(kEpsilon, x, gamma, beta, y, mean, variance, mask));
    (void)held;
  };
  passes.backward = [=, &backend] {
    Need(backend.BatchNormBackward(kEpsilon, x, gamma, mean, variance, dy, dx, dgamma, dbeta, mask));
    (void)held;
  };
  return passes;
}

Passes MaxPool(const Layer& layer, std::int64_t batch, Backend& backend) {
  const auto held = std::make_shared<Memory>(backend);
  const Pool2dSpec spec;
  const Shape images{batch, layer.side, layer.side, layer.in}, pooled{batch, layer.side / 2, layer.side / 2, layer.in};
  const Tensor x = held->Make(images), dx = held->Make(images), y = held->Make(pooled), dy = held->Make(pooled);
  const absl::StatusOr<std::size_t> bytes = backend.Pool2dWorkspaceBytes(spec, images);
  Need(bytes.status());
  void* const workspace = *bytes > 0 ? held->Bytes(*bytes) : nullptr;
  Passes passes;
  passes.forward = [=, &backend] {
    Need(backend.Pool2d(spec, x, y, workspace));
    (void)held;
  };
  passes.backward = [=, &backend] {
    Need(backend.Pool2dBackward(spec, x, dy, workspace, dx));
    (void)held;
  };
  return passes;
}

Passes OfBackend(const Layer& layer, std::int64_t batch, Backend& backend) {
  if (layer.kind == Layer::Kind::kBatchNorm) return BatchNorm(layer, batch, backend);
  if (layer.kind == Layer::Kind::kMaxPool) return MaxPool(layer, batch, backend);
  return Products(layer, batch, backend);
}

// --- oneDNN alone ---------------------------------------------------------------------------------------------------

constexpr auto kF32 = memory::data_type::f32;

class Primitives {
 public:
  explicit Primitives(const dnnl::engine& engine) : engine_(engine), stream_(engine_) {}
  const dnnl::engine& engine() const { return engine_; }

  // Memory of its own, so that no call finds what another left in the cache but by its size.
  void Add(dnnl::primitive primitive, const std::vector<std::pair<int, memory::desc>>& arguments) {
    Call call{std::move(primitive), {}};
    for (const auto& [kind, desc] : arguments) {
      if (desc.is_zero()) continue;
      memory held(desc, engine_);
      if (desc.data_type() == kF32) {
        auto* values = static_cast<float*>(held.get_data_handle());
        for (std::size_t i = 0; i < desc.get_size() / sizeof(float); ++i) values[i] = rng_.NextFloat() - 0.5f;
      }
      call.arguments.emplace(kind, std::move(held));
    }
    calls_.push_back(std::move(call));
  }
  void Run() {
    for (Call& call : calls_) call.primitive.execute(stream_, call.arguments);
    stream_.wait();
  }

 private:
  struct Call {
    dnnl::primitive primitive;
    std::unordered_map<int, memory> arguments;
  };
  dnnl::engine engine_;
  dnnl::stream stream_;
  Rng rng_{1};
  std::vector<Call> calls_;
};

struct Both {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::shared_ptr<Primitives> forward = std::make_shared<Primitives>(engine),
                              backward = std::make_shared<Primitives>(engine);
  Passes passes() const {
    return {[run = forward] { run->Run(); }, [run = backward] { run->Run(); }};
  }
};

memory::desc Any(const memory::dims& dims) { return {dims, kF32, memory::format_tag::any}; }
memory::desc Vector(std::int64_t n) { return {{n}, kF32, memory::format_tag::x}; }

dnnl::primitive_attr ThenRelu(bool relu) {
  dnnl::primitive_attr attributes;
  if (!relu) return attributes;
  dnnl::post_ops post;
  post.append_eltwise(1, dnnl::algorithm::eltwise_relu, 0, 0);
  attributes.set_post_ops(post);
  return attributes;
}

// The gradient before the relu, from the output behind it.
void AddReluBackward(const memory::desc& data, Primitives& to) {
  constexpr auto kRelu = dnnl::algorithm::eltwise_relu_use_dst_for_bwd;
  const dnnl::eltwise_forward::primitive_desc forward(
      dnnl::eltwise_forward::desc(prop_kind::forward_training, kRelu, data, 0), to.engine());
  const dnnl::eltwise_backward::primitive_desc backward(dnnl::eltwise_backward::desc(kRelu, data, data, 0), to.engine(),
                                                        forward);
  to.Add(dnnl::eltwise_backward(backward),
         {{DNNL_ARG_DST, data}, {DNNL_ARG_DIFF_DST, data}, {DNNL_ARG_DIFF_SRC, data}});
}

// Products: with relu as post-op; backward first that of the relu.
template <class Forward, class Data, class Weights>
Passes ProductPrimitives(const Layer& layer, const typename Forward::desc& forward, const typename Data::desc& data,
                         const typename Weights::desc& weights) {
  Both made;
  const dnnl::engine& engine = made.engine;
  const typename Forward::primitive_desc with_relu(forward, ThenRelu(layer.relu), engine), plain(forward, engine);
  made.forward->Add(Forward(with_relu), {{DNNL_ARG_SRC, with_relu.src_desc()},
                                         {DNNL_ARG_WEIGHTS, with_relu.weights_desc()},
                                         {DNNL_ARG_BIAS, with_relu.bias_desc()},
                                         {DNNL_ARG_DST, with_relu.dst_desc()}});
  if (layer.relu) AddReluBackward(with_relu.dst_desc(), *made.backward);
  if (!layer.first) {
    const typename Data::primitive_desc to_input(data, engine, plain);
    made.backward->Add(Data(to_input), {{DNNL_ARG_DIFF_DST, to_input.diff_dst_desc()},
                                        {DNNL_ARG_WEIGHTS, to_input.weights_desc()},
                                        {DNNL_ARG_DIFF_SRC, to_input.diff_src_desc()}});
  }
  const typename Weights::primitive_desc to_weights(weights, engine, plain);
  made.backward->Add(Weights(to_weights), {{DNNL_ARG_SRC, to_weights.src_desc()},
                                           {DNNL_ARG_DIFF_DST, to_weights.diff_dst_desc()},
                                           {DNNL_ARG_DIFF_WEIGHTS, to_weights.diff_weights_desc()},
                                           {DNNL_ARG_DIFF_BIAS, to_weights.diff_bias_desc()}});
  return made.passes();
}

Passes ConvPrimitives(const Layer& layer, std::int64_t batch) {
  using Forward = dnnl::convolution_forward;
  using Data = dnnl::convolution_backward_data;
  using Weights = dnnl::convolution_backward_weights;
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  const Conv2dSpec spec = ConvOf(layer);
  const memory::dims strides{spec.stride_h, spec.stride_w}, before{spec.pad_top, spec.pad_left},
      after{spec.pad_bottom, spec.pad_right};
  const memory::desc x = Any({batch, layer.in, layer.side, layer.side}),
                     w = Any({layer.out, layer.in, layer.kernel, layer.kernel}),
                     y = Any({batch, layer.out, layer.output_side(), layer.output_side()}), b = Vector(layer.out);
  return ProductPrimitives<Forward, Data, Weights>(
      layer, Forward::desc(prop_kind::forward_training, kDirect, x, w, b, y, strides, before, after),
      Data::desc(kDirect, x, w, y, strides, before, after), Weights::desc(kDirect, x, w, b, y, strides, before, after));
}

Passes DensePrimitives(const Layer& layer, std::int64_t batch) {
  using Forward = dnnl::inner_product_forward;
  using Data = dnnl::inner_product_backward_data;
  using Weights = dnnl::inner_product_backward_weights;
  const memory::desc x = Any({batch, layer.in}), w = Any({layer.out, layer.in}), y = Any({batch, layer.out}),
                     b = Vector(layer.out);
  return ProductPrimitives<Forward, Data, Weights>(layer, Forward::desc(prop_kind::forward_training, x, w, b, y),
                                                   Data::desc(x, w, y), Weights::desc(x, w, b, y));
}

Passes BatchNormPrimitives(const Layer& layer, std::int64_t batch, memory::format_tag tag) {
  using Flags = dnnl::normalization_flags;
  using Forward = dnnl::batch_normalization_forward;
  using Backward = dnnl::batch_normalization_backward;
  const memory::desc data({batch, layer.in, layer.side, layer.side}, kF32, tag), channels = Vector(layer.in);
  Flags flags = Flags::use_scale | Flags::use_shift;
  if (layer.relu) flags = flags | Flags::fuse_norm_relu;
  Both made;
  const Forward::primitive_desc forward(Forward::desc(prop_kind::forward_training, data, 1e-5f, flags), made.engine);
  const memory::desc mask = layer.relu ? forward.workspace_desc() : memory::desc();
  made.forward->Add(Forward(forward), {{DNNL_ARG_SRC, data},
                                       {DNNL_ARG_SCALE, channels},
                                       {DNNL_ARG_SHIFT, channels},
                                       {DNNL_ARG_MEAN, channels},
                                       {DNNL_ARG_VARIANCE, channels},
                                       {DNNL_ARG_DST, data},
                                       {DNNL_ARG_WORKSPACE, mask}});
  const Backward::primitive_desc backward(Backward::desc(prop_kind::backward, data, data, 1e-5f, flags), made.engine,
                                          forward);
  made.backward->Add(Backward(backward), {{DNNL_ARG_SRC, data},
                                          {DNNL_ARG_DIFF_DST, data},
                                          {DNNL_ARG_SCALE, channels},
                                          {DNNL_ARG_SHIFT, channels},
                                          {DNNL_ARG_MEAN, channels},
                                          {DNNL_ARG_VARIANCE, channels},
                                          {DNNL_ARG_DIFF_SRC, data},
                                          {DNNL_ARG_DIFF_SCALE, channels},
                                          {DNNL_ARG_DIFF_SHIFT, channels},
                                          {DNNL_ARG_WORKSPACE, mask}});
  return made.passes();
}

Passes MaxPoolPrimitives(const Layer& layer, std::int64_t batch, memory::format_tag tag) {
  using Forward = dnnl::pooling_forward;
  using Backward = dnnl::pooling_backward;
  constexpr auto kMax = dnnl::algorithm::pooling_max;
  const memory::desc x({batch, layer.in, layer.side, layer.side}, kF32, tag),
      y({batch, layer.in, layer.side / 2, layer.side / 2}, kF32, tag);
  const memory::dims two{2, 2}, none{0, 0};
  Both made;
  const Forward::primitive_desc forward(Forward::desc(prop_kind::forward_training, kMax, x, y, two, two, none, none),
                                        made.engine);
  made.forward->Add(Forward(forward),
                    {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}, {DNNL_ARG_WORKSPACE, forward.workspace_desc()}});
  const Backward::primitive_desc backward(Backward::desc(kMax, x, y, two, two, none, none), made.engine, forward);
  made.backward->Add(Backward(backward),
                     {{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_DIFF_SRC, x}, {DNNL_ARG_WORKSPACE, forward.workspace_desc()}});
  return made.passes();
}

// Where a primitive takes any layout, one of each: the fastest counts.
std::vector<Passes> OfOneDnn(const Layer& layer, std::int64_t batch) {
  if (layer.kind == Layer::Kind::kConv) return {ConvPrimitives(layer, batch)};
  if (layer.kind == Layer::Kind::kDense) return {DensePrimitives(layer, batch)};
  std::vector<Passes> made;
  for (const auto tag : {memory::format_tag::nhwc, memory::format_tag::nChw8c, memory::format_tag::nChw16c}) {
    made.push_back(layer.kind == Layer::Kind::kMaxPool ? MaxPoolPrimitives(layer, batch, tag)
                                                       : BatchNormPrimitives(layer, batch, tag));
  }
  return made;
}

// --- the measurement ------------------------------------------------------------------------------------------------

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Seconds of each side's calls, at the median. A call of each, then again.
std::vector<double> InTurn(const std::vector<const std::function<void()>*>& sides, double seconds) {
  constexpr int kWarm = 2, kLeast = 5;
  std::vector<std::vector<double>> times(sides.size());
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto begin = now();
  for (int round = 0; round < kWarm + kLeast || std::chrono::duration<double>(now() - begin).count() < seconds;
       ++round) {
    for (std::size_t i = 0; i < sides.size(); ++i) {
      const auto from = now();
      (*sides[i])();
      if (round >= kWarm) times[i].push_back(std::chrono::duration<double>(now() - from).count());
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_side : times) medians.push_back(Median(std::move(of_side)));
  return medians;
}

struct Times {
  double backend = 0, onednn = 0;  // seconds
};

Times Measure(const Passes& ours, const std::vector<Passes>& theirs, std::function<void()> Passes::*pass,
              double seconds) {
  std::vector<const std::function<void()>*> sides{&(ours.*pass)};
  for (const Passes& way : theirs) sides.push_back(&(way.*pass));
  const std::vector<double> medians = InTurn(sides, seconds);
  return {medians.front(), *std::min_element(medians.begin() + 1, medians.end())};
}

void PrintLine(const std::string& name, int count, const Times& forward, const Times& backward) {
  std::printf("  %-28s %5d %9.3f %9.3f %6.2f %10.3f %9.3f %6.2f\n", name.c_str(), count, 1e3 * forward.backend,
              1e3 * forward.onednn, forward.onednn / forward.backend, 1e3 * backward.backend, 1e3 * backward.onednn,
              backward.onednn / backward.backend);
  std::fflush(stdout);
}

nlohmann::json RowOf(const std::string& name, int count, const Times& forward, const Times& backward) {
  return {{"layer", name},
          {"count", count},
          {"forward_seconds", forward.backend},
          {"forward_onednn_seconds", forward.onednn},
          {"backward_seconds", backward.backend},
          {"backward_onednn_seconds", backward.onednn}};
}

nlohmann::json MeasureModel(const std::vector<Layer>& layers, std::int64_t batch, int threads, double seconds) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeCpuBackend({threads});
  Need(backend.status());
  omp_set_num_threads(threads);
  nlohmann::json rows = nlohmann::json::array();
  Times forward_sum, backward_sum;
  const auto add = [](const Times& times, int count, Times& sum) {
    sum.backend += count * times.backend;
    sum.onednn += count * times.onednn;
  };
  for (const Layer& layer : layers) {
    const Passes ours = OfBackend(layer, batch, **backend);
    const std::vector<Passes> theirs = OfOneDnn(layer, batch);
    const Times forward = Measure(ours, theirs, &Passes::forward, seconds);
    const Times backward = Measure(ours, theirs, &Passes::backward, seconds);
    PrintLine(layer.Name(), layer.count, forward, backward);
    rows.push_back(RowOf(layer.Name(), layer.count, forward, backward));
    add(forward, layer.count, forward_sum);
    add(backward, layer.count, backward_sum);
  }
  PrintLine("all", 1, forward_sum, backward_sum);
  rows.push_back(RowOf("all", 1, forward_sum, backward_sum));
  const double ours = forward_sum.backend + backward_sum.backend, theirs = forward_sum.onednn + backward_sum.onednn;
  std::printf("  forward and backward: %.2f ms, oneDNN alone %.2f ms (%.0f examples/s): %.2f of it\n", 1e3 * ours,
              1e3 * theirs, static_cast<double>(batch) / theirs, theirs / ours);
  return rows;
}

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) {
  using namespace evenkeel;
  TuneAllocator();
  bench::Options options("layers", "each layer of the models of `train` beside oneDNN's primitives alone",
                         {{"models", "mlp,cnn,resnet20", "as in train"},
                          {"threads", "1,2", "that compute"},
                          {"batch", "128", "samples of a call"},
                          {"milliseconds", "300", "of each layer's pass"},
                          {"json", "", "file for the table"}});
  options.Parse(argc, argv);
  const std::int64_t batch = options.Number("batch", 1, 1 << 16);
  const double seconds = static_cast<double>(options.Number("milliseconds", 1, 3'600'000)) * 1e-3;
  nlohmann::json tables = nlohmann::json::array();
  for (const std::string& model : options.Texts("models")) {
    const std::vector<Layer> layers = LayersOf(model, options);
    for (const std::int64_t threads : options.Numbers("threads", 1, 256)) {
      std::printf("%s, batch %lld, %lld thread%s; ms, and the part that oneDNN alone takes of it\n", model.c_str(),
                  static_cast<long long>(batch), static_cast<long long>(threads), threads == 1 ? "" : "s");
      std::printf("  %-28s %5s %9s %9s %6s %10s %9s %6s\n", "layer", "count", "forward", "oneDNN", "part", "backward",
                  "oneDNN", "part");
      tables.push_back({{"model", model},
                        {"threads", threads},
                        {"batch", batch},
                        {"layers", MeasureModel(layers, batch, static_cast<int>(threads), seconds)}});
    }
  }
  options.WriteJson(tables);
  return 0;
}
