// What the batch controller does for clusters whose step times are real: the share of the workers' time that is spent
// waiting for the slowest in BSP, with equal batches, with the published rule, and with the model.
//
//   batch_traces_bench [steps] [workers]     300 steps; workers of the large clusters, 10,000
//
// Reads from EVENKEEL_DATA/traces, and skips what is not there:
// - Alibaba PAI 2020, mini-batch times of 10 workers of a job, by iteration. As they are, and as a large cluster: each
//   machine repeats one of the ten from an iteration of its own. The traces have one batch size; at another the time is
//   taken to be a tenth fixed, the rest in proportion.
// - Gavel (OSDI '20), throughputs of ResNet-50 at several batch sizes on K80, P100 and V100: as many machines of each,
//   and 5% of noise a step. Between the measured sizes the time of a step is interpolated.
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "chief/batch_controller.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kMeanBatch = 64;
constexpr double kFixedShare = 0.1;  // of a step, in the traces of one batch size
constexpr double kNoise = 0.05;      // of a step, where the source has means only

// Seconds of a step of a worker with a batch.
using StepTimes = std::function<double(std::size_t worker, std::int64_t step, std::int64_t batch)>;

struct Cluster {
  std::string name;
  std::size_t workers = 0;
  std::int64_t steps = 0;
  StepTimes seconds;
};

struct Result {
  double waiting = 0;       // share of all workers' time
  double step_seconds = 0;  // mean
  double decide_ms = 0;     // median Plan
};

Result Simulate(const Cluster& cluster, std::optional<BatchControllerOptions> options) {
  const std::int64_t total = kMeanBatch * static_cast<std::int64_t>(cluster.workers);
  std::optional<BatchController> controller;
  std::vector<BatchShare> shares(cluster.workers);
  for (std::size_t i = 0; i < cluster.workers; ++i) shares[i] = {Incarnation(i + 1), kMeanBatch};
  if (options) {
    controller.emplace(*options);
    for (std::size_t i = 0; i < cluster.workers; ++i) {
      controller->AddWorker(Incarnation(i + 1), absl::StrCat("worker:", i));
    }
  }
  Result result;
  double busy = 0;
  std::vector<double> planning;
  std::vector<double> seconds(cluster.workers);
  for (std::int64_t step = 0; step < cluster.steps; ++step) {
    if (controller) {
      const auto start = std::chrono::steady_clock::now();
      auto plan = controller->Plan(total);
      planning.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
      if (!plan.ok()) {
        std::fprintf(stderr, "batch_traces_bench: %s\n", std::string(plan.status().message()).c_str());
        std::exit(1);
      }
      shares = *std::move(plan);
    }
    double slowest = 0;
    for (std::size_t i = 0; i < cluster.workers; ++i) {
      const std::size_t worker = static_cast<std::size_t>(shares[i].worker.value()) - 1;
      seconds[i] = cluster.seconds(worker, step, shares[i].batch);
      slowest = std::max(slowest, seconds[i]);
      busy += seconds[i];
    }
    if (controller) {
      for (std::size_t i = 0; i < cluster.workers; ++i) {
        controller->Observe(shares[i].worker, shares[i].batch, seconds[i]);
      }
    }
    result.step_seconds += slowest;
  }
  result.waiting = 1 - busy / (result.step_seconds * static_cast<double>(cluster.workers));
  result.step_seconds /= static_cast<double>(cluster.steps);
  if (!planning.empty()) {
    std::nth_element(planning.begin(), planning.begin() + static_cast<std::ptrdiff_t>(planning.size() / 2),
                     planning.end());
    result.decide_ms = planning[planning.size() / 2];
  }
  return result;
}

void Print(const Cluster& cluster) {
  BatchControllerOptions proportional;
  proportional.mode = BatchControllerOptions::Mode::kProportional;
  const Result off = Simulate(cluster, std::nullopt), rule = Simulate(cluster, proportional),
               model = Simulate(cluster, BatchControllerOptions{});
  auto waits = [](const Result& result) { return 100 * result.waiting; };
  std::printf("%-28s %7zu %6lld   %5.1f%% %5.1f%% %5.1f%%   %5.2f %5.2f   %7.3f\n", cluster.name.c_str(),
              cluster.workers, static_cast<long long>(cluster.steps), waits(off), waits(rule), waits(model),
              off.step_seconds / rule.step_seconds, off.step_seconds / model.step_seconds, model.decide_ms);
}

// Times by worker and iteration; empty: the file is not there.
std::vector<std::vector<double>> ReadMiniBatchTimes(const std::string& path) {
  std::ifstream file(path);
  std::map<std::string, std::vector<double>> by_worker;
  std::string line;
  std::getline(file, line);  // ,worker,gpu,time,batch_time_norm
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    double time = 0;
    if (fields.size() != 5 || !absl::SimpleAtod(fields[4], &time) || time <= 0) continue;  // gaps in the source
    by_worker[fields[1]].push_back(time);
  }
  std::vector<std::vector<double>> times;
  for (auto& [worker, series] : by_worker) times.push_back(std::move(series));
  return times;
}

void RunAlibaba(const std::string& data, int job, std::int64_t steps, std::size_t machines) {
  const std::string path = absl::StrCat(data, "/traces/alibaba-minibatch-time/job_", job, "_norm.csv");
  const auto times = ReadMiniBatchTimes(path);
  if (times.empty()) {
    std::printf("skipped: no %s\n", path.c_str());
    return;
  }
  std::size_t shortest = times.front().size();
  for (const auto& series : times) shortest = std::min(shortest, series.size());
  auto at = [](double time, std::int64_t batch) {
    return time * (kFixedShare + (1 - kFixedShare) * static_cast<double>(batch) / static_cast<double>(kMeanBatch));
  };
  Print({absl::StrCat("Alibaba job ", job), times.size(), static_cast<std::int64_t>(shortest),
         [&](std::size_t worker, std::int64_t step, std::int64_t batch) {
           return at(times[worker][static_cast<std::size_t>(step)], batch);
         }});
  Rng rng(7);
  std::vector<std::size_t> offsets(machines);
  for (std::size_t& offset : offsets) offset = rng.Below(shortest);
  Print({absl::StrCat("Alibaba job ", job, ", repeated"), machines, steps,
         [&](std::size_t worker, std::int64_t step, std::int64_t batch) {
           const auto& series = times[worker % times.size()];
           return at(series[(offsets[worker] + static_cast<std::size_t>(step)) % series.size()], batch);
         }});
}

std::optional<std::string> ReadGzip(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return std::nullopt;
  std::string text;
  char block[1 << 16];
  int got = 0;
  while ((got = gzread(file, block, sizeof block)) > 0) text.append(block, static_cast<std::size_t>(got));
  gzclose(file);
  if (got < 0) return std::nullopt;
  return text;
}

// Seconds of a step by batch, measured; interpolated between, in proportion beyond.
using Curve = std::map<std::int64_t, double>;

double At(const Curve& curve, std::int64_t batch) {
  auto above = curve.lower_bound(batch);
  if (above == curve.end()) {
    const auto& [most, seconds] = *curve.rbegin();
    return seconds * static_cast<double>(batch) / static_cast<double>(most);
  }
  if (above == curve.begin()) return above->second;  // a small batch costs what the smallest measured one does
  const auto below = std::prev(above);
  const double part = static_cast<double>(batch - below->first) / static_cast<double>(above->first - below->first);
  return below->second + part * (above->second - below->second);
}

void RunGavel(const std::string& data, std::int64_t steps, std::size_t machines) {
  const std::string path = absl::StrCat(data, "/traces/gavel-throughputs/simulation_throughputs.json.gz");
  const std::optional<std::string> text = ReadGzip(path);
  if (!text) {
    std::printf("skipped: no %s\n", path.c_str());
    return;
  }
  const auto json = nlohmann::json::parse(*text);
  std::vector<Curve> kinds;
  for (const char* kind : {"k80", "p100", "v100"}) {
    Curve curve;
    for (std::int64_t batch : {16, 32, 64, 128}) {
      const std::string key = absl::StrCat("('ResNet-50 (batch size ", batch, ")', 1)");
      const auto& table = json.at(kind);
      if (!table.contains(key)) continue;
      const double throughput = table.at(key).at("null").get<double>();
      if (throughput > 0) curve[batch] = 1 / throughput;
    }
    kinds.push_back(std::move(curve));
  }
  for (std::size_t workers : {std::size_t{12}, machines}) {
    Rng rng(9);
    Print({"Gavel K80 + P100 + V100", workers, steps, [&](std::size_t worker, std::int64_t, std::int64_t batch) {
             return At(kinds[worker % kinds.size()], batch) * std::max(0.5, 1 + kNoise * rng.NextNormal());
           }});
  }
}

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) {
  const std::int64_t steps = argc > 1 ? std::atoll(argv[1]) : 300;
  const std::int64_t machines = argc > 2 ? std::atoll(argv[2]) : 10000;
  const char* data = std::getenv("EVENKEEL_DATA");
  if (steps < 1 || machines < 1 || argc > 3) {
    std::fprintf(stderr, "usage: batch_traces_bench [steps] [workers], both at least 1\n");
    return 2;
  }
  if (data == nullptr) {
    std::printf("skipped: EVENKEEL_DATA is not set\n");
    return 0;
  }
  std::printf("%-28s %7s %6s   %20s   %11s   %7s\n", "", "", "", "waits", "faster by", "Plan");
  std::printf("%-28s %7s %6s   %6s %6s %6s   %5s %5s   %7s\n", "cluster", "workers", "steps", "off", "prop.", "model",
              "prop.", "model", "ms");
  for (int job : {1, 2, 3}) evenkeel::RunAlibaba(data, job, steps, static_cast<std::size_t>(machines));
  evenkeel::RunGavel(data, steps, static_cast<std::size_t>(machines));
}
