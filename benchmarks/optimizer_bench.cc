// The servers' optimizer step over all parameters beside `a += b` over as many bytes, in turn, in the same run.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench_options.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/thread_pool.h"
#include "evenkeel/protocol/layout.h"
#include "evenkeel/ps/shard.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kBucketBytes = 4 << 20;
constexpr std::int64_t kTensorFloats = 1 << 20;

double Seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class T>
T Need(absl::StatusOr<T> made) {
  if (made.ok()) return *std::move(made);
  std::fprintf(stderr, "optimizer: %s\n", std::string(made.status().message()).c_str());
  std::exit(1);
}

struct Case {
  const char* name;
  OptimizerSpec::Kind kind;
  int arrays;  // each read or written once
  const char* touched;
};
constexpr Case kCases[] = {
    {"sgd", OptimizerSpec::Kind::kSgd, 3, "reads g w, writes w'"},
    {"momentum", OptimizerSpec::Kind::kMomentum, 5, "reads g w v, writes w' v"},
    {"nesterov", OptimizerSpec::Kind::kNesterov, 5, "reads g w v, writes w' v"},
    {"adagrad", OptimizerSpec::Kind::kAdagrad, 5, "reads g w a, writes w' a"},
    {"rmsprop", OptimizerSpec::Kind::kRmsprop, 7, "reads g w a b, writes w' a b"},
    {"adam", OptimizerSpec::Kind::kAdam, 7, "reads g w m v, writes w' m v"},
    {"adamw", OptimizerSpec::Kind::kAdamW, 7, "reads g w m v, writes w' m v"},
    {"ftrl", OptimizerSpec::Kind::kFtrl, 7, "reads g w a z, writes w' a z"},
};

// A server that holds all of a model of equal tensors, with one staged update.
struct Server {
  Server(std::int64_t parameters, OptimizerSpec::Kind kind, ThreadPool& pool) {
    std::vector<TensorSpec> tensors;
    for (std::int64_t left = parameters; left > 0; left -= kTensorFloats) {
      TensorSpec tensor{.name = "t" + std::to_string(tensors.size()), .shape = Shape{std::min(left, kTensorFloats)}};
      tensor.initializer = {.kind = InitializerSpec::Kind::kConstant, .value = 0.5f};
      tensors.push_back(std::move(tensor));
    }
    layout = std::make_shared<const ParameterLayout>(Need(ParameterLayout::Create(tensors, kBucketBytes, 1)));
    shard = Need(ps::Shard::Create({layout, ServerIndex(0), OptimizerSpec{.kind = kind}, false}, pool));
    shard->Initialise(1, At(0));
    if (!shard->AllocateSlot(ps::StageSlot(0)).ok()) std::exit(1);
    for (std::size_t b = 0; b < layout->buckets().size(); ++b) {
      std::ranges::fill(shard->StageInto(ps::StageSlot(0), static_cast<int>(b)), 0.25f);
    }
  }
  static Version At(std::uint64_t commit) { return Version{Generation(1), CommitNumber(commit)}; }
  void Step() {
    const ps::StageSlot slots[] = {ps::StageSlot(0)};
    shard->Apply(Decision{.version = At(++commit), .samples = 128, .learning_rate = 1e-3}, slots);
  }
  std::shared_ptr<const ParameterLayout> layout;
  std::unique_ptr<ps::Shard> shard;
  std::uint64_t commit = 0;
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void AddTo(std::int64_t n, float* a, const float* b) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) a[i] += b[i];
}

nlohmann::json Measure(const Case& chosen, std::int64_t parameters, int threads, std::int64_t repeats) {
  ThreadPool pool(threads);
  Server server(parameters, chosen.kind, pool);
  const std::int64_t bytes = parameters * chosen.arrays * 4;
  const std::int64_t floats = bytes / 12;  // reads a and b, writes a
  Arena a = Need(Arena::Allocate(static_cast<std::size_t>(floats) * sizeof(float)));
  Arena b = Need(Arena::Allocate(static_cast<std::size_t>(floats) * sizeof(float)));
  const auto add = [&] {
    pool.ParallelFor(floats, 1024, [&](std::int64_t begin, std::int64_t end) {
      AddTo(end - begin, a.floats().data() + begin, b.floats().data() + begin);
    });
  };
  server.Step();
  add();
  std::vector<double> steps, adds, ratios;
  for (std::int64_t i = 0; i < repeats; ++i) {
    adds.push_back(Seconds(add));
    steps.push_back(Seconds([&] { server.Step(); }));
    ratios.push_back(adds.back() / steps.back());
  }
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  return {{"optimizer", chosen.name},
          {"threads", threads},
          {"parameters", parameters},
          {"bytes", bytes},
          {"touched", chosen.touched},
          {"step_ms", Median(steps) * 1e3},
          {"step_gb_per_s", gigabytes / Median(steps)},
          {"add_gb_per_s", gigabytes / Median(adds)},
          {"ratio", Median(ratios)}};
}

int Run(int argc, char** argv) {
  bench::Options options(
      "optimizer", "the servers' optimizer step beside `a += b` over as many bytes",
      {{"parameters", "100000000", "floats of the model"},
       {"threads", "1,2", "threads of a server, one row each"},
       {"optimizers", "sgd,momentum,adam", "of sgd momentum nesterov adagrad rmsprop adam adamw ftrl"},
       {"repeats", "9", "pairs of steps; medians are shown"},
       {"json", "", "a file for the same figures"}});
  options.Parse(argc, argv);
  const std::int64_t parameters = options.Number("parameters", 1, std::int64_t{1} << 32);
  const std::int64_t repeats = options.Number("repeats", 1, 100000);
  const std::vector<std::int64_t> threads = options.Numbers("threads", 1, 256);
  std::vector<const Case*> cases;
  for (const std::string& name : options.Texts("optimizers")) {
    const auto* found = std::ranges::find_if(kCases, [&](const Case& c) { return name == c.name; });
    if (found == std::end(kCases)) options.Refuse("--optimizers names '" + name + "'");
    cases.push_back(found);
  }
  std::printf("%lld parameters; every array counts once: read, or written\n", static_cast<long long>(parameters));
  std::printf("%-10s %7s %10s %12s %12s %7s  %s\n", "optimizer", "threads", "step ms", "step GB/s", "a += b GB/s",
              "ratio", "bytes");
  nlohmann::json rows = nlohmann::json::array();
  for (const Case* chosen : cases) {
    for (std::int64_t count : threads) {
      rows.push_back(Measure(*chosen, parameters, static_cast<int>(count), repeats));
      const nlohmann::json& row = rows.back();
      std::printf("%-10s %7lld %10.2f %12.1f %12.1f %7.3f  %d a float: %s\n", chosen->name,
                  static_cast<long long>(count), row["step_ms"].get<double>(), row["step_gb_per_s"].get<double>(),
                  row["add_gb_per_s"].get<double>(), row["ratio"].get<double>(), chosen->arrays * 4, chosen->touched);
      std::fflush(stdout);
    }
  }
  options.WriteJson(rows);
  return 0;
}

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) { return evenkeel::Run(argc, argv); }
