// Conversations with the chief: place, membership, sets, decisions, snapshots, the end.
#include <functional>

#include "unit/ps/harness.h"

namespace evenkeel::ps {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a set is reported sealed as soon as all its updates are complete", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1), Update(11, 1)}});
  c.StageAll(10, Update(10, 1));
  CHECK(c.ToChief<Sealed>().empty());
  c.StageAll(11, Update(11, 1));
  REQUIRE(c.ToChief<Sealed>().size() == 1);
  CHECK(c.ToChief<Sealed>()[0].norms.empty());
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1), Update(11, 1)}});
  CHECK(c.ToChief<Sealed>().size() == 2);  // a repeated order is answered as before
}

TEST_CASE("a higher attempt replaces the set, a lower one is ignored", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1), Update(11, 1)}});
  c.Chief(Drop{{Update(11, 1)}});
  CHECK(c.ToChief<Sealed>().empty());
  c.Chief(Seal{SetNumber(1), 1, {Update(10, 1)}});
  REQUIRE(c.ToChief<Sealed>().size() == 1);
  CHECK(c.ToChief<Sealed>()[0].attempt == 1);
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1), Update(11, 1)}});
  c.Chief(c.Decide(1, 1, {Update(10, 1)}, 1));
  CHECK_FALSE(c.finished);
  CHECK(c.ToChief<Applied>().size() == 1);
}

TEST_CASE("with clipping by norm the sealed report waits for the norms", "[ps]") {
  Conversation c;
  OptimizerSpec optimizer;
  optimizer.clip_norm = 1;
  c.SetUp(optimizer);
  c.StageAll(10, Update(10, 1));
  c.hold_memory = true;
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  CHECK(c.ToChief<Sealed>().empty());
  c.DoMemory();
  REQUIRE(c.ToChief<Sealed>().size() == 1);
  REQUIRE(c.ToChief<Sealed>()[0].norms.size() == 1);
  CHECK(c.ToChief<Sealed>()[0].norms[0].squared_sum == 2.5);
}

TEST_CASE("norms of a set that was dropped meanwhile are not reported, and its slot is held until they are done",
          "[ps]") {
  Conversation c;
  OptimizerSpec optimizer;
  optimizer.clip_norm = 1;
  c.SetUp(optimizer);
  c.StageAll(10, Update(10, 1));
  c.hold_memory = true;
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(Drop{{Update(10, 1)}});
  CHECK_FALSE(c.Put(10, {.update = Update(10, 2), .bucket = 0}));
  c.hold_memory = false;
  c.DoMemory();
  CHECK(c.ToChief<Sealed>().empty());
  CHECK(c.Put(10, {.update = Update(10, 2), .bucket = 0}));
}

TEST_CASE("decisions apply in order; repeated ones are answered, future ones wait", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.StageAll(11, Update(11, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(Seal{SetNumber(2), 0, {Update(11, 1)}});
  Decision first = c.Decide(1, 1, {Update(10, 1)});
  Decision second = c.Decide(2, 2, {Update(11, 1)});
  c.Chief(second);
  CHECK(c.ToChief<Applied>().empty());
  c.Chief(first);
  auto applied = c.ToChief<Applied>();
  REQUIRE(applied.size() == 2);
  CHECK(applied[0].version == At(1));
  CHECK(applied[0].hash == first.hash);
  CHECK(applied[1].version == At(2));
  CHECK(c.server.kept_decisions().size() == 2);
  c.Chief(first);
  CHECK(c.ToChief<Applied>().size() == 3);
  std::size_t applications = 0;
  for (const Action& action : c.done) applications += std::holds_alternative<ApplyDecision>(action) ? 1 : 0;
  CHECK(applications == 2);
  c.Chief(CheckpointDurable{At(1)});
  REQUIRE(c.server.kept_decisions().size() == 1);
  CHECK(c.server.kept_decisions()[0].version == At(2));
}

TEST_CASE("what applying measured is told, and again after a reconnect", "[ps]") {
  Conversation c;
  c.squared_sums = {4, 9, 25};
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(c.Decide(1, 1, {Update(10, 1)}));
  c.Chief(Welcome{.incarnation = Incarnation(1), .job_id = kJob, .renew_ms = 1000});
  const auto applied = c.ToChief<Applied>();
  REQUIRE(applied.size() == 2);
  CHECK(applied[0].squared_sums == c.squared_sums);
  CHECK(applied[1].squared_sums == c.squared_sums);
}

TEST_CASE("a decision that differs from the sealed set ends the server with the difference", "[ps]") {
  struct Row {
    const char* what;
    std::function<void(Decision&)> change;
    const char* message;
  };
  auto rehash = [](Decision& d) { d.hash = HashDecision(d); };
  const std::vector<Row> rows = {
      {"other updates",
       [&](Decision& d) {
         d.updates = {CommittedUpdate{.update = Update(10, 1)}};
         rehash(d);
       },
       "it decides t1.i10.s1"},
      {"other order",
       [&](Decision& d) {
         std::swap(d.updates[0], d.updates[1]);
         rehash(d);
       },
       "it decides t1.i11.s1"},
      {"other attempt",
       [&](Decision& d) {
         d.attempt = 1;
         rehash(d);
       },
       "attempt 1, sealed here is attempt 0"},
      {"unknown set",
       [&](Decision& d) {
         d.set = SetNumber(9);
         rehash(d);
       },
       "never sealed"},
      {"no samples",
       [&](Decision& d) {
         d.samples = 0;
         rehash(d);
       },
       "0 samples"},
      {"a wrong hash", [&](Decision& d) { d.hash ^= 1; }, "hash does not match"},
  };
  for (const Row& row : rows) {
    INFO(row.what);
    Conversation c;
    c.SetUp();
    c.StageAll(10, Update(10, 1));
    c.StageAll(11, Update(11, 1));
    c.Chief(Seal{SetNumber(1), 0, {Update(10, 1), Update(11, 1)}});
    Decision decision = c.Decide(1, 1, {Update(10, 1), Update(11, 1)});
    row.change(decision);
    c.Chief(decision);
    REQUIRE(c.finished);
    CHECK_THAT(std::string(c.finished->message()), Contains(row.message));
    CHECK(c.server.published() == At(0));
    CHECK(c.ToChief<Leave>().size() == 1);
    c.Worker(10, Pull{.request = 1, .at_least = At(0)});
    CHECK(c.served.empty());
  }
}

TEST_CASE("a broken chain of hashes ends the server", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.StageAll(11, Update(11, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(Seal{SetNumber(2), 0, {Update(11, 1)}});
  c.Chief(c.Decide(1, 1, {Update(10, 1)}));
  c.chain ^= 1;
  c.Chief(c.Decide(2, 2, {Update(11, 1)}));
  REQUIRE(c.finished);
  CHECK_THAT(std::string(c.finished->message()), Contains("it follows hash"));
}

TEST_CASE("two decisions for one commit end the server", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(c.Decide(1, 1, {Update(10, 1)}));
  Decision other = c.Decide(1, 2, {Update(11, 1)});
  c.Chief(other);
  REQUIRE(c.finished);
}

TEST_CASE("a fenced worker's complete update stays, an incomplete one is void, and the ack comes last", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  auto write = c.Begin(11, {.update = Update(11, 1), .bucket = 0});
  c.Chief(Members{MembershipEpoch(3), false, {}, {Incarnation(10), Incarnation(11)}});
  CHECK(c.ToChief<MembersAck>().back().epoch == MembershipEpoch(3));
  c.Take(c.server.EndStage(*write, true, c.now));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1), Update(11, 1)}});
  CHECK(c.ToChief<Sealed>().empty());
  c.Chief(Drop{{Update(11, 1)}});
  c.Chief(Seal{SetNumber(1), 1, {Update(10, 1)}});
  CHECK(c.ToChief<Sealed>().size() == 1);
  c.Chief(c.Decide(1, 1, {Update(10, 1)}, 1));
  CHECK(c.server.published() == At(1));
}

TEST_CASE("the slots of the dead are given to those who come", "[ps]") {
  Conversation c;
  c.SetUp();
  for (std::uint64_t life = 12; life < 40; ++life) {
    c.Chief(Members{MembershipEpoch(life), false, {{Incarnation(life), "worker:0"}}, {Incarnation(life - 1)}});
    c.Worker(life, Hello{"worker:0"});
    REQUIRE(c.Put(life, {.update = Update(life, 1), .bucket = 0}));
  }
  std::size_t allocations = 0;
  for (const Action& action : c.done) allocations += std::holds_alternative<AllocateSlot>(action) ? 1 : 0;
  CHECK(allocations == 2);
}

TEST_CASE("a new worker's membership is acknowledged once its slot is there", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Forget();
  c.hold_memory = true;
  c.Chief(Members{MembershipEpoch(3), false, {{Incarnation(12), "worker:2"}}, {}});
  CHECK(c.ToChief<MembersAck>().empty());
  c.DoMemory();
  CHECK(c.ToChief<MembersAck>().size() == 1);
  c.Chief(Members{MembershipEpoch(3), false, {{Incarnation(12), "worker:2"}}, {}});
  CHECK(c.ToChief<MembersAck>().size() == 2);
}

TEST_CASE("a full list of members fences those it leaves out", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Chief(Members{MembershipEpoch(5), true, {{Incarnation(11), "worker:1"}}, {}});
  CHECK(c.closed == std::vector<std::uint64_t>{10});
  CHECK(c.Put(11, {.update = Update(11, 1), .bucket = 0}));
}

TEST_CASE("after a reconnect the chief is told again what is staged, sealed and applied, before the ack", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(c.Decide(1, 1, {Update(10, 1)}));
  c.StageAll(10, Update(10, 2));
  c.StageAll(11, Update(11, 1));
  c.Chief(Seal{SetNumber(2), 0, {Update(11, 1)}});
  c.Forget();
  c.Chief(Members{MembershipEpoch(2), true, {{Incarnation(10), "worker:0"}, {Incarnation(11), "worker:1"}}, {}});
  std::vector<std::string> names;
  for (const Message& message : c.chief) names.emplace_back(NameOf(message.body));
  CHECK(names == std::vector<std::string>{"Staged", "Staged", "Sealed", "Applied", "MembersAck"});
}

TEST_CASE("a lower term is refused; one that goes on voids what is undecided", "[ps]") {
  Conversation c;
  c.term = 2;
  c.SetUp();
  c.StageAll(10, Update(10, 1, 2));
  c.Forget();
  c.term = 1;
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1, 2)}});
  REQUIRE(c.ToChief<Refuse>().size() == 1);
  CHECK(c.ToChief<Refuse>()[0].reason == RefuseReason::kStaleTerm);
  c.term = 3;
  CHECK_FALSE(c.Put(10, {.update = Update(10, 0, 3), .bucket = 0}));
  CHECK(c.ToWorker<Refuse>(10).back().reason == RefuseReason::kRetry);  // the new chief has not named the living yet
  c.Chief(Members{MembershipEpoch(1), true, {{Incarnation(10), "worker:0"}}, {}});
  c.Chief(Continue{At(0)});
  REQUIRE(c.ToChief<Configured>().size() == 1);
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1, 2)}});
  CHECK(c.ToChief<Sealed>().empty());
  CHECK(c.Put(10, {.update = Update(10, 0, 3), .bucket = 0}));  // sequences count anew within a term
}

TEST_CASE("a restarted chief decides again what the former one had decided and this server not heard", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  REQUIRE(c.ToChief<Sealed>().size() == 1);
  const Decision decision = c.Decide(1, 1, {Update(10, 1)});
  CHECK(c.server.Holds().decided == At(0));
  CHECK(c.server.Holds().hash == 0);
  c.term = 2;
  c.Chief(Welcome{.incarnation = Incarnation(1), .job_id = kJob, .renew_ms = 1000});
  c.Chief(Members{MembershipEpoch(1), true, {{Incarnation(10), "worker:0"}}, {}});
  c.Chief(decision);
  c.Chief(Continue{At(1)});
  REQUIRE(c.ToChief<Configured>().size() == 2);
  CHECK(c.ToChief<Configured>().back().version == At(1));
  CHECK(c.server.published() == At(1));
  CHECK(c.server.Holds().decided == At(1));
  CHECK(c.server.Holds().hash == decision.hash);
  c.Forget();
  c.Chief(ReadDecisions{At(0)});
  REQUIRE(c.ToChief<KeptDecisions>().size() == 1);
  CHECK(c.ToChief<KeptDecisions>()[0].decisions == std::vector<Decision>{decision});
}

TEST_CASE("a server that holds another decision than the chief goes on from stops", "[ps]") {
  Conversation c;
  c.SetUp();
  c.term = 2;
  c.Chief(Continue{At(1)});
  REQUIRE(c.finished);
  CHECK_THAT(std::string(c.finished->message()), Catch::Contains("goes on from"));
}

TEST_CASE("going on waits for the snapshot of the former chief", "[ps]") {
  Conversation c;
  c.SetUp();
  c.Chief(Snapshot{At(0), "f", "g"});
  c.Forget();
  c.term = 2;
  c.Chief(Continue{At(0)});
  CHECK(c.ToChief<Configured>().empty());
  c.Take(c.server.OnSnapshotWritten(SnapshotDone{.version = At(0), .file = "g"}, c.now));
  CHECK(c.ToChief<Configured>().size() == 1);
}

TEST_CASE("a welcome to another job ends the server as refused", "[ps]") {
  Conversation c;
  c.SetUp();
  Envelope foreign = c.FromChief();
  foreign.job_id = std::string(32, 'c');
  c.Take(c.server.OnChiefMessage({foreign, Seal{SetNumber(1), 0, {Update(10, 1)}}}, c.now));
  CHECK(c.ToChief<Refuse>().back().reason == RefuseReason::kForeignJob);
  CHECK_FALSE(c.finished);
  c.Take(c.server.OnChiefMessage({foreign, Welcome{.job_id = foreign.job_id}}, c.now));
  REQUIRE(c.finished);
  CHECK(c.finished->code() == absl::StatusCode::kPermissionDenied);
}

TEST_CASE("a refusal of another job's chief begins no term here", "[ps]") {
  Conversation c;
  c.SetUp();
  Envelope foreign = c.FromChief();
  foreign.job_id = std::string(32, 'c');
  foreign.term = Term(9);
  c.Take(c.server.OnChiefMessage({foreign, Refuse{RefuseReason::kForeignJob, "this is another job", {}}}, c.now));
  REQUIRE(c.finished);
  CHECK(c.finished->code() == absl::StatusCode::kPermissionDenied);
  CHECK(c.server.MakeEnvelope().term == Term(c.term));
}

TEST_CASE("a refused join is tried again or ends the server", "[ps]") {
  Conversation retry;
  retry.Chief(Refuse{RefuseReason::kRetry, "not yet", {}});
  CHECK(retry.rejoins.size() == 1);
  CHECK_FALSE(retry.finished);
  Conversation other;
  other.Chief(Refuse{RefuseReason::kOtherExperiment, "train.seed differs", {}});
  REQUIRE(other.finished);
  CHECK(other.finished->code() == absl::StatusCode::kPermissionDenied);
  CHECK_FALSE(other.server.fenced());
  CHECK_THAT(std::string(other.finished->message()), Contains("train.seed differs"));
}

TEST_CASE("a snapshot begins after its decision and before the next", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.StageAll(11, Update(11, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(Seal{SetNumber(2), 0, {Update(11, 1)}});
  c.hold_memory = true;
  Decision first = c.Decide(1, 1, {Update(10, 1)});
  Decision second = c.Decide(2, 2, {Update(11, 1)});
  c.Chief(second);
  c.Chief(Snapshot{At(1), "folder", "file"});  // overtook its decision
  c.Chief(first);
  REQUIRE(c.memory.size() == 3);
  CHECK(std::holds_alternative<ApplyDecision>(c.memory[0]));
  CHECK(std::holds_alternative<StartSnapshot>(c.memory[1]));
  CHECK(std::holds_alternative<ApplyDecision>(c.memory[2]));
  c.DoMemory();
  c.Take(c.server.OnSnapshotWritten({.version = At(1), .file = "file", .bytes = 7}, c.now));
  REQUIRE(c.ToChief<SnapshotDone>().size() == 1);
  c.Chief(Snapshot{At(1), "folder", "file"});
  REQUIRE(c.ToChief<SnapshotDone>().size() == 2);  // answered as before
  CHECK(c.ToChief<SnapshotDone>()[1].bytes == 7);
  c.Chief(Snapshot{At(0), "folder", "file"});
  CHECK_THAT(c.ToChief<SnapshotDone>().back().error, Contains("moved on"));
}

TEST_CASE("asked again for a snapshot that failed, a server that has moved on says why it failed", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(Snapshot{At(0), "folder", "file"});
  c.Take(c.server.OnSnapshotWritten({.version = At(0), .file = "file", .error = "no space is left"}, c.now));
  c.Chief(c.Decide(1, 1, {Update(10, 1)}));
  c.Chief(Snapshot{At(0), "folder", "file"});
  REQUIRE(c.ToChief<SnapshotDone>().size() == 2);
  CHECK(c.ToChief<SnapshotDone>()[1].error == "no space is left");
}

TEST_CASE("a new generation voids stages, pulls and decisions, and members survive", "[ps]") {
  Conversation c;
  c.SetUp();
  c.StageAll(10, Update(10, 1));
  c.Worker(11, Pull{.request = 3, .at_least = At(1), .deadline_ms = 1000});
  auto write = c.Begin(11, {.update = Update(11, 1), .bucket = 0});
  c.Forget();
  c.generation = 2;
  Configure configure{.server = ServerIndex(0), .servers = 1, .tensors = SmallModel(), .bucket_bytes = 4 << 20};
  configure.restore = true;
  configure.checkpoint = At(0);
  configure.version = At(0, 2);
  c.Chief(configure);
  REQUIRE(c.ToChief<Configured>().size() == 1);
  CHECK(c.ToChief<Configured>()[0].version == At(0, 2));
  CHECK(c.ToChief<Configured>()[0].owned_floats == 64);
  CHECK(c.Refused(11) == RefuseReason::kStaleGeneration);
  c.Take(c.server.EndStage(*write, true, c.now));  // of the former memory
  c.Close(11, Update(11, 1));
  CHECK(c.ToChief<Staged>().empty());
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  CHECK(c.ToChief<Sealed>().empty());
  CHECK(c.Put(10, {.update = Update(10, 2), .bucket = 0}));
  c.Chief(configure);
  CHECK(c.ToChief<Configured>().size() == 2);
}

TEST_CASE("a server that owns nothing says so and takes part", "[ps]") {
  Conversation c;
  c.Chief(Welcome{.incarnation = Incarnation(1), .job_id = kJob});
  Configure configure{.server = ServerIndex(0), .servers = 3, .tensors = SmallModel(16), .bucket_bytes = 4 << 20};
  configure.version = At(0);
  c.Chief(configure);
  CHECK_THAT(c.log, Contains("owns nothing"));
  c.Chief(Members{MembershipEpoch(1), true, {{Incarnation(10), "worker:0"}}, {}});
  c.Worker(10, Hello{"worker:0"});
  c.Close(10, Update(10, 1));
  c.Chief(Seal{SetNumber(1), 0, {Update(10, 1)}});
  c.Chief(c.Decide(1, 1, {Update(10, 1)}));
  CHECK(c.ToChief<Applied>().size() == 1);
}

TEST_CASE("the job's end ends the server, well or badly", "[ps]") {
  Conversation good;
  good.SetUp();
  good.Chief(JobEnd{true, "finished", ""});
  REQUIRE(good.finished);
  CHECK(good.finished->ok());
  CHECK(good.ToChief<Leave>().size() == 1);
  Conversation bad;
  bad.SetUp();
  bad.Chief(JobEnd{false, "failed", "loss is NaN"});
  REQUIRE(bad.finished);
  CHECK(bad.finished->code() == absl::StatusCode::kAborted);
  CHECK_THAT(std::string(bad.finished->message()), Contains("loss is NaN"));
}

TEST_CASE("memory that cannot be had ends the server with the cause", "[ps]") {
  Conversation c;
  c.hold_memory = true;
  c.Chief(Welcome{.incarnation = Incarnation(1), .job_id = kJob});
  Configure configure{.server = ServerIndex(0), .servers = 1, .tensors = SmallModel(), .bucket_bytes = 4 << 20};
  configure.version = At(0);
  c.Chief(configure);
  c.Take(c.server.OnConfigured(At(0), absl::ResourceExhaustedError("256 bytes"), c.now));
  REQUIRE(c.finished);
  CHECK(c.finished->code() == absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace evenkeel::ps
