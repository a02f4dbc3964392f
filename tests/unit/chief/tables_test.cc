// The chief's tables: each index agrees with what a walk over all would say.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "chief/deadline_index.h"
#include "chief/update_table.h"
#include "chief/worker_table.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

UpdateId Id(std::uint64_t number) { return UpdateId{Term(1), Incarnation(number), 1}; }

UpdateState Update(std::uint64_t number, std::uint64_t set, std::int64_t deadline_s, std::size_t servers = 2) {
  UpdateState update;
  update.share.update = Id(number);
  update.share.worker = Incarnation(number);
  update.set = SetNumber(set);
  update.deadline = TimePoint{std::chrono::seconds(deadline_s)};
  update.staged.resize(servers);
  return update;
}

TimePoint At(std::int64_t seconds) { return TimePoint{std::chrono::seconds(seconds)}; }

void CheckAgainstWalk(const WorkerTable& table) {
  std::vector<WorkerTable::IdleKey> idle, idle_ahead;
  std::set<Incarnation> ready, ahead;
  std::vector<std::int64_t> clocks, held;
  std::map<Rank, Incarnation> training;
  std::set<Rank> taken;
  for (const auto& [incarnation, worker] : table) {
    REQUIRE(table.ByName(worker.name) == &worker);
    REQUIRE(table.ByNonce(worker.nonce) == &worker);
    if (worker.session != SessionId{}) REQUIRE(table.BySession(worker.session) == &worker);
    if (worker.provisional) ahead.insert(incarnation);
    if (!worker.rank) {
      if (worker.ready && !worker.leaving) ready.insert(incarnation);
      continue;
    }
    taken.insert(*worker.rank);
    clocks.push_back(worker.clock);
    if (worker.bound || !worker.leaving) held.push_back(worker.clock);
    if (worker.leaving) continue;
    training[*worker.rank] = incarnation;
    if (worker.bound) continue;
    idle.push_back({worker.clock, *worker.rank, incarnation});
    if (worker.provisional) idle_ahead.push_back(idle.back());
  }
  REQUIRE(table.ready() == ready);
  REQUIRE(table.with_provisional() == ahead);
  REQUIRE(table.idle() == std::set(idle.begin(), idle.end()));
  REQUIRE(table.idle_with_provisional() == std::set(idle_ahead.begin(), idle_ahead.end()));
  REQUIRE(table.ranks_taken() == static_cast<std::int64_t>(taken.size()));
  REQUIRE(table.LeastClock() == (clocks.empty() ? 0 : *std::min_element(clocks.begin(), clocks.end())));
  REQUIRE(table.LeastHeldClock().has_value() == !held.empty());
  if (!held.empty()) REQUIRE(*table.LeastHeldClock() == *std::min_element(held.begin(), held.end()));
  std::vector<Incarnation> by_rank;
  for (const auto& [rank, incarnation] : training) by_rank.push_back(incarnation);
  std::vector<Incarnation> told;
  for (const WorkerState* worker : table.TrainingByRank()) told.push_back(worker->incarnation);
  REQUIRE(told == by_rank);
  REQUIRE(table.training() == static_cast<int>(by_rank.size()));
  Rank lowest(0);
  while (taken.contains(lowest)) lowest = lowest.Next();
  REQUIRE(table.LowestFreeRank() == lowest);
}

}  // namespace

TEST_CASE("a deadline index tells what is due, by id, and what is next", "[chief]") {
  DeadlineIndex<Incarnation> index;
  REQUIRE(index.Next() == kNever);
  index.Set(Incarnation(3), At(5));
  index.Set(Incarnation(1), At(7));
  index.Set(Incarnation(2), kNever);
  REQUIRE(index.Next() == At(5));
  index.Set(Incarnation(3), At(9));  // put off
  REQUIRE(index.Next() == At(7));
  REQUIRE(index.Due(At(6)).empty());
  REQUIRE(index.Due(At(9)) == std::vector<Incarnation>{Incarnation(1), Incarnation(3)});
  index.ShiftAll(std::chrono::seconds(1));
  REQUIRE(index.Of(Incarnation(1)) == At(8));
  REQUIRE(index.Of(Incarnation(2)) == kNever);
  index.Erase(Incarnation(1));
  index.Erase(Incarnation(1));
  REQUIRE(!index.Contains(Incarnation(1)));
  REQUIRE(index.Next() == At(10));
  index.Clear();
  REQUIRE(index.Next() == kNever);
}

TEST_CASE("a worker table agrees with a walk over all workers under random changes", "[chief]") {
  Rng rng(11);
  WorkerTable table;
  std::vector<Incarnation> living;
  for (std::uint64_t step = 1; step <= 4000; ++step) {
    if (living.empty() || rng.Below(12) == 0) {
      WorkerState worker;
      worker.incarnation = Incarnation(step);
      worker.name = "worker:" + std::to_string(step);
      worker.nonce = step * 7;
      worker.session = SessionId(step);
      table.Add(std::move(worker));
      living.push_back(Incarnation(step));
    }
    const auto at = static_cast<std::ptrdiff_t>(rng.Below(living.size()));
    const Incarnation chosen = living[static_cast<std::size_t>(at)];
    if (rng.Below(14) == 0) {
      REQUIRE(table.Remove(chosen).incarnation == chosen);
      REQUIRE(table.Find(chosen) == nullptr);
      living.erase(living.begin() + at);
    } else {
      const Rank free = table.LowestFreeRank();
      table.Change(table.At(chosen), [&](WorkerState& worker) {
        switch (rng.Below(7)) {
          case 0:
            worker.session = worker.session == SessionId{} ? SessionId(10'000 + step) : SessionId{};
            break;
          case 1:
            worker.ready = true;
            break;
          case 2:
            if (!worker.rank) worker.rank = free;
            break;
          case 3:
            worker.clock += static_cast<std::int64_t>(rng.Below(3));
            break;
          case 4:
            worker.leaving = rng.Below(4) == 0 || worker.leaving;
            break;
          case 5:
            worker.bound = worker.bound ? std::nullopt : std::optional(Id(step));
            break;
          default:
            worker.provisional = worker.provisional ? std::nullopt : std::optional(Share{});
        }
      });
    }
    CheckAgainstWalk(table);
  }
}

TEST_CASE("a set is complete once all servers have sealed it and staged its updates, in any order", "[chief]") {
  UpdateTable table;
  table.Bind(Update(1, 1, 10));
  table.Bind(Update(2, 1, 10));
  table.Bind(Update(3, 2, 10));
  table.BeginSeal(SetNumber(1), 2);
  table.BeginSeal(SetNumber(2), 2);
  for (std::size_t server : {0, 1, 1}) {  // said twice counts once
    table.Stage(Id(1), server, {});
    table.Stage(Id(2), server, {});
    table.Stage(Id(3), server, {});
  }
  REQUIRE(table.Set(SetNumber(1)).incomplete == 0);
  REQUIRE(!table.FirstComplete());
  table.Seal(SetNumber(2), 0, {});
  table.Seal(SetNumber(2), 0, {});
  REQUIRE(!table.FirstComplete());
  table.Seal(SetNumber(2), 1, {});
  REQUIRE(table.FirstComplete() == SetNumber(2));
  table.Seal(SetNumber(1), 0, {});
  table.Seal(SetNumber(1), 1, {});
  REQUIRE(table.FirstComplete() == SetNumber(1));
  const auto [set, updates] = table.Take(SetNumber(1));
  REQUIRE(set.attempt == 0);
  REQUIRE(updates.size() == 2);
  REQUIRE(updates[1].share.update == Id(2));
  REQUIRE(table.FirstComplete() == SetNumber(2));
  REQUIRE(table.updates().size() == 1);
}

TEST_CASE("a set from which an update was dropped is to be sealed anew", "[chief]") {
  UpdateTable table;
  table.Bind(Update(1, 1, 10, 1));
  table.Bind(Update(2, 1, 10, 1));
  table.BeginSeal(SetNumber(1), 1);
  table.Stage(Id(2), 0, {});
  table.Seal(SetNumber(1), 0, {});
  REQUIRE(!table.FirstComplete());  // update 1 is not there
  table.Drop(Id(1));
  REQUIRE(table.Set(SetNumber(1)).incomplete == 0);
  table.BeginSeal(SetNumber(1), 1);
  REQUIRE(table.Set(SetNumber(1)).attempt == 1);
  REQUIRE(!table.FirstComplete());
  table.Seal(SetNumber(1), 0, {});
  REQUIRE(table.FirstComplete() == SetNumber(1));
  table.Drop(Id(2));
  REQUIRE(table.sets().empty());
  REQUIRE(!table.FirstComplete());
}

TEST_CASE("a folded set's updates are staged anew at each attempt, and only the first to come has a deadline",
          "[chief]") {
  UpdateTable table;
  table.MarkFolded(SetNumber(1));
  for (std::uint64_t i = 1; i <= 3; ++i) table.Bind(Update(i, 1, 10, 1));
  table.BeginSeal(SetNumber(1), 1);
  REQUIRE(table.NextDeadline() == kNever);
  const auto at = [](std::int64_t seconds) { return TimePoint{std::chrono::seconds(seconds)}; };
  REQUIRE(table.NextToCome(SetNumber(1))->share.update == Id(1));
  table.SetDeadline(Id(1), at(10));
  REQUIRE(table.NextToCome(SetNumber(1)) == nullptr);  // it has one
  table.Stage(Id(2), 0, {});
  REQUIRE(table.NextToCome(SetNumber(1)) == nullptr);
  REQUIRE(table.Overdue(at(11)) == std::vector<UpdateId>{Id(1)});
  table.Stage(Id(1), 0, {});
  REQUIRE(table.NextToCome(SetNumber(1))->share.update == Id(3));
  table.SetDeadline(Id(3), at(20));
  table.Drop(Id(3));
  table.BeginSeal(SetNumber(1), 1);
  REQUIRE(table.Set(SetNumber(1)).incomplete == 2);
  REQUIRE(table.NextDeadline() == kNever);
  REQUIRE_FALSE(table.At(Id(1)).staged_everywhere());
  table.Fence(Id(1), MembershipEpoch(2));
  REQUIRE(table.NextToCome(SetNumber(1))->share.update == Id(2));
}

TEST_CASE("overdue is what is not staged everywhere at its deadline, and not a dead worker's", "[chief]") {
  UpdateTable table;
  for (std::uint64_t number = 1; number <= 4; ++number) {
    table.Bind(Update(number, number, 10 - static_cast<std::int64_t>(number), 1));
  }
  REQUIRE(table.NextDeadline() == At(6));
  table.Stage(Id(4), 0, {});
  table.Fence(Id(3), MembershipEpoch(2));
  REQUIRE(table.fenced() == std::set<UpdateId>{Id(3)});
  REQUIRE(table.NextDeadline() == At(8));
  REQUIRE(table.Overdue(At(8)) == std::vector<UpdateId>{Id(2)});
  REQUIRE(table.Overdue(At(9)) == std::vector<UpdateId>{Id(1), Id(2)});
  // Whoever has done its part has no deadline any more, and nobody looks at one.
  table.Stage(Id(2), 0, {});
  REQUIRE(table.NextDeadline() == At(9));
  REQUIRE(table.DeadlineOf(Id(2)) == kNever);
  table.Shift(std::chrono::seconds(2));
  REQUIRE(table.NextDeadline() == At(11));
  REQUIRE(table.At(Id(1)).deadline == At(11));
  table.Drop(Id(3));
  REQUIRE(table.fenced().empty());
  table.Clear();
  REQUIRE(table.NextDeadline() == kNever);
}

}  // namespace evenkeel
