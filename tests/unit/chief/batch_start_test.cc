// How batches begin: from a worker's own timing, and steps that are the first of their size.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "chief/batch_controller.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

struct Machine {
  double fixed, per_sample, new_size;
  std::int64_t largest_seen = 0, last = 0;
};

// One step in which a worker pays `new_size` more where its batch differs from the one before, and says so.
struct Cluster {
  BatchController controller{{}};
  std::vector<Machine> machines;
  std::vector<BatchShare> shares;

  void Add(Machine machine, StepTimeLine timed, const std::string& name) {
    machines.push_back(machine);
    controller.AddWorker(Incarnation(machines.size()), name, 0, timed);
  }
  double Seconds(std::size_t i, std::int64_t batch) const {
    return machines[i].fixed + machines[i].per_sample * static_cast<double>(batch);
  }
  // As the chief plans: one step ahead, anew where the controller asks for it. Returns the slowest worker's time.
  double Step(std::int64_t total) {
    if (shares.empty()) shares = *controller.Plan(total);
    std::vector<BatchShare> next = *controller.Plan(total);
    double slowest = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      Machine& machine = machines[i];
      const bool first = std::exchange(machine.last, shares[i].batch) != shares[i].batch;
      const double seconds = Seconds(i, shares[i].batch);
      slowest = std::max(slowest, seconds);
      controller.Observe(shares[i].worker, shares[i].batch, seconds + (first ? machine.new_size : 0), first);
    }
    if (controller.asks_again()) next = *controller.PlanAgain(total);
    shares = next;
    return slowest;
  }
  // Of the shares to come.
  double Next() const {
    double slowest = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) slowest = std::max(slowest, Seconds(i, shares[i].batch));
    return slowest;
  }
};

}  // namespace

TEST_CASE("workers that timed themselves begin near the optimum and reach it within 4 steps", "[chief][fast]") {
  Cluster cluster;
  // Each also moves parameters, which its own timing does not see; making a new size costs the slow one the most.
  const double speeds[] = {130, 1250, 1600};  // samples a second
  double sum = 0;
  for (double speed : speeds) {
    cluster.Add({0.02, 1 / speed, 15 / speed}, {0.01, 1.1 / speed}, "w" + std::to_string(cluster.machines.size()));
    sum += speed;
  }
  const double best = 0.02 + 1152 / sum;
  CHECK(cluster.Step(1152) < 1.15 * best);
  for (int step = 0; step < 3; ++step) cluster.Step(1152);
  INFO(cluster.controller.Explain());
  CHECK(cluster.Next() < 1.03 * best);
}

TEST_CASE("without any timing the second measured step corrects equal shares at once", "[chief][fast]") {
  Cluster cluster;
  const double speeds[] = {130, 1250, 1600};
  for (double speed : speeds) {
    cluster.Add({0.02, 1 / speed, 15 / speed}, {}, "w" + std::to_string(cluster.machines.size()));
  }
  cluster.Step(1152);
  cluster.Step(1152);
  CHECK(cluster.Next() < 1.25 * (0.02 + 1152 / 2980.0));
}

TEST_CASE("timings that differ by less than the dead band begin with equal shares", "[chief][fast]") {
  Cluster cluster;
  for (double per_sample : {1.0, 1.02, 0.99}) {
    cluster.Add({0, per_sample, 0}, {0, per_sample}, "w" + std::to_string(cluster.machines.size()));
  }
  cluster.Step(300);
  CHECK(cluster.shares == std::vector<BatchShare>{{Incarnation(1), 100}, {Incarnation(2), 100}, {Incarnation(3), 100}});
}

TEST_CASE("what is remembered counts, unless the machine is another by its own timing", "[chief][fast]") {
  Cluster first;
  for (double per_sample : {0.01, 0.002})
    first.Add({0.01, per_sample, 0}, {}, "m" + std::to_string(first.machines.size()));
  for (int step = 0; step < 30; ++step) first.Step(600);
  const BatchController::State memory = first.controller.Save();

  Cluster same;
  REQUIRE(same.controller.Load(memory).ok());
  same.Add({0.01, 0.01, 0}, {0, 0.008}, "m0");  // a rough timing
  same.Add({0.01, 0.002, 0}, {0, 0.002}, "m1");
  same.Step(600);
  CHECK(same.shares[0].batch == Approx(100).margin(5));

  Cluster other;
  REQUIRE(other.controller.Load(memory).ok());
  other.Add({0.002, 0.002, 0}, {0.002, 0.002}, "m0");  // five times as fast as it was
  other.Add({0.01, 0.002, 0}, {0, 0.002}, "m1");
  other.Step(600);
  CHECK(other.shares[0].batch == Approx(300).margin(25));
}

TEST_CASE("what is remembered of a step with its messages is compared without them", "[chief][fast]") {
  BatchController first{{}};
  for (std::uint64_t i = 1; i <= 2; ++i) first.AddWorker(Incarnation(i), "m" + std::to_string(i));
  for (int step = 0; step < 30; ++step) {
    // A step is mostly messages: 12 ms and 12 ms, of which the workers compute 3 and 5.
    const std::vector<BatchShare> plan = *first.Plan(256);
    for (const BatchShare& share : plan) {
      first.Observe(share.worker, share.batch, 0.012, false, share.worker == Incarnation(1) ? 0.25 : 0.42);
    }
  }
  BatchController second{{}};
  REQUIRE(second.Load(first.Save()).ok());
  second.AddWorker(Incarnation(1), "m1", 0, {0.003, 1e-6});
  second.AddWorker(Incarnation(2), "m2", 0, {0.005, 1e-6});
  const std::vector<BatchShare> shares = *second.Plan(256);
  CHECK(shares[0].batch == Approx(128).margin(8));
}

TEST_CASE("a change that costs more than it gains until the next is not made", "[chief][fast]") {
  for (double new_size : {0.0, 10.0}) {  // seconds
    BatchController controller{{}};
    for (std::uint64_t i = 1; i <= 2; ++i) controller.AddWorker(Incarnation(i), "w" + std::to_string(i));
    double per_sample = 1e-3;
    std::int64_t last = 0;
    for (int step = 0; step < 200; ++step) {
      // Another global batch for a step: so that it is known what a new size costs.
      const std::vector<BatchShare> shares = *controller.Plan(step == 20 ? 250 : 256);
      const bool first = std::exchange(last, shares[0].batch) != shares[0].batch;
      if (step == 100) per_sample = 1.12e-3;  // 6% of the step are to be had, 8 ms
      for (std::size_t i = 0; i < 2; ++i) {
        const double seconds = static_cast<double>(shares[i].batch) * (i == 0 ? per_sample : 1e-3);
        controller.Observe(shares[i].worker, shares[i].batch, seconds + (first ? new_size : 0), first);
      }
    }
    INFO(controller.Explain());
    CHECK((controller.Workers()[0].batch < 125) == (new_size == 0));
  }
}

TEST_CASE("the first steps of ever new sizes teach in the end", "[chief][fast]") {
  BatchController controller{{}};
  controller.AddWorker(Incarnation(1), "a", 0, {0, 1});
  controller.AddWorker(Incarnation(2), "b", 0, {0, 1});
  REQUIRE(controller.Plan(200).ok());
  for (int step = 0; step < 3; ++step) {
    CHECK(controller.Workers()[0].observations == 0);
    controller.Observe(Incarnation(1), 100 + step, 300, true);
  }
  CHECK(controller.Workers()[0].observations == 1);
  controller.Observe(Incarnation(2), 100, 50, true);  // faster than believed, which a new size cannot feign
  CHECK(controller.Workers()[1].observations == 1);
}

TEST_CASE("a worker of the least batch that recovers gets its share, though one growth gains little", "[chief]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    constexpr std::int64_t kTotal = 3000;
    BatchController controller{{}};
    Rng rng(seed);
    for (std::uint64_t id = 1; id <= 3; ++id) controller.AddWorker(Incarnation(id), "w" + std::to_string(id));
    std::vector<BatchShare> shares;
    for (int step = 0; step < 400; ++step) {
      shares = *controller.Plan(kTotal);
      for (std::size_t i = 0; i < 3; ++i) {
        const double per_sample = i == 2 && step < 100 ? 2e-2 : 1e-4;
        const double seconds = 1e-3 + per_sample * static_cast<double>(shares[i].batch);
        controller.Observe(shares[i].worker, shares[i].batch, seconds * std::exp(0.08 * rng.NextNormal()));
      }
      if (step == 99) REQUIRE(shares[2].batch <= 32);
    }
    CAPTURE(seed, controller.Explain());
    CHECK(shares[2].batch > 800);
  }
}

TEST_CASE("where rates count they are even within a few hundred steps, however noisy those are", "[chief]") {
  int uneven = 0;
  constexpr int kSeeds = 60;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    BatchController controller(BatchControllerOptions{.rates = true});
    Rng rng(seed);
    const double speeds[] = {9, 12, 18};
    for (std::uint64_t id = 1; id <= 3; ++id) controller.AddWorker(Incarnation(id), "w" + std::to_string(id));
    double sums[3] = {};
    for (int step = 0; step < 1200; ++step) {
      const std::vector<BatchShare> shares = *controller.Plan(256);
      for (std::size_t i = 0; i < 3; ++i) {
        const double seconds = 5e-4 + static_cast<double>(shares[i].batch) / (1500 * speeds[i]);
        controller.Observe(shares[i].worker, shares[i].batch, seconds * std::exp(0.25 * rng.NextNormal()));
        if (step >= 300) sums[i] += 1 / seconds;
      }
    }
    const auto [least, most] = std::minmax_element(std::begin(sums), std::end(sums));
    uneven += *most > 1.1 * *least;  // of 2 at equal shares
  }
  CAPTURE(uneven);
  CHECK(uneven <= kSeeds / 20);
}

TEST_CASE("of many workers some always pause; step times that wander are followed all the same", "[chief][fast]") {
  constexpr std::size_t kWorkers = 200;
  constexpr auto kTotal = static_cast<std::int64_t>(128 * kWorkers);
  BatchController controller{{}};
  Rng rng(7);
  std::vector<double> level(kWorkers);
  for (std::size_t i = 0; i < kWorkers; ++i) controller.AddWorker(Incarnation(i + 1), "w" + std::to_string(i));
  double slowest = 0, equal = 0;  // but for the pauses
  for (int step = 0; step < 600; ++step) {
    const std::vector<BatchShare> shares = *controller.Plan(kTotal);
    double longest = 0, longest_equal = 0;
    for (std::size_t i = 0; i < kWorkers; ++i) {
      level[i] = 0.98 * level[i] + 0.02 * rng.NextNormal();  // over tens of steps, by 10%
      const auto batch = static_cast<double>(shares[i].batch);
      const double seconds = std::exp(level[i]) * (0.02 + 1e-3 * batch);
      longest = std::max(longest, seconds);
      longest_equal = std::max(longest_equal, std::exp(level[i]) * (0.02 + 1e-3 * 128));
      const bool pauses = rng.NextDouble() < 0.02;
      controller.Observe(shares[i].worker, shares[i].batch,
                         seconds * std::exp(0.02 * rng.NextNormal()) * (pauses ? 2 : 1));
    }
    if (step < 200) continue;
    slowest += longest;
    equal += longest_equal;
  }
  CAPTURE(slowest / equal, controller.changes(), controller.Explain());
  CHECK(slowest < 0.93 * equal);
}

}  // namespace evenkeel
