// Workers that come and go in good order: leaves, orders to leave, second lives, places.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <variant>

#include "absl/strings/match.h"
#include "unit/chief/fake_cluster.h"

namespace evenkeel {
namespace {

bool Said(const FakeCluster& cluster, const std::string& text) {
  return std::any_of(cluster.lines().begin(), cluster.lines().end(),
                     [&](const std::string& line) { return absl::StrContains(line, text); });
}

template <class T>
std::vector<T> All(const std::vector<Message>& messages) {
  std::vector<T> found;
  for (const Message& message : messages) {
    if (const auto* body = std::get_if<T>(&message.body)) found.push_back(*body);
  }
  return found;
}

std::set<Incarnation> Holders(const CommitRecord& commit) {
  std::set<Incarnation> holders;
  for (const CommittedUpdate& update : commit.decision.updates) holders.insert(update.update.incarnation);
  return holders;
}

// As FakeCluster's workers join.
Join SecondLife(const std::string& name, std::uint64_t nonce, Incarnation former) {
  Join join;
  join.name = name;
  join.nonce = nonce;
  join.samples = 100000;
  join.data_fingerprint = "0123456789abcdef";
  TensorSpec tensor;
  tensor.name = "dense_0/weight";
  tensor.shape = Shape{100, 1};
  join.tensors = {tensor};
  join.former = former;
  return join;
}

}  // namespace

// speeds are in any unit, so that 1 would say nothing.
TEST_CASE("a worker that no cluster file lists counts as the mean of the speeds that are given", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "batching.mode=static batching.speeds=[100,100,400] train.global_batch_size=600";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 4; });
  cluster.StartWorker("spare");
  cluster.RunUntil([&] { return cluster.commits().back().decision.updates.size() == 4; });
  std::vector<std::int64_t> batches;
  const std::vector<CommitRecord> commits = cluster.commits();
  for (const CommittedUpdate& update : commits.back().decision.updates) {
    batches.push_back(TotalSize(update.positions));
  }
  CHECK(batches == std::vector<std::int64_t>{75, 75, 300, 150});
}

TEST_CASE("after the end the chief is awaited by those who have not heard, as long as their leases last", "[chief]") {
  FakeClusterOptions options;
  options.samples = 600;
  options.overrides = "membership.lease_ms=2000 membership.renew_ms=500 train.global_batch_size=120";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 4; });
  const bool lost = GENERATE(false, true);
  if (lost) {
    cluster.RunUntil([&] { return cluster.manifests().size() == 2; });  // all has been committed
    cluster.PauseWorker(1, true);
  }
  REQUIRE(cluster.Run());
  REQUIRE(cluster.end()->summary.status == "finished");
  REQUIRE(cluster.chief().AwaitsUntil() > cluster.now());
  REQUIRE(cluster.chief().AwaitsUntil() <= cluster.now() + std::chrono::seconds(2));
  for (int i = 0; i < 1000; ++i) cluster.StepOnce();
  if (lost) {
    REQUIRE(cluster.chief().AwaitsUntil() != TimePoint::min());
    cluster.PauseWorker(1, false);
    for (int i = 0; i < 1000; ++i) cluster.StepOnce();
  }
  REQUIRE(cluster.chief().AwaitsUntil() == TimePoint::min());
}

TEST_CASE("a worker that has fetched the experiment just before the end is awaited and told", "[chief]") {
  FakeClusterOptions options;
  options.samples = 600;
  options.overrides = "membership.lease_ms=2000 membership.renew_ms=500 train.global_batch_size=120";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 4; });
  cluster.chief().OnMessage(SessionId(999), Message{{}, ExperimentRequest{"late"}}, cluster.now());
  const TimePoint asked = cluster.now();
  REQUIRE(cluster.Run());
  for (int i = 0; i < 500; ++i) cluster.StepOnce();
  REQUIRE(cluster.chief().AwaitsUntil() == asked + std::chrono::seconds(2));
  const bool comes = GENERATE(true, false);
  if (!comes) return;  // and is awaited no longer than that
  cluster.StartWorker("late");
  for (int i = 0; i < 500; ++i) cluster.StepOnce();
  REQUIRE(cluster.chief().AwaitsUntil() == TimePoint::min());
}

TEST_CASE("a job that runs out of workers fails with all that it has trained in a checkpoint", "[chief]") {
  FakeClusterOptions options;
  options.samples = 60000;
  options.workers = 2;
  options.overrides =
      "membership.workers_min=2 membership.lease_ms=2000 membership.renew_ms=500 membership.join_timeout_ms=4000 "
      "train.global_batch_size=120";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 30; });
  cluster.KillWorker(1);
  REQUIRE(cluster.Run());
  REQUIRE(cluster.end()->status.code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(cluster.end()->summary.status == "failed");
  REQUIRE(cluster.manifests().back().version == cluster.surviving_commits().back().decision.version);
}

TEST_CASE("a worker that says that it will leave finishes its ticket, gets no other, and no step loses a sample",
          "[chief]") {
  const std::string mode = GENERATE("train.sync.mode=bsp", "train.sync.mode=asp", "train.sync.mode=ssp",
                                    "train.sync.mode=bsp batching.mode=model");
  FakeClusterOptions options;
  options.samples = 6000;
  options.seed = GENERATE(1u, 2u, 3u);
  options.overrides = mode + " train.global_batch_size=120";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 6; });
  cluster.Inject(1, Message{cluster.EnvelopeOf(1), Leave{"told to", true}});
  cluster.RunUntil([&] { return Said(cluster, "worker:1 leaves"); });
  REQUIRE(Said(cluster, "worker:1 leaves"));
  const std::size_t told = cluster.commits().size();
  const Incarnation leaver = cluster.EnvelopeOf(1).sender;
  cluster.RunUntil([&] { return cluster.commits().size() == told + 10; });
  // The one it held, no more; in asp another worker's may commit first.
  std::int64_t more = 0;
  for (std::size_t i = told; i < told + 10; ++i) more += Holders(cluster.commits()[i]).contains(leaver);
  CHECK(more <= 1);
  REQUIRE_FALSE(Holders(cluster.commits()[told + 9]).contains(leaver));
  cluster.LeaveWorker(1);
  REQUIRE(cluster.Run());
  CHECK(Said(cluster, "worker:1 left: told to"));
  CHECK(cluster.end()->summary.status == "finished");
  CHECK(cluster.end()->summary.dropped_updates == 0);
  CHECK(cluster.end()->summary.samples_per_epoch == std::vector<std::int64_t>{6000});
  if (!absl::StrContains(mode, "bsp")) return;
  for (const CommitRecord& commit : cluster.commits()) CHECK(commit.decision.samples == 120);
}

TEST_CASE("with a leaver fewer than workers_min are left: its update still commits, then the job waits", "[chief]") {
  FakeClusterOptions options;
  options.samples = 6000;
  options.workers = 2;
  options.overrides = "membership.workers_min=2";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 5; });
  cluster.Inject(1, Message{cluster.EnvelopeOf(1), Leave{"told to", true}});
  cluster.RunUntil([&] { return Said(cluster, "waiting for workers: 1 of at least 2"); });
  const TimePoint since = cluster.now();
  cluster.RunUntil([&] { return cluster.now() > since + std::chrono::seconds(10); });
  const std::size_t waiting = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.now() > since + std::chrono::seconds(20); });
  CHECK(cluster.commits().size() == waiting);
  cluster.StartWorker("spare");
  REQUIRE(cluster.Run());
  CHECK(cluster.end()->summary.dropped_updates == 0);
  const auto told = All<Waiting>(cluster.sent_to(0));
  const auto waits = std::find_if(told.begin(), told.end(),
                                  [](const Waiting& w) { return absl::StrContains(w.for_whom, "1 of at least 2"); });
  REQUIRE(waits != told.end());
  CHECK(waits->deadline_ms > 0);
}

TEST_CASE("anyone may ask for the experiment and order a drain, whatever job it is of", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 3; });
  Envelope foreign;
  foreign.job_id = "ffffffffffffffffffffffffffffffff";
  auto ask = [&](Body body) {
    const std::size_t before = cluster.sent_to(0).size();
    cluster.Inject(0, Message{foreign, std::move(body)});
    cluster.RunUntil([&] {
      const std::vector<Message> sent = cluster.sent_to(0);
      return std::any_of(sent.begin() + static_cast<std::ptrdiff_t>(before), sent.end(), [](const Message& m) {
        return std::holds_alternative<ExperimentReply>(m.body) || std::holds_alternative<OrderReply>(m.body);
      });
    });
  };
  ask(ExperimentRequest{});
  const auto replies = All<ExperimentReply>(cluster.sent_to(0));
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].job_id == "00000000000000000000000000000001");
  CHECK(replies[0].spec_hash == cluster.EnvelopeOf(0).spec_hash);
  CHECK(ParseExperiment(replies[0].experiment_json, "reply", {})->spec_hash == replies[0].spec_hash);

  ask(Drain{"worker:9"});
  ask(Drain{"worker:2"});
  ask(Drain{"ps:0"});
  const auto orders = All<OrderReply>(cluster.sent_to(0));
  REQUIRE(orders.size() == 3);
  CHECK_FALSE(orders[0].accepted);
  CHECK(orders[0].unknown);
  CHECK(absl::StrContains(orders[0].message, "worker:0, worker:1, worker:2, ps:0, ps:1"));
  CHECK(orders[1].accepted);
  CHECK_FALSE(orders[2].unknown);
  cluster.RunUntil([&] { return !All<LeaveNow>(cluster.sent_to(2)).empty(); });
  CHECK(All<LeaveNow>(cluster.sent_to(2)).size() == 1);
  CHECK(All<LeaveNow>(cluster.sent_to(1)).empty());
  CHECK(cluster.Refusal(0).empty());
}

TEST_CASE("a worker makes itself ready for the batch that its first ticket has", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "train.global_batch_size=101";  // 34, 34, 33; then 51, 50
  FakeCluster cluster(options);
  const auto check = [&](int worker) {
    cluster.RunUntil([&] { return !All<Ticket>(cluster.sent_to(worker)).empty(); });
    const std::int64_t expected = All<Welcome>(cluster.sent_to(worker)).front().likely_samples;
    CHECK(expected == TotalSize(All<Ticket>(cluster.sent_to(worker)).front().positions));
  };
  for (int worker = 0; worker < 3; ++worker) check(worker);
  cluster.RunUntil([&] { return cluster.commits().size() == 4; });
  const int leaving = GENERATE(0, 1, 2);
  cluster.LeaveWorker(leaving);
  cluster.RunUntil([&] { return cluster.commits().back().decision.updates.size() == 2; });
  check(cluster.StartWorker("another"));
}

TEST_CASE("a worker is told the batches that it has where one leaves or joins, and has them then", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "train.global_batch_size=101";  // 34, 34, 33; with four 26 and 25, with two 51 and 50
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 4; });
  std::map<int, std::set<std::int64_t>> ready;
  for (int worker = 0; worker < 3; ++worker) {
    const Welcome welcome = All<Welcome>(cluster.sent_to(worker)).front();
    ready[worker].insert(welcome.likely_samples);
    ready[worker].insert(welcome.likely_later.begin(), welcome.likely_later.end());
    CHECK(ready[worker] == std::set<std::int64_t>{25, 26, 33, 34, 50, 51});
    CHECK(std::count(welcome.likely_later.begin(), welcome.likely_later.end(), welcome.likely_samples) == 0);
  }
  cluster.LeaveWorker(2);
  cluster.RunUntil([&] { return cluster.commits().back().decision.updates.size() == 2; });
  for (int worker = 0; worker < 2; ++worker) {
    CHECK(ready[worker].contains(TotalSize(All<Ticket>(cluster.sent_to(worker)).back().positions)));
  }
}

TEST_CASE("a worker that joins in bsp makes nobody read input for nothing, and reads its own ahead", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.seed = GENERATE(1u, 2u, 3u);
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 4; });
  const int joiner = cluster.StartWorker("another");
  cluster.RunUntil([&] { return cluster.commits().back().decision.updates.size() == 4; });
  const auto given = [&](int worker) { return All<Ticket>(cluster.sent_to(worker)); };
  for (int worker = 0; worker < 3; ++worker) {
    const std::vector<Ticket> tickets = given(worker);
    // All but the job's first were planned, and each of those was bound.
    CHECK(std::count_if(tickets.begin(), tickets.end(), [](const Ticket& t) { return t.bound; }) == 1);
    CHECK(All<Bind>(cluster.sent_to(worker)).size() + 2 == tickets.size());
  }
  REQUIRE_FALSE(given(joiner).empty());
  const Ticket first = given(joiner).front();
  CHECK_FALSE(first.bound);
  const std::vector<Bind> bound = All<Bind>(cluster.sent_to(joiner));
  REQUIRE_FALSE(bound.empty());
  CHECK(bound.front().update == first.update);
  CHECK(bound.front().version == first.version);
}

TEST_CASE("a worker that leaves in bsp has the others read for the next step while the one under way goes on",
          "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.seed = GENERATE(1u, 2u, 3u);
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 4; });
  cluster.Inject(1, Message{cluster.EnvelopeOf(1), Leave{"told to", true}});
  cluster.RunUntil([&] { return cluster.commits().back().decision.updates.size() == 2; });
  REQUIRE(cluster.commits().back().decision.updates.size() == 2);
  for (int worker : {0, 2}) {
    const std::vector<Ticket> tickets = All<Ticket>(cluster.sent_to(worker));
    // No step but the job's first began with a ticket of which nobody had heard.
    CHECK(std::count_if(tickets.begin(), tickets.end(), [](const Ticket& t) { return t.bound; }) == 1);
  }
  // Its goodbye changes nothing any more: of all tickets one was replaced, and one is ahead of its step.
  const std::size_t so_far = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() == so_far + 4; });
  for (int worker : {0, 2}) {
    CHECK(All<Bind>(cluster.sent_to(worker)).size() + 3 >= All<Ticket>(cluster.sent_to(worker)).size());
  }
}

TEST_CASE("a worker that is lost in bsp has the others read for the next step before its own is over", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "membership.lease_ms=2000 membership.renew_ms=500";
  options.seed = GENERATE(1u, 2u, 3u);
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 4; });
  cluster.KillWorker(1);
  cluster.RunUntil([&] { return cluster.commits().back().decision.updates.size() == 2; });
  const std::size_t so_far = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() == so_far + 4; });
  for (int worker : {0, 2}) {
    const std::vector<Ticket> tickets = All<Ticket>(cluster.sent_to(worker));
    CHECK(std::count_if(tickets.begin(), tickets.end(), [](const Ticket& t) { return t.bound; }) == 1);
  }
}

TEST_CASE("a fenced process takes its name again as a new incarnation, but not from another process", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "membership.lease_ms=2000 membership.renew_ms=500";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 3; });
  const Incarnation former = cluster.EnvelopeOf(2).sender;
  cluster.PauseWorker(2, true);
  cluster.RunUntil([&] { return Said(cluster, "worker:2 is fenced: its lease ended"); });
  Message join{cluster.EnvelopeOf(0), SecondLife("worker:2", 777, former)};
  join.envelope.sender = Incarnation{};
  SECTION("the name is free") {
    cluster.PauseWorker(2, false);
    cluster.Inject(2, join);
    cluster.RunUntil([&] { return All<Welcome>(cluster.sent_to(2)).size() == 2; });
    CHECK(All<Welcome>(cluster.sent_to(2)).back().incarnation > former);
  }
  SECTION("a replacement has it") {
    const int replacement = cluster.StartWorker("worker:2");
    cluster.RunUntil([&] { return !All<Admitted>(cluster.sent_to(replacement)).empty(); });
    cluster.PauseWorker(2, false);
    cluster.Inject(2, join);
    cluster.RunUntil([&] { return All<Refuse>(cluster.sent_to(2)).size() == 2; });
    CHECK(All<Refuse>(cluster.sent_to(2)).back().reason == RefuseReason::kNameTaken);
    CHECK_FALSE(cluster.WorkerGone(replacement));
  }
}

TEST_CASE("a worker above workers_max stands by, is told so once, and takes the first place that frees", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "membership.workers_max=3";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 3; });
  const int fourth = cluster.StartWorker("fourth");
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() == before + 20; });
  REQUIRE(All<Admitted>(cluster.sent_to(fourth)).empty());
  const auto told = All<Waiting>(cluster.sent_to(fourth));
  REQUIRE(told.size() == 1);
  CHECK(absl::StrContains(told[0].for_whom, "a place"));
  cluster.LeaveWorker(1);
  cluster.RunUntil([&] { return !All<Admitted>(cluster.sent_to(fourth)).empty(); });
  CHECK(All<Admitted>(cluster.sent_to(fourth)).front().rank == Rank(1));
}

}  // namespace evenkeel
