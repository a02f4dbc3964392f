#include "chief/batch_controller.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

// Workers whose true step times are known: the controller sees them with noise only.
class Cluster {
 public:
  struct Machine {
    double fixed = 0, per_sample = 1e-3;  // seconds
    std::int64_t cliff = 0;               // samples beyond which every sample costs `cliff_factor` times more
    double cliff_factor = 4;
  };
  enum class Noise { kLogNormal, kNormal, kUniform };

  explicit Cluster(BatchControllerOptions options = {}, std::uint64_t seed = 1) : controller(options), rng(seed) {}

  void Add(Machine machine, double declared_speed = 0, std::string name = "") {
    const Incarnation id(++last_id_);
    if (name.empty()) name = "w" + std::to_string(last_id_);
    ids.push_back(id);
    machines.push_back(machine);
    controller.AddWorker(id, name, declared_speed);
  }

  void Remove(std::size_t at) {
    controller.RemoveWorker(ids[at]);
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at));
    machines.erase(machines.begin() + static_cast<std::ptrdiff_t>(at));
  }

  double Seconds(std::size_t i, std::int64_t batch) const {
    const Machine& machine = machines[i];
    const bool over = machine.cliff > 0 && batch > machine.cliff;
    return machine.fixed + machine.per_sample * static_cast<double>(batch) * (over ? machine.cliff_factor : 1);
  }

  // One synchronous step. False where the shares do not sum up or break the bounds.
  bool Step(std::int64_t total, std::int64_t floor = 16, std::int64_t ceiling = 0) {
    auto plan = next.empty() ? controller.Plan(total) : std::exchange(next, {});
    if (!plan.ok() || plan->size() != ids.size()) return false;
    if (ahead) {
      auto more = controller.Plan(total);
      if (!more.ok()) return false;
      next = *std::move(more);
    }
    std::int64_t sum = 0;
    slowest = sum_seconds = 0;
    bool good = true;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::int64_t batch = (*plan)[i].batch;
      good = good && (*plan)[i].worker == ids[i] && batch >= floor && (ceiling == 0 || batch <= ceiling);
      sum += batch;
      const double seconds = Seconds(i, batch);
      slowest = std::max(slowest, seconds);
      sum_seconds += seconds;
      controller.Observe(ids[i], batch, seconds * Factor());
    }
    if (ahead && controller.asks_again()) next = *controller.PlanAgain(total);
    shares = *plan;
    return good && sum == total;
  }

  // Of the last step, without noise: the part of the workers' time spent waiting for the slowest.
  double WaitingShare() const { return 1 - sum_seconds / static_cast<double>(ids.size()) / slowest; }

  // The least possible time of a step, by bisection over real seconds: independent of the controller's way.
  double Optimum(std::int64_t total, std::int64_t floor = 16, std::int64_t ceiling = 0) const {
    double low = 0, high = 1e9;
    for (int round = 0; round < 200; ++round) {
      const double middle = (low + high) / 2;
      double sum = 0;
      for (const Machine& machine : machines) {
        double batch = std::floor((middle - machine.fixed) / machine.per_sample * (1 + 1e-12));
        if (ceiling > 0) batch = std::min(batch, static_cast<double>(ceiling));
        sum += std::max(batch, static_cast<double>(floor));
      }
      (sum >= static_cast<double>(total) ? high : low) = middle;
    }
    for (std::size_t i = 0; i < machines.size(); ++i) high = std::max(high, Seconds(i, floor));
    return high;
  }

  BatchController controller;
  Rng rng;
  double noise = 0;
  Noise kind = Noise::kLogNormal;
  std::vector<Incarnation> ids;
  std::vector<Machine> machines;
  std::vector<BatchShare> shares;
  double slowest = 0, sum_seconds = 0;
  bool ahead = false;            // as the chief in BSP: the next step is planned while this one is under way
  std::vector<BatchShare> next;  // of that step

 private:
  double Factor() {
    if (noise == 0) return 1;
    switch (kind) {
      case Noise::kLogNormal:
        return std::exp(noise * rng.NextNormal() - noise * noise / 2);
      case Noise::kNormal:
        return std::max(0.05, 1 + noise * rng.NextNormal());
      case Noise::kUniform:
        return 1 + noise * std::sqrt(3.0) * (2 * rng.NextDouble() - 1);
    }
    return 1;
  }

  std::uint64_t last_id_ = 0;
};

struct Drawn {
  Cluster cluster;
  std::int64_t total = 0;
  std::int64_t ceiling = 0;
};

// 1 to 512 workers, each sixteenth cluster large; speeds over a factor of up to 50; no, some or dominating fixed costs.
Drawn Draw(std::uint64_t seed) {
  Rng rng(seed, 99);
  const double largest = seed % 16 == 0 ? 512.99 : 32.99;
  const auto n = static_cast<std::int64_t>(std::exp(rng.NextDouble() * std::log(largest)));
  BatchControllerOptions options;
  const std::int64_t mean = 16 + static_cast<std::int64_t>(rng.Below(240));
  if (rng.Below(4) == 0) options.max_batch_size = mean + 1 + static_cast<std::int64_t>(rng.Below(512));
  Drawn drawn{Cluster(options, seed), n * mean + static_cast<std::int64_t>(rng.Below(16)), options.max_batch_size};
  if (drawn.ceiling > 0) drawn.total = std::min(drawn.total, n * drawn.ceiling);
  const double spread = std::exp(rng.NextDouble() * std::log(50.0));
  const double fixed_most = std::vector<double>{0, 1, 20}[rng.Below(3)];
  for (std::int64_t i = 0; i < n; ++i) {
    Cluster::Machine machine;
    machine.per_sample = 1e-3 * std::exp(rng.NextDouble() * std::log(spread));
    machine.fixed = machine.per_sample * static_cast<double>(mean) * fixed_most * rng.NextDouble();
    drawn.cluster.Add(machine);
  }
  return drawn;
}

}  // namespace

TEST_CASE("min-max shares are the best of all shares", "[chief]") {
  Rng rng(3);
  for (int trial = 0; trial < 300; ++trial) {
    StepTimeLine lines[3];
    ShareRange ranges[3];
    std::int64_t floors = 0, ceilings = 0;
    for (int i = 0; i < 3; ++i) {
      lines[i] = {rng.Below(2) == 0 ? 0 : 10 * rng.NextDouble(), std::exp(4 * rng.NextDouble() - 2)};
      ranges[i].floor = static_cast<std::int64_t>(rng.Below(6));
      ranges[i].ceiling = ranges[i].floor + static_cast<std::int64_t>(rng.Below(30));
      floors += ranges[i].floor;
      ceilings += ranges[i].ceiling;
    }
    const std::int64_t total = floors + static_cast<std::int64_t>(rng.Below(std::uint64_t(ceilings - floors + 1)));
    double best = std::numeric_limits<double>::infinity();
    for (std::int64_t a = ranges[0].floor; a <= ranges[0].ceiling; ++a) {
      for (std::int64_t b = ranges[1].floor; b <= ranges[1].ceiling; ++b) {
        const std::int64_t c = total - a - b;
        if (c < ranges[2].floor || c > ranges[2].ceiling) continue;
        best = std::min(best, std::max({lines[0].At(double(a)), lines[1].At(double(b)), lines[2].At(double(c))}));
      }
    }
    const auto shares = MinMaxSplit(total, lines, ranges);
    REQUIRE(shares[0] + shares[1] + shares[2] == total);
    double worst = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      REQUIRE(shares[i] >= ranges[i].floor);
      REQUIRE(shares[i] <= ranges[i].ceiling);
      worst = std::max(worst, lines[i].At(static_cast<double>(shares[i])));
    }
    REQUIRE(worst == Approx(best).epsilon(1e-12));
  }
}

TEST_CASE("without noise, 6,000 clusters are within 2% of the optimum after at most 3 changes", "[chief]") {
  int more_changes = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    auto [cluster, total, ceiling] = Draw(seed);
    cluster.ahead = seed % 2 == 0;
    for (int step = 0; step < 40; ++step) {
      if (!cluster.Step(total, 16, ceiling)) FAIL("cluster " << seed << ", step " << step << ": the shares are wrong");
    }
    INFO("cluster " << seed << " of " << cluster.ids.size() << " workers: " << cluster.controller.Explain());
    more_changes += cluster.controller.changes() > 3;
    REQUIRE(cluster.controller.changes() <= (cluster.ahead ? 4 : 3));
    REQUIRE(cluster.slowest <= 1.02 * cluster.Optimum(total, 16, ceiling));
  }
  // Two workers nearly all of whose time is fixed cost, planned ahead: it comes nearer by four steps of a percent or
  // two.
  REQUIRE(more_changes <= 1);
}

TEST_CASE("with noise up to 30%, 4,000 clusters settle: at most one change in 100 steps", "[chief]") {
  constexpr int kSettled = 200, kSteps = 320;
  int restless = 0;
  for (std::uint64_t seed = 10000; seed < 14000; ++seed) {
    auto [cluster, total, ceiling] = Draw(seed);
    cluster.noise = 0.3 * cluster.rng.NextDouble();
    cluster.kind = static_cast<Cluster::Noise>(cluster.rng.Below(3));
    cluster.ahead = seed % 2 == 0;
    std::vector<int> late;
    std::int64_t changes = 0;
    for (int step = 0; step < kSteps; ++step) {
      if (!cluster.Step(total, 16, ceiling)) FAIL("cluster " << seed << ", step " << step << ": the shares are wrong");
      if (cluster.controller.changes() != changes && step >= kSettled) late.push_back(step);
      changes = cluster.controller.changes();
    }
    INFO("cluster " << seed << " of " << cluster.ids.size() << " workers, noise " << cluster.noise);
    REQUIRE(late.size() <= 3);
    bool twice = false;
    for (std::size_t k = 1; k < late.size(); ++k) twice = twice || late[k] - late[k - 1] < 100;
    restless += twice;
  }
  // A detector of changes that noise never deceives would not detect any.
  INFO(restless << " clusters");
  REQUIRE(restless <= 1);
}

TEST_CASE("a worker 3 times slower, then well again, is balanced within 8 steps both ways", "[chief]") {
  for (double noise : {0.0, 0.05, 0.1}) {
    int late = 0;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      Cluster cluster({}, seed);
      const std::size_t n = 2 + seed % 7;
      for (std::size_t i = 0; i < n; ++i) {
        const double per_sample = 1e-3 * (1 + 3 * cluster.rng.NextDouble());
        cluster.Add({per_sample * 20 * cluster.rng.NextDouble(), per_sample});
      }
      cluster.noise = noise;
      const auto total = static_cast<std::int64_t>(256 * n);
      for (int step = 0; step < 150; ++step) REQUIRE(cluster.Step(total));
      for (double factor : {3.0, 1 / 3.0}) {
        cluster.machines[0].per_sample *= factor;
        cluster.machines[0].fixed *= factor;
        REQUIRE(cluster.Step(total));
        REQUIRE(cluster.WaitingShare() > 0.05);
        for (int step = 1; step < 8; ++step) REQUIRE(cluster.Step(total));
        REQUIRE(cluster.Step(total));
        INFO("noise " << noise << ", seed " << seed << ", factor " << factor << ": " << cluster.controller.Explain());
        late += cluster.WaitingShare() >= 0.1;
        REQUIRE(cluster.WaitingShare() < 0.2);
        for (int step = 0; step < 60; ++step) REQUIRE(cluster.Step(total));
      }
    }
    INFO("noise " << noise);
    REQUIRE(late <= (noise < 0.1 ? 0 : 5));  // of 100
  }
}

TEST_CASE("where fixed costs dominate, the model is never 3% slower than equal shares", "[chief]") {
  for (double noise : {0.0, 0.1, 0.3}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      Cluster cluster({}, seed);
      const std::size_t n = 2 + seed % 15;
      for (std::size_t i = 0; i < n; ++i) cluster.Add({2e-3 * (1 + 0.2 * cluster.rng.NextDouble()), 1e-6});
      cluster.noise = noise;
      double equal = 0;
      for (int step = 0; step < 200; ++step) {
        REQUIRE(cluster.Step(static_cast<std::int64_t>(64 * n)));
        if (step == 0) equal = cluster.slowest;
        REQUIRE(cluster.slowest <= 1.03 * equal);
      }
    }
  }
}

TEST_CASE("step times that wander are followed; those that do not are left alone", "[chief]") {
  for (bool wanders : {false, true}) {
    Cluster cluster({}, 11);
    for (int i = 0; i < 8; ++i) cluster.Add({0.02, 1e-3});
    std::vector<double> level(8, 0.0);
    cluster.noise = wanders ? 0.02 : 0.1;
    double slowest = 0, equal = 0;
    std::int64_t settled = 0;
    for (int step = 0; step < 600; ++step) {
      for (std::size_t i = 0; wanders && i < 8; ++i) {  // over tens of steps, by 10%
        level[i] = 0.98 * level[i] + 0.02 * cluster.rng.NextNormal();
        cluster.machines[i] = {0.02 * std::exp(level[i]), 1e-3 * std::exp(level[i])};
      }
      REQUIRE(cluster.Step(8 * 128));
      if (step < 200) {
        settled = cluster.controller.changes();
        continue;
      }
      slowest += cluster.slowest;
      double most = 0;
      for (std::size_t i = 0; i < 8; ++i) most = std::max(most, cluster.Seconds(i, 128));
      equal += most;
    }
    INFO(slowest / equal << ", " << cluster.controller.changes() - settled << " changes");
    if (wanders) {
      CHECK(slowest < 0.93 * equal);
    } else {
      CHECK(cluster.controller.changes() - settled <= 4);
    }
  }
}

// Each has so many of every 10 ms of a core, and what it does not use is gone: a short step is fast, a long one is not.
TEST_CASE("workers under CPU quotas, for whom small batches are fast and large ones slow, settle", "[chief]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    constexpr std::int64_t kTotal = 2048;
    constexpr double kPeriod = 10e-3, kPerSample = 35e-6;
    const double quotas[] = {6e-3, 3e-3, 1e-3};
    BatchController controller{{}};
    for (std::uint64_t id = 1; id <= 3; ++id) controller.AddWorker(Incarnation(id), absl::StrCat("worker:", id));
    Rng rng(seed);
    const auto seconds = [&](std::size_t worker, std::int64_t batch) {
      double cpu = kPerSample * static_cast<double>(batch) * (1 + 0.03 * rng.NextNormal());
      const double left_in_period = kPeriod * rng.NextDouble();  // as it begins
      const double quota = quotas[worker], first = std::min(quota, left_in_period);
      if (cpu <= first) return cpu;
      cpu -= first;
      const double whole = std::floor(cpu / quota);
      return left_in_period + whole * kPeriod + (cpu - whole * quota);
    };
    double slowest = 0;
    std::int64_t settled = 0;
    std::vector<BatchShare> next = *controller.Plan(kTotal);
    for (int step = 0; step < 400; ++step) {
      const std::vector<BatchShare> shares = std::exchange(next, *controller.Plan(kTotal));
      double longest = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        const double took = seconds(i, shares[i].batch);
        longest = std::max(longest, took);
        controller.Observe(shares[i].worker, shares[i].batch, took);
      }
      if (controller.asks_again()) next = *controller.PlanAgain(kTotal);
      if (step == 100) settled = controller.changes();
      if (step >= 100) slowest += longest / 300;
    }
    CAPTURE(controller.changes() - settled, next[0].batch, next[1].batch, next[2].batch);
    CHECK(controller.changes() - settled <= 6);
    CHECK(slowest < 1.25 * kTotal * kPerSample * kPeriod / 10e-3);
  }
}

TEST_CASE("a single pause while step times wander moves nobody's share", "[chief]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Cluster cluster({}, seed);
    for (int i = 0; i < 3; ++i) cluster.Add({0.02, 1e-3});
    std::vector<double> level(3, 0.0);
    cluster.noise = 0.02;
    std::int64_t before = 0;
    for (int step = 0; step < 300; ++step) {
      for (std::size_t i = 0; i < 3; ++i) {
        level[i] = 0.9 * level[i] + 0.025 * cluster.rng.NextNormal();
        const double factor = std::exp(level[i]);
        cluster.machines[i] = {0.02 * factor + (step == 200 && i == 1 ? 5 : 0), 1e-3 * factor};
      }
      REQUIRE(cluster.Step(1152));
      if (step == 200) before = cluster.shares[1].batch;
      if (step > 200 && step < 210) CHECK(cluster.shares[1].batch == Approx(before).epsilon(0.2));
    }
  }
}

// A worker that is three times slower from one step to the next, and later as fast as before, while all wander.
TEST_CASE("a change of speed is followed within 8 steps while step times wander too", "[chief]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Cluster cluster({}, seed);
    for (int i = 0; i < 3; ++i) cluster.Add({0.02, 1e-3});
    std::vector<double> level(3, 0.0);
    cluster.noise = 0.02;
    double slow = 1, late = 0;
    for (int step = 0; step < 300; ++step) {
      if (step == 100) slow = 3;
      if (step == 200) slow = 1;
      for (std::size_t i = 0; i < 3; ++i) {
        level[i] = 0.9 * level[i] + 0.025 * cluster.rng.NextNormal();
        const double factor = std::exp(level[i]) * (i == 1 ? slow : 1);
        cluster.machines[i] = {0.02 * factor, 1e-3 * factor};
      }
      REQUIRE(cluster.Step(1152));
      const int since = step % 100;
      if (step < 100 || since < 8) continue;
      if (since == 8) late = 0;
      late += cluster.WaitingShare();
      if (since == 10) CHECK(late / 3 < 0.12);  // of which wandering is some
      if (since == 99) CHECK(late / 92 < 0.08);
    }
  }
}

namespace {

// The bandwidth limit of a control group: so much CPU time in each period; who has used it up stands still until the
// next one begins.
class CpuQuota {
 public:
  CpuQuota(double quota, double period) : left_(quota), quota_(quota), period_(period) {}

  // When `cpu` seconds of work that begin at `now` are done.
  double Run(double now, double cpu) {
    if (const double begin = std::floor(now / period_) * period_; begin > begin_) Begin(begin);
    while (cpu > 0) {
      const double part = std::min({cpu, left_, begin_ + period_ - now});
      now += part;
      cpu -= part;
      left_ -= part;
      if (cpu > 0) Begin(now = begin_ + period_);
    }
    return now;
  }

 private:
  void Begin(double at) {
    begin_ = at;
    left_ = quota_;
  }
  double begin_ = 0, left_;
  const double quota_, period_;
};

}  // namespace

// A step of such a worker's is as fast as on a free machine, or takes the rest of a period more; which of them depends
// on what the steps before took.
TEST_CASE("a worker whose steps are at times cut off by a quota is not chased", "[chief]") {
  for (const double quota : {0.01, 0.02, 0.03, 0.05}) {
    for (const double per_sample : {6e-5, 2e-4, 2e-3}) {
      for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        INFO("quota " << quota << " s of 0.1 s, " << per_sample << " s a sample, seed " << seed);
        double seconds[2] = {0, 0};
        std::int64_t settled = 0, changes = 0;
        for (const bool equal : {true, false}) {
          Rng rng(seed);
          BatchController controller(
              {.mode = equal ? BatchControllerOptions::Mode::kOff : BatchControllerOptions::Mode::kModel});
          for (std::uint64_t i = 1; i <= 3; ++i) controller.AddWorker(Incarnation(i), absl::StrCat("w", i));
          CpuQuota limit(quota, 0.1);
          double now = 0;
          for (int step = 0; step < 2000; ++step) {
            const auto shares = *controller.Plan(256);
            double end = now;
            for (std::size_t i = 0; i < 3; ++i) {
              const auto batch = static_cast<double>(shares[i].batch);
              const double cpu = (1e-3 + per_sample * batch) * std::exp(0.1 * rng.NextNormal());
              const double done = i == 2 ? limit.Run(now, cpu) : now + cpu;
              controller.Observe(shares[i].worker, shares[i].batch, done - now);
              end = std::max(end, done);
            }
            now = end + 2e-4;
            if (step == 500) settled = controller.changes();
          }
          seconds[equal ? 1 : 0] = now;
          changes = controller.changes();
        }
        CHECK(changes - settled <= 30);  // one in 50 steps
        CHECK(seconds[0] < 0.9 * seconds[1]);
      }
    }
  }
}

TEST_CASE("shares are right within 3 steps of a join and a leave", "[chief]") {
  Cluster cluster;
  for (double speed : {2.0, 17.0, 20.0}) cluster.Add({0, 1 / speed});
  for (int step = 0; step < 10; ++step) REQUIRE(cluster.Step(780));
  REQUIRE(cluster.slowest <= 1.02 * cluster.Optimum(780));
  cluster.Add({0, 1 / 5.0});
  for (int step = 0; step < 3; ++step) REQUIRE(cluster.Step(780));
  REQUIRE(cluster.slowest <= 1.05 * cluster.Optimum(780));
  cluster.Remove(2);
  for (int step = 0; step < 3; ++step) REQUIRE(cluster.Step(780));
  REQUIRE(cluster.slowest <= 1.05 * cluster.Optimum(780));
}

TEST_CASE("a cold start takes declared speeds; who declares none is taken for the mean of the others", "[chief]") {
  Cluster cluster;
  for (double speed : {2.0, 17.0, 20.0}) cluster.Add({0, 1 / speed}, speed);
  REQUIRE(cluster.Step(390));
  REQUIRE(cluster.shares ==
          std::vector<BatchShare>{{cluster.ids[0], 20}, {cluster.ids[1], 170}, {cluster.ids[2], 200}});
  cluster.Add({0, 1 / 13.0});
  REQUIRE(cluster.Step(520));
  REQUIRE(cluster.shares[3].batch == 130);
  cluster.Add({0, 1 / 26.0}, 26);  // declared in the unit that the others turned out to have
  REQUIRE(cluster.Step(780));
  REQUIRE(cluster.shares[4].batch == 260);
}

TEST_CASE("a restarted controller knows its workers by name", "[chief]") {
  Cluster first;
  const double speeds[] = {2, 17, 20};
  for (int i = 0; i < 3; ++i) first.Add({0.5, 1 / speeds[i]}, 0, "machine-" + std::to_string(i));
  for (int step = 0; step < 40; ++step) REQUIRE(first.Step(780));
  Cluster second;
  REQUIRE(second.controller.Load(first.controller.Save()).ok());
  for (int i = 2; i >= 0; --i) second.Add({0.5, 1 / speeds[i]}, 0, "machine-" + std::to_string(i));
  REQUIRE(second.Step(780));
  REQUIRE(second.slowest <= 1.02 * second.Optimum(780));

  BatchController::State broken = first.controller.Save();
  broken.records[1].model.per_sample = -1;
  const absl::Status status = second.controller.Load(broken);
  REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
  REQUIRE(std::string(status.message()).find("machine-1") != std::string::npos);
}

TEST_CASE("bounds that cannot hold are an error that says what would", "[chief]") {
  Cluster cluster(BatchControllerOptions{.max_batch_size = 100});
  REQUIRE(cluster.controller.Plan(64).status().code() == absl::StatusCode::kFailedPrecondition);
  for (int i = 0; i < 4; ++i) cluster.Add({0, 1});
  REQUIRE(std::string(cluster.controller.Plan(63).status().message()).find("at least 64; it is 63") !=
          std::string::npos);
  REQUIRE(std::string(cluster.controller.Plan(401).status().message()).find("hold 400") != std::string::npos);
  REQUIRE(cluster.Step(64));
  REQUIRE(cluster.Step(400));
  cluster.controller.SetCeiling(cluster.ids[1], 40);
  REQUIRE(cluster.Step(340));
  REQUIRE(cluster.shares[1].batch == 40);
  REQUIRE(cluster.controller.Holds() == 340);
  REQUIRE(cluster.controller.MemoryOver() == 1);
  cluster.controller.SetCeiling(cluster.ids[1], 8);  // memory goes before the floor
  REQUIRE(cluster.Step(64, 8));
  REQUIRE(cluster.shares[1].batch == 8);
  Cluster wrong(BatchControllerOptions{.max_batch_size = 10});
  wrong.Add({0, 1});
  wrong.Add({0, 1});
  REQUIRE(std::string(wrong.controller.Plan(20).status().message()).find("at least 32; it is 20") != std::string::npos);
}

TEST_CASE("memory that does not hold the step is gone beyond by the same part everywhere", "[chief]") {
  Cluster cluster;
  for (double speed : {1.0, 1.0, 8.0}) cluster.Add({0, 1 / speed});
  for (const Incarnation id : cluster.ids) cluster.controller.SetCeiling(id, 100);
  for (int i = 0; i < 20; ++i) REQUIRE(cluster.Step(240));
  REQUIRE(cluster.shares[2].batch == 100);  // it would have taken 192
  REQUIRE(cluster.controller.MemoryOver() == 1);
  cluster.controller.SetCeiling(cluster.ids[2], 40);
  cluster.controller.SetCeiling(cluster.ids[0], 40);
  REQUIRE(cluster.controller.Holds() == 180);
  REQUIRE(cluster.Step(240));
  REQUIRE(cluster.controller.MemoryOver() > 1.33);
  REQUIRE(cluster.shares[0].batch + cluster.shares[1].batch + cluster.shares[2].batch == 240);
  REQUIRE(cluster.shares[0].batch <= 54);
  REQUIRE(cluster.shares[1].batch <= 134);
  REQUIRE(cluster.shares[2].batch <= 54);
  const auto rest = cluster.controller.PlanRemainder(200);
  REQUIRE(rest.ok());
  REQUIRE((*rest)[0].batch + (*rest)[1].batch + (*rest)[2].batch == 200);
}

TEST_CASE("a step with fewer samples is cut like the others and decides nothing", "[chief]") {
  Cluster cluster;
  for (double speed : {2.0, 17.0, 20.0}) cluster.Add({0, 1 / speed}, speed);
  REQUIRE(cluster.Step(390));
  const std::vector<BatchShare> usual = cluster.shares;
  const auto rest = cluster.controller.PlanRemainder(39);
  REQUIRE(rest.ok());
  REQUIRE((*rest)[0].batch + (*rest)[1].batch + (*rest)[2].batch == 39);
  REQUIRE((*rest)[0].batch == 2);  // the floor of 16 cannot hold
  cluster.Add({0, 1 / 20.0}, 20);  // before the step that it takes part in has been planned
  const auto with_it = cluster.controller.PlanRemainder(59);
  REQUIRE(with_it.ok());
  REQUIRE((*with_it)[3].batch == 20);
  cluster.controller.RemoveWorker(cluster.ids[3]);
  cluster.ids.pop_back();
  cluster.machines.pop_back();
  REQUIRE(cluster.Step(390));
  REQUIRE(cluster.shares == usual);
  REQUIRE(cluster.controller.changes() == 0);
}

TEST_CASE("a batch at which throughput collapses becomes the ceiling; a slower worker does not", "[chief]") {
  for (double noise : {0.0, 0.05}) {
    Cluster cluster({}, 5);
    cluster.noise = noise;
    cluster.Add({0, 1e-3, 200});  // twice as fast as the others, up to 200 samples
    for (int i = 0; i < 3; ++i) cluster.Add({0, 2e-3});
    for (int step = 0; step < 60; ++step) REQUIRE(cluster.Step(600));
    INFO(cluster.controller.Explain());
    REQUIRE(cluster.shares[0].batch <= 200);
    REQUIRE(cluster.controller.Workers()[0].ceiling > 0);

    // The same, but the worker happens to become slower as its batch grows.
    Cluster slower({}, 6);
    slower.noise = noise;
    slower.Add({0, 1e-3});
    for (int i = 0; i < 3; ++i) slower.Add({0, 2e-3});
    while (slower.shares.empty() || slower.shares[0].batch <= 160) REQUIRE(slower.Step(600));
    slower.machines[0].per_sample = 4e-3;
    for (int step = 0; step < 40; ++step) REQUIRE(slower.Step(600));
    INFO(slower.controller.Explain());
    REQUIRE(slower.controller.Workers()[0].ceiling == 0);
    REQUIRE(slower.slowest <= 1.1 * slower.Optimum(600));
  }
}

TEST_CASE("off is equal, static as declared, proportional as published; all sum exactly", "[chief]") {
  using Mode = BatchControllerOptions::Mode;
  const double speeds[] = {2, 17, 20};
  for (Mode mode : {Mode::kOff, Mode::kStatic, Mode::kProportional}) {
    Cluster cluster(BatchControllerOptions{.mode = mode});
    for (double speed : speeds) cluster.Add({0, 1 / speed}, mode == Mode::kStatic ? speed : 0);
    REQUIRE(cluster.Step(781));
    const std::vector<BatchShare> start = cluster.shares;
    for (int step = 0; step < 30; ++step) REQUIRE(cluster.Step(781));
    if (mode == Mode::kProportional) {
      REQUIRE(start[0].batch == 261);
      REQUIRE(cluster.slowest <= 1.03 * cluster.Optimum(781));
      REQUIRE(cluster.controller.changes() == 1);
    } else {
      REQUIRE(cluster.shares == start);
      REQUIRE(start[0].batch == (mode == Mode::kOff ? 261 : 40));
    }
  }
}

TEST_CASE("the step time is right at the batch in use when the batch never varies, and follows a drift", "[chief]") {
  Rng rng(8);
  StepTimeModel model;
  for (int step = 0; step < 5000; ++step) {
    REQUIRE(!model.Observe(128, (0.2 + 128e-3) * std::exp(0.1 * rng.NextNormal() - 0.005)));
  }
  REQUIRE(model.Predict(128) == Approx(0.328).epsilon(0.03));
  REQUIRE(model.line().fixed >= 0);
  REQUIRE(model.noise() == Approx(0.1).epsilon(0.3));
  for (int step = 0; step < 2000; ++step) {
    model.Observe(128, (1 + step / 2000.0) * 0.328 * std::exp(0.1 * rng.NextNormal() - 0.005));
  }
  REQUIRE(model.Predict(128) == Approx(2 * 0.328).epsilon(0.12));
}

TEST_CASE("the split into fixed and per sample is found once the batch moves, and kept while it rests", "[chief]") {
  StepTimeModel model;
  for (int step = 0; step < 20; ++step) model.Observe(100, 0.3);
  for (int step = 0; step < 1000; ++step) model.Observe(60, 0.22);
  REQUIRE(model.line().per_sample == Approx(2e-3).epsilon(0.02));
  REQUIRE(model.line().fixed == Approx(0.1).epsilon(0.02));
}

TEST_CASE("a large cluster without any noise stays well conditioned", "[chief]") {
  Cluster cluster;
  for (int i = 0; i < 1000; ++i) cluster.Add({1e-2, 1e-3 * (1 + i % 7)});
  for (int step = 0; step < 1000; ++step) REQUIRE(cluster.Step(128000));
  REQUIRE(cluster.slowest <= 1.02 * cluster.Optimum(128000));
  for (const BatchWorkerView& worker : cluster.controller.Workers()) {
    REQUIRE(worker.predicted_seconds == Approx(cluster.Seconds(worker.worker.value() - 1, worker.batch)).epsilon(1e-3));
  }
}

TEST_CASE("one outlier is not a change of speed; a change is found within 6 steps at 30% noise", "[chief]") {
  int first = 0, early = 0, missed = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const auto noisy = [&](double seconds) { return seconds * std::exp(0.3 * rng.NextNormal() - 0.045); };
    StepTimeModel model;
    for (int step = 0; step < 300; ++step) {
      const bool alarm = model.Observe(64, step == 200 ? 50 : noisy(1)).has_value();
      early += alarm && step >= 50;
      first += alarm;
    }
    bool found = false;
    for (int step = 0; step < 6; ++step) found = found || model.Observe(64, noisy(3)).has_value();
    missed += !found;
  }
  REQUIRE(first <= 20);  // of 60,000 steps, mostly while the noise is not known yet
  REQUIRE(early <= 2);
  REQUIRE(missed <= 4);  // of 200
}

// Two workers on a busy machine: a step is nearly all waiting for cores and messages, and wanders by itself.
TEST_CASE("batches do not follow time that samples do not take", "[chief]") {
  for (const double computing : {1.0, 0.005}) {
    Rng rng(7);
    BatchController controller({});
    const Incarnation ids[2] = {Incarnation(1), Incarnation(2)};
    for (const Incarnation id : ids) controller.AddWorker(id, absl::StrCat("w", id.value()), 0);
    double level[2] = {0, 0};
    for (int step = 0; step < 2000; ++step) {
      const auto shares = *controller.Plan(64);
      for (std::size_t w = 0; w < 2; ++w) {
        level[w] = 0.9 * level[w] + 0.3 * (rng.NextDouble() - 0.5);
        controller.Observe(ids[w], shares[w].batch, 0.02 * std::exp(level[w]), false, computing);
      }
    }
    CAPTURE(computing);
    if (computing == 1) CHECK(controller.changes() > 50);  // what it would do
    if (computing < 1) CHECK(controller.changes() <= 2);
  }
}

// Of three workers alike, one is stopped again and again. Nobody waits for anybody; a round is three commits.
TEST_CASE("a worker that is stopped again and again gets the rate of the others where rates count", "[chief]") {
  struct Cycle {
    double runs, stops;  // seconds
  };
  for (const Cycle cycle : {Cycle{0.1, 0.2}, Cycle{0.4, 0.6}, Cycle{1, 1}, Cycle{5, 5}}) {
    CAPTURE(cycle.runs, cycle.stops);
    constexpr std::int64_t kTotal = 240;
    constexpr double kPerSample = 1e-3, kSettled = 300, kEnd = 600;
    BatchController controller(BatchControllerOptions{.rates = true});
    for (std::uint64_t id = 1; id <= 3; ++id) controller.AddWorker(Incarnation(id), absl::StrCat("worker:", id));
    // When it has computed for so long, from `begin` on.
    const double period = cycle.runs + cycle.stops;
    const auto end_of = [&](double begin, double computing) {
      for (double cycles = std::floor(begin / period);; ++cycles, begin = std::max(begin, cycles * period)) {
        const double left = cycles * period + cycle.runs - begin;
        if (left >= computing) return begin + computing;
        computing -= std::max(left, 0.0);
      }
    };
    struct Running {
      double begin = 0, end = 0;
      std::int64_t batch = 0;
    };
    std::vector<BatchShare> shares = *controller.Plan(kTotal);
    std::vector<Running> running(3);
    std::vector<double> updates(3);
    const auto begin = [&](std::size_t worker, double now) {
      const std::int64_t batch = shares[worker].batch;
      const double computing = kPerSample * static_cast<double>(batch);
      running[worker] = {now, worker == 2 ? end_of(now, computing) : now + computing, batch};
    };
    for (std::size_t worker = 0; worker < 3; ++worker) begin(worker, 0);
    double now = 0;
    for (int commits = 1; now < kEnd; ++commits) {
      const auto next = std::min_element(running.begin(), running.end(),
                                         [](const Running& a, const Running& b) { return a.end < b.end; });
      const auto worker = static_cast<std::size_t>(next - running.begin());
      now = next->end;
      if (now > kSettled) updates[worker] += 1;
      controller.Observe(Incarnation(worker + 1), next->batch, next->end - next->begin);
      if (commits % 3 == 0) shares = *controller.Plan(kTotal);
      begin(worker, now);
    }
    CAPTURE(updates, shares[0].batch, shares[1].batch, shares[2].batch);
    const auto [least, most] = std::minmax_element(updates.begin(), updates.end());
    CHECK(*most < 1.4 * *least);  // with equal shares twice as many, and thrice
  }
}

// In asp and ssp nobody waits for it; the others' rates still count.
TEST_CASE("a worker that has the least batch hides no other's speed where rates are to be equal", "[chief]") {
  for (const bool rates : {true, false}) {
    Cluster cluster(BatchControllerOptions{.rates = rates});
    for (const double per_sample : {1e-3, 1e-3, 50e-3}) cluster.Add({0, per_sample});
    for (int step = 0; step < 40; ++step) REQUIRE(cluster.Step(256));
    REQUIRE(cluster.shares[2].batch == 16);
    cluster.machines[1].per_sample = 4e-3;
    for (int step = 0; step < 40; ++step) REQUIRE(cluster.Step(256));
    CAPTURE(rates);
    CHECK((cluster.shares[0].batch == Approx(192).margin(10)) == rates);  // 4 : 1, beside 16
    CHECK(cluster.shares[2].batch == 16);
  }
}

TEST_CASE("what is no time and whom nobody knows is ignored", "[chief]") {
  Cluster cluster;
  for (int i = 0; i < 2; ++i) cluster.Add({0, 1e-3});
  REQUIRE(cluster.Step(64));
  for (double seconds : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    cluster.controller.Observe(cluster.ids[0], 32, seconds);
  }
  cluster.controller.Observe(cluster.ids[0], 0, 1);
  cluster.controller.Observe(Incarnation(77), 32, 1);
  cluster.controller.RemoveWorker(Incarnation(77));
  REQUIRE(cluster.controller.Workers()[0].observations == 1);
}

}  // namespace evenkeel
