#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "chief/batch_split.h"
#include "chief/interval_set.h"
#include "chief/learning_rate.h"
#include "chief/lease_table.h"
#include "chief/sample_ledger.h"
#include "evenkeel/core/random.h"

namespace evenkeel {

TEST_CASE("an interval set agrees with a plain set of integers under random operations", "[chief]") {
  Rng rng(7);
  IntervalSet set;
  std::vector<bool> plain(200, false);
  for (int i = 0; i < 20000; ++i) {
    const auto begin = static_cast<std::int64_t>(rng.Below(200));
    const PositionRange range{begin, begin + 1 + static_cast<std::int64_t>(rng.Below(std::uint64_t(200 - begin)))};
    bool all = true, any = false;
    for (std::int64_t p = range.begin; p < range.end; ++p) {
      all = all && plain[static_cast<std::size_t>(p)];
      any = any || plain[static_cast<std::size_t>(p)];
    }
    REQUIRE(set.Contains(range) == all);
    REQUIRE(set.Overlaps(range) == any);
    if (!any) set.Add(range);
    if (all) set.Remove(range);
    if (!any || all) std::fill(plain.begin() + range.begin, plain.begin() + range.end, !any);
    if (rng.Below(20) == 0) {
      const auto count = static_cast<std::int64_t>(rng.Below(30));
      std::int64_t left = count;
      for (std::size_t p = 0; p < plain.size() && left > 0; ++p) {
        if (plain[p]) {
          plain[p] = false;
          --left;
        }
      }
      REQUIRE(TotalSize(set.TakeLowest(count)) == count - left);
    }
    REQUIRE(set.size() == std::count(plain.begin(), plain.end(), true));
    const RangeList ranges = set.ranges();
    for (std::size_t k = 1; k < ranges.size(); ++k) REQUIRE(ranges[k - 1].end < ranges[k].begin);
  }
}

TEST_CASE("a second epoch opens only when the first has nothing free, a third not before the first is spent",
          "[chief]") {
  SampleLedger ledger(10, 3);
  const RangeList first = ledger.Take(*ledger.NextEpoch(), 6);
  REQUIRE(ledger.NextEpoch() == Epoch(0));
  const RangeList second = ledger.Take(Epoch(0), 100);
  REQUIRE(TotalSize(second) == 4);
  REQUIRE(ledger.NextEpoch() == Epoch(1));
  const RangeList third = ledger.Take(Epoch(1), 10);
  REQUIRE(ledger.NextEpoch() == std::nullopt);
  ledger.Return(Epoch(0), first);
  REQUIRE(ledger.NextEpoch() == Epoch(0));
  ledger.Spend(Epoch(0), ledger.Take(Epoch(0), 6));
  ledger.Spend(Epoch(0), second);
  REQUIRE(ledger.completed_epochs() == 1);
  REQUIRE(ledger.NextEpoch() == Epoch(2));
  ledger.Spend(Epoch(1), third);
  ledger.Spend(Epoch(2), ledger.Take(Epoch(2), 10));
  REQUIRE(ledger.Finished());
  REQUIRE(ledger.spent_per_epoch() == std::vector<std::int64_t>{10, 10, 10});
}

TEST_CASE("a saved ledger counts leased positions as free", "[chief]") {
  SampleLedger ledger(10, 0);
  ledger.Spend(Epoch(0), ledger.Take(Epoch(0), 3));
  ledger.Take(Epoch(0), 4);
  auto loaded = SampleLedger::Load(10, 0, ledger.Save());
  REQUIRE(loaded.ok());
  REQUIRE(loaded->FreeIn(Epoch(0)) == 7);
  REQUIRE(loaded->Take(Epoch(0), 1) == RangeList{{3, 4}});
  SampleLedger::Snapshot bad = ledger.Save();
  bad.spent[0] = {{5, 11}};
  REQUIRE(SampleLedger::Load(10, 0, bad).status().code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("a batch is split exactly, in proportion, within its bounds", "[chief]") {
  Rng rng(3);
  for (int i = 0; i < 5000; ++i) {
    const std::size_t n = 1 + rng.Below(40);
    std::vector<double> weights;
    for (std::size_t k = 0; k < n; ++k) weights.push_back(0.02 + rng.NextDouble());
    const auto total = static_cast<std::int64_t>(rng.Below(5000));
    SplitBounds bounds;
    bounds.floor = static_cast<std::int64_t>(rng.Below(20));
    bounds.ceiling = rng.Below(2) ? static_cast<std::int64_t>(50 + rng.Below(300)) : 0;
    const auto shares = SplitBatch(total, weights, bounds);
    REQUIRE(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}) == total);
    const bool floor_fits = bounds.floor * static_cast<std::int64_t>(n) <= total;
    const bool ceiling_fits = bounds.ceiling > 0 && bounds.ceiling * static_cast<std::int64_t>(n) >= total;
    for (std::int64_t share : shares) {
      REQUIRE(share >= (floor_fits ? bounds.floor : 0));
      if (ceiling_fits && (!floor_fits || bounds.floor <= bounds.ceiling)) REQUIRE(share <= bounds.ceiling);
    }
  }
  const double weights[] = {2, 17, 20};
  REQUIRE(SplitBatch(390, weights, SplitBounds{}) == std::vector<std::int64_t>{20, 170, 200});
}

TEST_CASE("a late tick does not cost members their leases", "[chief]") {
  LeaseTable leases(std::chrono::seconds(10), std::chrono::seconds(1));
  TimePoint now{std::chrono::seconds(5)};
  leases.Grant(Incarnation(1), now);
  REQUIRE(leases.Expire(now).empty());
  now += std::chrono::seconds(30);  // this process stood still
  REQUIRE(leases.Expire(now).empty());
  now += std::chrono::milliseconds(900);
  REQUIRE(leases.Expire(now).empty());
  for (int i = 0; i < 11; ++i) {
    now += std::chrono::milliseconds(900);
    const auto over = leases.Expire(now);
    if (!over.empty()) {
      REQUIRE(over == std::vector<Incarnation>{Incarnation(1)});
      REQUIRE(!leases.Renew(Incarnation(1), now));
      return;
    }
  }
  FAIL("the lease never ended");
}

TEST_CASE("schedules: warm-up, decay, ends", "[chief]") {
  ScheduleConfig schedule;
  schedule.learning_rate = 1;
  schedule.unit = ScheduleConfig::Unit::kCommits;
  const TrainingLength length{100, 10000, 1000};
  auto at = [&](std::int64_t commit) { return LearningRate(schedule, length, {commit, commit * 100}); };
  SECTION("warm-up is linear, then constant") {
    schedule.warmup = 10;
    schedule.warmup_start = 0.1;
    REQUIRE(at(0) == Approx(0.1));
    REQUIRE(at(5) == Approx(0.55));
    REQUIRE(at(10) == Approx(1));
    REQUIRE(at(99) == Approx(1));
  }
  SECTION("cosine ends at the end rate, over the whole training where no total is given") {
    schedule.kind = ScheduleConfig::Kind::kCosine;
    schedule.end_learning_rate = 0.2;
    REQUIRE(at(0) == Approx(1));
    REQUIRE(at(50) == Approx(0.6));
    REQUIRE(at(100) == Approx(0.2));
    REQUIRE(at(500) == Approx(0.2));
  }
  SECTION("step counts the boundaries passed") {
    schedule.kind = ScheduleConfig::Kind::kStep;
    schedule.boundaries = {30, 60};
    REQUIRE(at(29) == Approx(1));
    REQUIRE(at(30) == Approx(0.1));
    REQUIRE(at(60) == Approx(0.01));
  }
  SECTION("exponential, smooth and by stairs") {
    schedule.kind = ScheduleConfig::Kind::kExponential;
    schedule.decay_rate = 0.5;
    schedule.decay_every = 10;
    REQUIRE(at(5) == Approx(std::sqrt(0.5)));
    schedule.staircase = true;
    REQUIRE(at(19) == Approx(0.5));
  }
  SECTION("in samples the batch size does not matter") {
    schedule.kind = ScheduleConfig::Kind::kPolynomial;
    schedule.unit = ScheduleConfig::Unit::kSamples;
    schedule.power = 2;
    REQUIRE(LearningRate(schedule, length, {1, 5000}) == Approx(0.25));
    REQUIRE(LearningRate(schedule, length, {50, 5000}) == Approx(0.25));
  }
}

}  // namespace evenkeel
