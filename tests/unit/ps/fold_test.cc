// A set that is summed while it comes: the order and the room (Fold), what a server says and asks (Server), and the
// bits (Shard).
#include "evenkeel/ps/fold.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <vector>

#include "evenkeel/core/random.h"
#include "unit/ps/harness.h"

namespace evenkeel::ps {
namespace {

TEST_CASE("whatever comes when, each bucket is summed in the set's order, and nothing lies where another still does",
          "[ps]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Rng rng(seed);
    const auto slots = static_cast<std::uint32_t>(2 + rng.Below(4));
    const auto buckets = static_cast<std::int32_t>(1 + rng.Below(4));
    std::vector<bool> held;
    for (std::int32_t b = 0; b < buckets; ++b) held.push_back(rng.Below(4) > 0);
    Fold fold;
    fold.Reset(slots, held);
    std::vector<FoldStep> stale;
    for (int round = 0; round < 3; ++round) {
      const auto positions = static_cast<std::int32_t>(1 + rng.Below(12));
      fold.Begin(positions);
      std::vector<std::vector<std::int32_t>> sums(static_cast<std::size_t>(buckets));
      std::map<std::pair<std::uint32_t, std::int32_t>, std::int32_t> lying;  // by slot and bucket: a position
      std::set<std::pair<std::int32_t, std::int32_t>> to_come;               // bucket, position
      for (std::int32_t b = 0; b < buckets; ++b) {
        for (std::int32_t p = 0; held[static_cast<std::size_t>(b)] && p < positions; ++p) to_come.emplace(b, p);
      }
      std::vector<std::pair<std::int32_t, std::int32_t>> writing;
      std::vector<FoldStep> adding;
      // Some rounds are given up in the middle, as when a worker is lost.
      const bool given_up = round < 2 && rng.Below(2) == 0;
      while (!(given_up && to_come.size() < static_cast<std::size_t>(positions) / 2)) {
        if (to_come.empty() && writing.empty() && adding.empty()) break;
        std::vector<std::pair<std::int32_t, std::int32_t>> free;
        for (const auto& [b, p] : to_come) {
          if (fold.Free(fold.SlotOf(p), b, p)) free.emplace_back(b, p);
        }
        const bool stuck = free.empty() && writing.empty() && adding.empty() && stale.empty();
        REQUIRE_FALSE(stuck);
        const auto dice = rng.Below(4);
        if (dice == 0 && !free.empty()) {
          const auto [b, p] = free[rng.Below(free.size())];
          const StageSlot slot = fold.SlotOf(p);
          REQUIRE(slot.value() < slots);
          // Slot 0 is for the first; elsewhere whoever lay there is in the sum already.
          REQUIRE((slot.value() > 0 || p == 0));
          REQUIRE_FALSE(lying.contains({slot.value(), b}));
          lying[{slot.value(), b}] = p;
          fold.BeginWrite(slot, b);
          to_come.erase({b, p});
          writing.emplace_back(b, p);
        } else if (dice == 1 && !writing.empty()) {
          const std::size_t which = rng.Below(writing.size());
          const auto [b, p] = writing[which];
          writing.erase(writing.begin() + static_cast<std::ptrdiff_t>(which));
          fold.EndWrite(fold.SlotOf(p), b);
          fold.Received(b, p);
          if (p == 0) sums[static_cast<std::size_t>(b)].push_back(0);
          if (auto step = fold.Next(b)) adding.push_back(*step);
        } else if (dice == 2 && !adding.empty()) {
          const FoldStep step = adding.front();
          adding.erase(adding.begin());
          for (std::int32_t p = step.first; p < step.first + step.count; ++p) {
            sums[static_cast<std::size_t>(step.bucket)].push_back(p);
            lying.erase({fold.SlotOf(p).value(), step.bucket});
          }
          REQUIRE(fold.Ended(step));
          if (auto next = fold.Next(step.bucket)) adding.push_back(*next);
        } else if (!stale.empty()) {
          REQUIRE_FALSE(fold.Ended(stale.back()));
          stale.pop_back();
        }
        REQUIRE(fold.Whole() == (to_come.empty() && writing.empty() && adding.empty()));
      }
      for (const FoldStep& step : adding) stale.push_back(step);
      for (const auto& [b, p] : writing) fold.EndWrite(fold.SlotOf(p), b);
      if (given_up) continue;
      for (std::int32_t b = 0; b < buckets; ++b) {
        const std::vector<std::int32_t>& sum = sums[static_cast<std::size_t>(b)];
        REQUIRE(sum.size() == (held[static_cast<std::size_t>(b)] ? static_cast<std::size_t>(positions) : 0));
        REQUIRE(std::is_sorted(sum.begin(), sum.end()));
      }
    }
  }
}

// Five workers, 10 to 14, and a server with room for three of their updates.
struct FiveWorkers : Conversation {
  // `members` of them are named to the server.
  explicit FiveWorkers(std::uint64_t members_named = 5, const OptimizerSpec& optimizer = {}) {
    Chief(Welcome{.incarnation = Incarnation(1), .job_id = kJob, .renew_ms = 1000});
    Configure configure{.server = ServerIndex(0), .servers = 1, .tensors = SmallModel(), .bucket_bytes = 4 << 20};
    configure.version = At(0);
    configure.stage_slots = 3;
    configure.optimizer = optimizer;
    Chief(configure);
    Members members{MembershipEpoch(2), true, {}, {}};
    for (std::uint64_t w = 10; w < 15; ++w) {
      if (w < 10 + members_named) members.admitted.push_back({Incarnation(w), absl::StrCat("worker:", w - 10)});
      updates.push_back(Update(w, 1));
    }
    Chief(members);
    for (std::uint64_t w = 10; w < 15; ++w) Worker(w, Hello{absl::StrCat("worker:", w - 10)});
  }
  void Offer(std::uint64_t worker) {
    Put(worker, {.update = Update(worker, 1), .bucket = 0, .offered = true}, 0);
    Close(worker, Update(worker, 1));
  }
  bool Asked(std::uint64_t worker) {
    const auto acks = ToWorker<StageAck>(worker);
    return std::any_of(acks.begin(), acks.end(), [](const StageAck& ack) { return !ack.missing.empty(); });
  }
  bool Send(std::uint64_t worker) { return Put(worker, {.update = Update(worker, 1), .bucket = 0}); }

  std::vector<UpdateId> updates;
};

TEST_CASE("a server with room for three updates takes the five of a step as room comes, and applies their sum",
          "[ps]") {
  FiveWorkers job;
  CHECK(job.Done<AllocateSlot>().size() == 3);
  CHECK(job.ToChief<MembersAck>().size() == 1);
  job.Chief(Seal{SetNumber(1), 0, job.updates, true});
  // The last comes first.
  job.Offer(14);
  CHECK_FALSE(job.Asked(14));
  CHECK_FALSE(job.Send(14));  // unasked: no room either
  for (std::uint64_t w : {12, 11}) {
    CHECK(job.Send(w));
    job.Close(w, Update(w, 1));
  }
  job.Offer(13);
  CHECK_FALSE(job.Asked(13));
  CHECK(job.ToChief<Staged>().size() == 2);
  CHECK(job.Done<FoldBucket>().empty());  // all wait for the first
  CHECK(job.Send(10));
  job.Close(10, Update(10, 1));
  REQUIRE(job.Done<FoldBucket>().size() == 1);
  CHECK(job.Done<FoldBucket>()[0].step.first == 1);
  CHECK(job.Done<FoldBucket>()[0].slots == absl::InlinedVector<StageSlot, 8>{StageSlot(1), StageSlot(2)});
  CHECK(job.Asked(13));
  CHECK(job.Asked(14));
  CHECK(job.ToChief<Sealed>().empty());
  CHECK(job.Send(14));
  CHECK(job.ToChief<Sealed>().empty());
  CHECK(job.Send(13));
  REQUIRE(job.ToChief<Sealed>().size() == 1);
  CHECK(job.ToChief<Staged>().size() == 5);
  job.Chief(job.Decide(1, 1, job.updates));
  REQUIRE(job.Done<ApplyDecision>().size() == 1);
  CHECK(job.Done<ApplyDecision>()[0].folded);
  CHECK(job.Done<ApplyDecision>()[0].slots == std::vector<StageSlot>{StageSlot(0)});
  CHECK_FALSE(job.finished);
}

TEST_CASE("where an update of a folded set is dropped, all others are asked for anew, and the sum begins anew",
          "[ps]") {
  FiveWorkers job;
  job.Chief(Seal{SetNumber(1), 0, job.updates, true});
  for (std::uint64_t w : {10, 11, 12}) {
    job.Send(w);
    job.Close(w, Update(w, 1));
  }
  for (std::uint64_t w : {13, 14}) job.Offer(w);
  // worker:3 writes, and is lost in the middle of it; worker:1's is in the sum already, and has to go too.
  auto late = job.Begin(13, {.update = Update(13, 1), .bucket = 0});
  REQUIRE(late);
  job.Chief(Members{MembershipEpoch(3), false, {}, {Incarnation(13), Incarnation(11)}});
  job.Forget();
  job.Chief(Drop{{Update(13, 1), Update(11, 1)}});
  const std::vector<UpdateId> rest{Update(10, 1), Update(12, 1), Update(14, 1)};
  job.Chief(Seal{SetNumber(1), 1, rest, true});
  CHECK(job.Asked(10));
  CHECK_FALSE(job.Asked(12));  // the lost one's bytes still come to its place
  CHECK(job.Asked(14));
  job.Take(job.server.EndStage(*late, true, job.now));
  CHECK(job.Asked(12));
  CHECK(job.ToChief<Staged>().empty());
  for (std::uint64_t w : {14, 12}) CHECK(job.Send(w));
  CHECK(job.ToChief<Sealed>().empty());
  CHECK(job.Send(10));
  REQUIRE(job.ToChief<Sealed>().size() == 1);
  CHECK(job.ToChief<Sealed>()[0].attempt == 1);
  REQUIRE(job.ToChief<Staged>().size() == 3);
  CHECK(job.ToChief<Staged>()[0].set_attempt == 1);
  job.Chief(job.Decide(1, 1, rest, 1));
  CHECK(job.Done<ApplyDecision>().size() == 1);
  CHECK_FALSE(job.finished);
}

TEST_CASE("a set that finds room is not folded: each update lies in a place of its own, also after one is dropped",
          "[ps]") {
  FiveWorkers job;
  const std::vector<UpdateId> three(job.updates.begin(), job.updates.begin() + 3);
  job.Chief(Seal{SetNumber(1), 0, three});
  job.Send(11);
  job.Close(11, Update(11, 1));
  job.Chief(Drop{{Update(10, 1)}});
  job.Chief(Seal{SetNumber(1), 1, {three[1], three[2]}});
  job.Send(12);
  job.Close(12, Update(12, 1));
  REQUIRE(job.ToChief<Sealed>().size() == 1);
  job.Chief(job.Decide(1, 1, {three[1], three[2]}, 1));
  REQUIRE(job.Done<ApplyDecision>().size() == 1);
  CHECK(job.Done<ApplyDecision>()[0].slots == std::vector<StageSlot>{StageSlot(1), StageSlot(2)});
  CHECK_FALSE(job.Done<ApplyDecision>()[0].folded);
}

TEST_CASE("there is room for a set whoever is a member by the time it is ordered", "[ps]") {
  FiveWorkers job(1);
  CHECK(job.Done<AllocateSlot>().size() == 1);
  // worker:1 has left before this server heard of it.
  job.Chief(Seal{SetNumber(1), 0, {Update(11, 1), Update(10, 1)}});
  CHECK(job.Done<AllocateSlot>().size() == 2);
  job.Chief(Drop{{Update(11, 1)}});
  job.Chief(Seal{SetNumber(1), 1, {Update(10, 1)}});
  CHECK(job.Send(10));
  job.Close(10, Update(10, 1));
  CHECK(job.ToChief<Sealed>().size() == 1);
  FiveWorkers folds(1);
  folds.Chief(Seal{SetNumber(1), 0, folds.updates, true});
  CHECK(folds.Done<AllocateSlot>().size() == 3);
}

TEST_CASE("a set that is ordered while another has the room ends the server", "[ps]") {
  for (const bool folded : {false, true}) {
    FiveWorkers job;
    const std::vector<UpdateId> two(job.updates.begin(), job.updates.begin() + 2);
    const std::vector<UpdateId> others(job.updates.begin() + 2, job.updates.begin() + 4);
    job.Chief(Seal{SetNumber(1), 0, folded ? job.updates : two, folded});
    job.Send(11);
    FiveWorkers gave_up = job;
    gave_up.Chief(Drop{folded ? job.updates : two});
    gave_up.Chief(Seal{SetNumber(2), 0, others});
    CHECK_FALSE(gave_up.finished);
    job.Chief(Seal{SetNumber(2), 0, others});
    REQUIRE(job.finished);
    CHECK(job.finished->code() == absl::StatusCode::kInternal);
  }
}

TEST_CASE("who waits for room that norms are computed from is asked once they are done", "[ps]") {
  OptimizerSpec clipped;
  clipped.clip_norm = 1;
  FiveWorkers job(5, clipped);
  job.Chief(Seal{SetNumber(1), 0, job.updates, true});
  for (std::uint64_t w : {10, 11, 12, 13}) {
    job.Send(w);
    job.Close(w, Update(w, 1));
  }
  job.Close(14, Update(14, 1));
  job.hold_memory = true;
  job.Send(14);
  REQUIRE(job.memory.size() == 1);
  const auto fold = std::get<FoldBucket>(job.memory.front());
  job.memory.clear();
  job.Take(job.server.OnFolded(fold.configuration, fold.step, job.now));
  REQUIRE(job.memory.size() == 1);
  REQUIRE(std::holds_alternative<ComputeNorms>(job.memory.front()));
  job.Forget();
  job.Chief(Members{MembershipEpoch(3), false, {}, {Incarnation(14)}});
  job.Chief(Drop{{Update(14, 1)}});
  job.Chief(Seal{SetNumber(1), 1, {job.updates.begin(), job.updates.begin() + 4}, true});
  CHECK_FALSE(job.Asked(10));
  job.hold_memory = false;
  job.DoMemory();
  CHECK(job.Asked(10));
}

TEST_CASE("what a server with shared room cannot obey is refused", "[ps]") {
  FiveWorkers job;
  job.Chief(Seal{SetNumber(1), 0, job.updates});  // five in three places, not folded
  REQUIRE(job.ToChief<Refuse>().size() == 1);
  CHECK(job.ToChief<Refuse>()[0].reason == RefuseReason::kMalformed);
  job.Chief(Seal{SetNumber(1), 0, job.updates, true});
  CHECK(job.Send(10));
  CHECK_FALSE(job.Put(10, {.update = Update(10, 1), .attempt = 1, .bucket = 0}));
  CHECK(job.Refused(10) == RefuseReason::kMalformed);
  Conversation own;
  own.SetUp();
  own.Chief(Seal{SetNumber(1), 0, {Update(10, 1), Update(11, 1)}, true});
  REQUIRE(own.ToChief<Refuse>().size() == 1);
  CHECK(own.ToChief<Refuse>()[0].reason == RefuseReason::kMalformed);
}

TEST_CASE("what comes before the order of its set is asked for once that is known", "[ps]") {
  for (const bool folded : {false, true}) {
    FiveWorkers job;
    CHECK_FALSE(job.Send(11));
    job.Close(11, Update(11, 1));
    CHECK_FALSE(job.Asked(11));
    const std::vector<UpdateId> two(job.updates.begin(), job.updates.begin() + 2);
    job.Chief(Seal{SetNumber(1), 0, folded ? job.updates : two, folded});
    CHECK(job.Asked(11));
    CHECK(job.Send(11));
    CHECK(job.ToChief<Staged>().size() == 1);
  }
}

TEST_CASE("an offer is asked for at once where each worker has a place of its own", "[ps]") {
  Conversation job;
  job.SetUp();
  job.Put(10, {.update = Update(10, 1), .bucket = 0, .offered = true}, 0);
  REQUIRE(job.ToWorker<StageAck>(10).size() == 1);
  CHECK(job.ToWorker<StageAck>(10)[0].missing == std::vector<std::int32_t>{0});
  CHECK(job.Put(10, {.update = Update(10, 1), .bucket = 0}));
}

}  // namespace
}  // namespace evenkeel::ps
