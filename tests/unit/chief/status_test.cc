// What the chief says of its job: in its status, in its lines, and in the summary of a job that had several chiefs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "unit/chief/fake_cluster.h"

namespace evenkeel {
namespace {

using Json = nlohmann::json;

Json Status(FakeCluster& cluster) { return Json::parse(cluster.chief().StatusJson(cluster.now())); }

bool Said(const FakeCluster& cluster, const std::string& text) {
  return std::any_of(cluster.lines().begin(), cluster.lines().end(),
                     [&text](const std::string& line) { return absl::StrContains(line, text); });
}

std::int64_t SamplesOf(const Json& totals) {
  std::int64_t sum = 0;
  for (const Json& total : totals) sum += total.at("samples").get<std::int64_t>();
  return sum;
}

// How a chief ends that is started again and stopped at once, while nobody comes.
std::optional<EndAction> StopBeforeAnybodyComes(const FakeCluster& before, int workers) {
  Chief chief(Again(before, workers));
  TimePoint now = before.now() + std::chrono::seconds(5);
  chief.Start(now, 1700000000000);
  std::optional<EndAction> end;
  ChiefActions actions = chief.Stop("SIGTERM", now);
  while (!end && now < before.now() + std::chrono::seconds(600)) {
    for (const ChiefAction& action : actions) {
      if (const auto* found = std::get_if<EndAction>(&action)) end = *found;
    }
    now = chief.NextDeadline();
    actions = chief.Tick(now);
  }
  return end;
}

}  // namespace

TEST_CASE("whoever has asked for the status is told of the end unasked", "[chief]") {
  FakeClusterOptions options;
  options.samples = 6000;
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 5; });
  const SessionId asker = cluster.AskStatus();
  cluster.StopJob();
  REQUIRE(cluster.Run());
  const auto* last = std::get_if<StatusReply>(&cluster.Told(asker).back().body);
  REQUIRE(last != nullptr);
  CHECK(Json::parse(last->json)["phase"] == "ended");
  CHECK(Json::parse(last->json)["status"] == "stopped");
}

TEST_CASE("status names the worker without a connection, or a silent one, that all others wait for, and until when",
          "[chief]") {
  const bool silent = GENERATE(false, true);
  for (const char* mode : {"bsp", "asp", "ssp"}) {
    INFO(mode << (silent ? ", silent" : ""));
    FakeClusterOptions options;
    options.samples = 400;
    options.overrides =
        absl::StrCat("train.epochs=1000 membership.lease_ms=6000 membership.renew_ms=500 train.sync.mode=", mode);
    FakeCluster cluster(options);
    const auto waits_for = [&] { return Status(cluster).at("waiting_for").get<std::string>(); };
    // Not every worker holds a ticket at every moment.
    cluster.RunUntil([&] {
      if (cluster.commits().size() < 10) return false;
      const Json workers = Status(cluster).at("workers");
      return std::any_of(workers.begin(), workers.end(),
                         [](const Json& worker) { return worker.at("name") == "worker:1" && worker.at("batch") > 0; });
    });
    CHECK(waits_for().empty());
    silent ? cluster.PauseWorker(1, true) : cluster.DisconnectWorker(1);
    const TimePoint limit = cluster.now() + std::chrono::seconds(5);
    cluster.RunUntil([&] { return !waits_for().empty() || cluster.now() > limit; });
    CHECK(waits_for() == "worker:1");
    const Json status = Status(cluster);
    CHECK(status.at("waiting_then") == "their samples go to the others");
    CHECK(status.at("waiting_seconds_left").get<double>() > 0);
    CHECK(status.at("waiting_seconds_left").get<double>() <= 6);
    cluster.RunUntil([&] { return Said(cluster, "worker:1 is fenced"); });
    const std::size_t commits = cluster.commits().size();
    cluster.RunUntil([&] { return cluster.commits().size() > commits; });
    CHECK(waits_for().empty());
  }
}

TEST_CASE("status names a silent server that the job waits for, and what then", "[chief]") {
  FakeClusterOptions options;
  options.samples = 60000;
  options.overrides = "membership.lease_ms=6000 membership.renew_ms=500 train.epochs=10";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 5; });
  cluster.KillServer(1);  // with its connection open
  const TimePoint limit = cluster.now() + std::chrono::seconds(5);
  cluster.RunUntil([&] { return Status(cluster).at("waiting_for") != "" || cluster.now() > limit; });
  CHECK(Status(cluster).at("waiting_for") == "ps:1");
  CHECK(Status(cluster).at("waiting_then") == "all go back to the last checkpoint");
  CHECK(Status(cluster).at("waiting_seconds_left").get<double>() < 6);
}

TEST_CASE("a chief that takes nothing up leaves the job as it had ended", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "train.max_commits=12";
  FakeCluster first(options);
  REQUIRE(first.Run());
  REQUIRE(first.end()->summary.status == "finished");
  ChiefOptions again = Again(first, options.workers);
  auto other = ParseExperiment(first.manifests().back().experiment_json, "other", {"train.seed=99"});
  REQUIRE(other.ok());
  again.experiment = *other;
  Chief chief(std::move(again));
  ChiefActions actions = chief.Start(first.now(), 1700000000000);
  Message join = JoinOfWorker(first);
  join.envelope.spec_hash = other->spec_hash;
  for (ChiefAction& action : chief.OnMessage(SessionId(9), std::move(join), first.now())) {
    actions.push_back(std::move(action));
  }
  std::optional<EndRecord> end;
  bool failed = false;
  for (const ChiefAction& action : actions) {
    if (const auto* append = std::get_if<AppendLogAction>(&action)) {
      if (const auto* record = std::get_if<EndRecord>(&append->record)) end = *record;
    }
    if (const auto* ended = std::get_if<EndAction>(&action)) failed = !ended->status.ok();
  }
  CHECK(failed);
  REQUIRE(end);
  CHECK(end->status == "finished");
}

TEST_CASE("below workers_min status and line say until when the job waits, and no rate is shown", "[chief]") {
  FakeClusterOptions options;
  options.samples = 60000;
  options.overrides =
      "membership.workers_min=2 membership.lease_ms=2000 membership.renew_ms=500 membership.join_timeout_ms=30000";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 5; });
  CHECK(Status(cluster).at("examples_per_second").is_number());
  CHECK(Status(cluster).at("eta_seconds").is_number());
  cluster.KillWorker(0);
  cluster.KillWorker(1);
  cluster.RunUntil([&] { return Said(cluster, "1 of at least 2"); });
  CHECK(
      Said(cluster, "waiting for workers: 1 of at least 2 are here; the job ends in 30.0 s unless more workers join"));
  const Json status = Status(cluster);
  CHECK(status.at("examples_per_second").is_null());
  CHECK(status.at("eta_seconds").is_null());
  CHECK(status.at("waiting_then") == "the job ends");
  CHECK(status.at("waiting_unless") == "more workers join");
  CHECK(status.at("waiting_seconds_left").get<double>() == Approx(30).margin(0.6));
  CHECK(status.at("member_events").back().at("kind") == "fenced");
}

TEST_CASE("a restarted chief tells the true step at once, awaits nobody who had left, and counts the whole job",
          "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "train.global_batch_size=60 checkpoint.every_commits=10";
  FakeCluster first(options);
  first.RunUntil([&] { return first.commits().size() == 12; });
  first.LeaveWorker(2);
  first.RunUntil([&] { return first.commits().size() == 37 && first.manifests().size() == 4; });
  REQUIRE(first.manifests().back().version.commit == CommitNumber(30));
  const Json before = Status(first);
  REQUIRE(before.at("commit") == 37);
  REQUIRE_FALSE(before.at("member_events").empty());
  REQUIRE(before.at("member_events").back().at("text") == "worker:2 left: told to");
  REQUIRE(SamplesOf(before.at("worker_totals")) == before.at("samples_trained"));

  Chief chief(Again(first, options.workers));
  const TimePoint now = first.now() + std::chrono::seconds(5);
  chief.Start(now, 1700000000000);
  Json status = Json::parse(chief.StatusJson(now));
  CHECK(status.at("phase") == "gathering");
  CHECK(status.at("commit") == 37);
  CHECK(status.at("epoch").get<double>() == Approx(before.at("epoch").get<double>()));
  CHECK(status.at("last_checkpoint") == "g1-c30");
  CHECK(status.at("waiting_for") == "ps:0, ps:1, worker:0, worker:1");

  chief.OnMessage(SessionId(1), JoinOfWorker(first), now);
  status = Json::parse(chief.StatusJson(now));
  CHECK(status.at("commit") == 37);
  CHECK(status.at("waiting_for") == "ps:0, ps:1");
  CHECK(status.at("worker_totals") == before.at("worker_totals"));

  // The servers hold seven commits that no checkpoint does: a stop waits for them, but not for ever.
  std::optional<EndAction> end;
  const auto look = [&end](const ChiefActions& actions) {
    for (const ChiefAction& action : actions) {
      if (const auto* found = std::get_if<EndAction>(&action)) end = *found;
    }
  };
  look(chief.Stop("SIGTERM", now));
  CHECK_FALSE(end);
  TimePoint ended = now;
  while (!end && ended < now + std::chrono::seconds(600)) {
    ended = chief.NextDeadline();
    look(chief.Tick(ended));
  }
  REQUIRE(end);
  CHECK(ToSeconds(ended - now) == Approx(10).margin(0.1));  // drain_ms
  CHECK(end->status.code() == absl::StatusCode::kInternal);
  CHECK(
      absl::StrContains(end->status.message(),
                        "SIGTERM; ps:0, ps:1 did not come within 10.0 s before the last checkpoint was complete: what "
                        "was trained after g1-c30, 420 samples, is lost"));
  const Summary& summary = end->summary;
  CHECK(summary.commits == 30);  // what survives
  CHECK(summary.samples_trained == before.at("samples_trained").get<std::int64_t>() - 420);
  CHECK(summary.samples_rolled_back == 420);
  CHECK(summary.wall_seconds == Approx(first.commits().back().training_seconds));
  CHECK(summary.wall_seconds > 0);
  CHECK(summary.examples_per_second == Approx(before.at("samples_trained").get<double>() / summary.wall_seconds));
  std::int64_t samples = 0;
  for (const WorkerSummary& worker : summary.workers) samples += worker.samples;
  CHECK(samples == summary.samples_trained);
  CHECK(summary.workers.size() == 3);
}

TEST_CASE("a restarted chief goes on with a global batch that has become smaller since the checkpoint", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides =
      "train.global_batch_size=60 checkpoint.every_commits=10 batching.mode=off batching.gradnorm_window=12 "
      "batching.global.noise_scale.min=3 batching.global.noise_scale.max=60";
  FakeCluster first(options);
  first.SetNoiseScale(30);
  first.RunUntil([&] { return first.commits().size() == 17 && first.manifests().size() == 2; });
  REQUIRE(first.manifests().back().version.commit == CommitNumber(10));
  REQUIRE(Status(first).at("global_batch_size") == 30);
  REQUIRE(first.commits().back().decision.samples == 30);

  Chief chief(Again(first, options.workers));
  const TimePoint now = first.now() + std::chrono::seconds(5);
  chief.Start(now, 1700000000000);
  std::vector<std::int64_t> rows;
  for (const ChiefAction& action : chief.OnMessage(SessionId(1), JoinOfWorker(first), now)) {
    if (const auto* row = std::get_if<CommitMetricsAction>(&action)) rows.push_back(row->row.global_batch_size);
  }
  CHECK(Json::parse(chief.StatusJson(now)).at("global_batch_size") == 30);
  CHECK(rows == std::vector<std::int64_t>{60, 60, 60, 30, 30, 30, 30});
}

TEST_CASE("a chief that is stopped before anybody has come back says what no checkpoint holds", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "train.global_batch_size=60 checkpoint.every_commits=10";
  FakeCluster first(options);
  first.RunUntil([&] { return first.commits().size() == 37 && first.manifests().size() == 4; });
  const std::optional<EndAction> end = StopBeforeAnybodyComes(first, options.workers);
  REQUIRE(end);
  CHECK(end->status.code() == absl::StatusCode::kInternal);
  CHECK(absl::StrContains(end->status.message(), "what was trained after g1-c30, 420 samples, is lost"));
}

TEST_CASE("what an earlier rollback has taken back is not counted as lost again", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides =
      "train.global_batch_size=60 checkpoint.every_commits=10 membership.lease_ms=2000 membership.renew_ms=500";
  FakeCluster first(options);
  first.RunUntil([&] { return first.commits().size() == 25; });
  first.KillServer(0);
  first.RunUntil([&] { return first.rollbacks() == 1; });
  first.StartServer(0);
  const std::size_t manifests = first.manifests().size();
  first.RunUntil([&] {
    return first.manifests().size() > manifests &&
           first.surviving_commits().back().decision.version.commit.value() % 10 == 7;
  });
  const CommitNumber kept = first.manifests().back().version.commit;
  const auto beyond = first.surviving_commits().back().decision.version.commit.value() - kept.value();
  REQUIRE(beyond == 7);
  const std::optional<EndAction> end = StopBeforeAnybodyComes(first, options.workers);
  REQUIRE(end);
  CHECK(absl::StrContains(end->status.message(), ", 420 samples, is lost"));
  CHECK(end->keeps_summary);
}

TEST_CASE("a chief with another experiment gives up a job that still runs, and sends nobody away", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "checkpoint.every_commits=10";
  FakeCluster first(options);
  first.RunUntil([&] { return first.commits().size() == 37; });
  ChiefOptions again = Again(first, options.workers);
  const bool ended = GENERATE(false, true);
  if (ended) again.history.end = EndRecord{"stopped", ""};
  Message join = JoinOfWorker(first);
  join.envelope.job_id = again.history.job_id;
  join.envelope.spec_hash = std::string(64, 'e');
  Chief chief(std::move(again));
  const TimePoint now = first.now() + std::chrono::seconds(5);
  chief.Start(now, 1700000000000);
  std::optional<EndAction> end;
  bool refused = false;
  for (int i = 0; i < 2; ++i) {
    for (const ChiefAction& action : chief.OnMessage(SessionId(1), join, now)) {
      if (const auto* found = std::get_if<EndAction>(&action)) end = *found;
      CHECK_FALSE(std::holds_alternative<AppendLogAction>(action));
      const auto* send = std::get_if<SendAction>(&action);
      if (send == nullptr) continue;
      refused = std::holds_alternative<Refuse>(send->message.body);
      CHECK(refused);
    }
  }
  CHECK(refused == ended);
  CHECK(end.has_value() == !ended);
  CHECK(chief.ended() == !ended);
  if (end) {
    CHECK(end->keeps_summary);
    CHECK(end->status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(absl::StrContains(end->status.message(), "still runs with another experiment"));
  }
}

TEST_CASE("a rollback takes back what workers had committed after the checkpoint", "[chief]") {
  FakeClusterOptions options;
  options.samples = 6000;
  options.overrides =
      "train.global_batch_size=60 checkpoint.every_commits=10 membership.lease_ms=2000 membership.renew_ms=500";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 25; });
  cluster.KillServer(0);
  cluster.RunUntil([&] { return cluster.rollbacks() == 1; });
  cluster.StartServer(0);
  REQUIRE(cluster.Run());
  const Summary& summary = cluster.end()->summary;
  CHECK(summary.samples_rolled_back > 0);
  std::int64_t samples = 0;
  for (const WorkerSummary& worker : summary.workers) samples += worker.samples;
  CHECK(samples == summary.samples_trained);
}

TEST_CASE("a move of stripes is one line, not one a server", "[chief]") {
  FakeClusterOptions options;
  options.servers = 3;
  options.samples = 6000;
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 5; });
  auto waits = [&] {
    return std::count_if(cluster.lines().begin(), cluster.lines().end(),
                         [](const std::string& line) { return absl::StartsWith(line, "waiting for "); });
  };
  const auto before = waits();
  cluster.AskServerToLeave(2);
  cluster.RunUntil([&] { return cluster.ServerReleased(2); });
  cluster.RunUntil([&, at = cluster.commits().size()] { return cluster.commits().size() > at; });
  CHECK(waits() - before == 1);
  CHECK(Said(cluster, "waiting for the stripes of ps:0, ps:1; the move is given up in "));
}

TEST_CASE("an order of servers says which one it supersedes, and more than can share are refused", "[chief]") {
  FakeClusterOptions options;
  options.samples = 60000;
  FakeCluster cluster(options);
  const OrderReply early = cluster.Order(Scale{1});
  CHECK_FALSE(early.accepted);
  CHECK(absl::StrContains(early.message, "the job has not begun: it waits for ps:0, ps:1"));
  cluster.RunUntil([&] { return cluster.commits().size() == 5; });
  const OrderReply three = cluster.Order(Scale{3});
  CHECK(three.accepted);
  CHECK_FALSE(absl::StrContains(three.message, "superseded"));
  CHECK_FALSE(absl::StrContains(cluster.Order(Scale{3}).message, "superseded"));
  CHECK(absl::StrContains(cluster.Order(Scale{4}).message, "; the order of 3 servers is superseded"));
  CHECK(absl::StrContains(cluster.Order(Scale{1}).message, "move to 1 server; the order of 4 servers is superseded"));
  // 100 floats in blocks of 16.
  const OrderReply many = cluster.Order(Scale{4096});
  CHECK_FALSE(many.accepted);
  CHECK(absl::StrContains(many.message, "4096 servers: the parameters have too few stripes; only 7 would own any"));
}

TEST_CASE("a chief that was held up gives nobody a longer lease once it hears of all again", "[chief]") {
  FakeClusterOptions options;
  options.samples = 600000;
  options.overrides = "membership.lease_ms=2000 membership.renew_ms=500 train.global_batch_size=60";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 5; });
  cluster.HoldUpChief(std::chrono::seconds(20));
  cluster.Deliver(0, Message{cluster.EnvelopeOf(0), Renew{.state = "working"}});  // what it hears first
  REQUIRE(Said(cluster, "nothing was done here for 20."));
  (void)cluster.chief().Tick(cluster.now());
  const auto status = Status(cluster);
  for (const char* role : {"workers", "servers"}) {
    REQUIRE_FALSE(status.at(role).empty());
    // The gap counts from the last tick, and one comes at least every half second.
    for (const auto& member : status.at(role)) CHECK(member.at("lease_seconds_left").get<double>() <= 2.5);
  }
}

TEST_CASE("a worker that has only fetched the experiment is shown until it joins", "[chief]") {
  FakeClusterOptions options;
  options.samples = 60000;
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 5; });
  cluster.chief().OnMessage(SessionId(999), Message{{}, ExperimentRequest{"spare"}}, cluster.now());
  CHECK(Status(cluster).at("coming").at(0).at("name") == "spare");
  cluster.StartWorker("spare");
  cluster.RunUntil([&] { return Said(cluster, "spare admitted with rank"); });
  CHECK(Status(cluster).at("coming").empty());
  // Nor is one that is refused.
  cluster.chief().OnMessage(SessionId(999), Message{{}, ExperimentRequest{"stranger"}}, cluster.now());
  CHECK(Status(cluster).at("coming").at(0).at("name") == "stranger");
  Message join{cluster.EnvelopeOf(0), Join{.role = Role::kWorker, .name = "stranger", .nonce = 77, .samples = 3}};
  join.envelope.sender = Incarnation{};
  const ChiefActions refused = cluster.chief().OnMessage(SessionId(998), join, cluster.now());
  CHECK(Status(cluster).at("coming").empty());
  CHECK(std::any_of(refused.begin(), refused.end(), [](const ChiefAction& action) {
    const auto* line = std::get_if<LogLineAction>(&action);
    return line != nullptr && absl::StrContains(line->text, "refuses stranger: ");
  }));
  CHECK(Status(cluster).at("member_events").back().at("kind") == "admitted");
}

TEST_CASE("after a restart of everything, servers have a time from the first one's coming, however late that is",
          "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides = "membership.ps_timeout_ms=20000 membership.ps_replacement_timeout_ms=10000";
  FakeCluster first(options);
  first.RunUntil([&] { return first.commits().size() == 12; });
  Chief chief(Again(first, options.workers));
  TimePoint now = first.now() + std::chrono::seconds(60);
  chief.Start(now, 1700000000000);
  auto pass = [&](int seconds) {
    for (int i = 0; i < 2 * seconds; ++i) chief.Tick(now += std::chrono::milliseconds(500));
  };
  auto joins = [&](std::uint64_t session, const std::string& name) {
    Message message{first.EnvelopeOf(0), {}};
    message.envelope.sender = Incarnation{};
    Join join;
    join.role = Role::kPs;
    join.name = name;
    join.nonce = 100 + session;
    join.address = name;
    message.body = join;
    return chief.OnMessage(SessionId(session), message, now);
  };
  pass(18);
  joins(1, "ps:1");
  pass(1);
  Json status = Json::parse(chief.StatusJson(now));
  CHECK(status.at("servers").size() == 2);
  CHECK(status.at("waiting_then") == "the job goes on with the servers that are here");
  (void)joins(2, "ps:0");
  bool said = false;
  for (const ChiefAction& action : chief.OnMessage(SessionId(3), JoinOfWorker(first), now)) {
    const auto* line = std::get_if<LogLineAction>(&action);
    said |= line != nullptr && absl::StrContains(line->text, "ps:0, ps:1 do not hold what the log goes on from");
  }
  CHECK(said);
  status = Json::parse(chief.StatusJson(now));
  CHECK(status.at("servers").size() == 2);
  CHECK(status.at("spare_servers").empty());
  CHECK_FALSE(chief.ended());
}

// The report of a step comes before all servers have it.
TEST_CASE("status shows a step's time of computing beside the whole time of that step", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  FakeCluster cluster(options);
  int shown = 0;
  for (int i = 0; i < 3000; ++i) {
    cluster.SetSpeed(0, i % 7 == 0 ? 0.002 : 0.0001);
    cluster.StepOnce();
    const Json status = Status(cluster);
    for (const Json& worker : status.at("workers")) {
      const double busy = worker.at("busy_seconds").get<double>();
      if (busy == 0) continue;
      REQUIRE(worker.at("step_seconds").get<double>() <= busy);
      ++shown;
    }
  }
  REQUIRE(shown > 1000);
}

// Commits of ASP come in pairs; the time since the one before says nothing.
TEST_CASE("the rate that is shown is that of the samples trained, in every mode", "[chief]") {
  FakeClusterOptions options;
  options.samples = 600000;
  options.timed = true;
  options.overrides = GENERATE("train.sync.mode=bsp", "train.sync.mode=asp", "train.sync.mode=ssp");
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() >= 10; });
  const TimePoint begin = cluster.now();
  const double before = Status(cluster)["samples_trained"];
  for (int check = 1; check <= 5; ++check) {
    const std::size_t commits = cluster.commits().size();
    cluster.RunUntil([&] { return cluster.commits().size() >= commits + 50; });
    const Json status = Status(cluster);
    const double trained = status["samples_trained"], shown = status["examples_per_second"];
    const double measured = (trained - before) / ToSeconds(cluster.now() - begin);
    INFO(measured);
    CHECK(shown < 2 * measured);
    CHECK(shown > measured / 2);
  }
}

}  // namespace evenkeel
