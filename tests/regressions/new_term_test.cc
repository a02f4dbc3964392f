// A chief whose machine lost the unsynced end of its log comes back, and servers have lived through it.
#include <catch2/catch.hpp>

#include "evenkeel/chief/chief.h"
#include "unit/ps/harness.h"

namespace evenkeel::ps {
namespace {

// The next chief welcomes the server, gives it a place and names the living.
void StartTermTwo(Conversation& talk, Members members) {
  talk.term = 2;
  talk.Chief(Welcome{.incarnation = Incarnation(1), .job_id = kJob, .renew_ms = 1000});
  Configure configure{.server = ServerIndex(0), .servers = 1, .tensors = SmallModel(), .bucket_bytes = 4 << 20};
  configure.version = At(0);
  talk.Chief(configure);
  talk.Chief(std::move(members));
}

}  // namespace

TEST_CASE("a place of a former term is not taken for this term's, though its numbers are the same", "[regressions]") {
  Conversation talk;
  talk.SetUp();
  talk.StageAll(10, Update(10, 1));
  talk.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  talk.Chief(talk.Decide(1, 1, {Update(10, 1)}));
  REQUIRE(talk.server.published() == At(1));
  talk.done.clear();
  StartTermTwo(talk, Members{MembershipEpoch(1), true, {}, {}});
  REQUIRE_FALSE(talk.done.empty());
  CHECK(std::holds_alternative<Initialise>(talk.done.front()));
  CHECK(talk.server.published() == At(0));
}

TEST_CASE("a new term's list of members counts, though its epoch is lower than the former term's", "[regressions]") {
  Conversation talk;
  talk.SetUp();
  talk.Chief(Members{MembershipEpoch(50), false, {}, {}});
  StartTermTwo(talk, Members{MembershipEpoch(1), true, {{Incarnation(20), "worker:0"}}, {}});
  talk.Worker(20, Hello{"worker:0"});
  talk.Worker(20, Pull{1, At(0), 1000});
  CHECK(talk.served.size() == 1);
}

TEST_CASE("a new term may give the number of a former term's dead again", "[regressions]") {
  Conversation talk;
  talk.SetUp();
  talk.Chief(Members{MembershipEpoch(3), false, {}, {Incarnation(10)}});
  // 11 is not among the living now; its number is given out later.
  StartTermTwo(talk, Members{MembershipEpoch(1), true, {{Incarnation(10), "worker:0"}}, {}});
  talk.Chief(Members{MembershipEpoch(2), false, {{Incarnation(11), "worker:5"}}, {}});
  for (std::uint64_t worker : {10, 11}) {
    talk.Worker(worker, Hello{"worker"});
    talk.Worker(worker, Pull{worker, At(0), 1000});
  }
  CHECK(talk.served.size() == 2);
}

TEST_CASE("a term's generation is above those that a lost end of the log may have held", "[regressions]") {
  // Terms 1 and 2 have been; of the latter nothing is left but the log's name.
  LogHistory history;
  history.last_generation = Generation(1);
  CHECK(history.NewGeneration(Term(3)) == Generation(3));
  history.last_generation = Generation(9);
  CHECK(history.NewGeneration(Term(3)) == Generation(10));
}

TEST_CASE("a lost fence does not set back the clock of a worker whose last update committed after it",
          "[regressions]") {
  // The fence is lost; the commit comes back from the servers, without a clock.
  LogHistory history;
  history.Add(AdmissionRecord{Incarnation(5), "worker:0", Rank(0), MembershipEpoch(1), 7, ""});
  CommitRecord commit;
  commit.decision.updates.resize(1);
  commit.decision.updates[0].update = Update(5, 1);
  commit.decision.updates[0].clock = 3;
  history.Add(commit);
  commit.decision.updates[0].clock = 0;
  history.Add(commit);
  CHECK(history.members.at(Incarnation(5)).clock == 4);
}

}  // namespace evenkeel::ps
