// Two processes with one name: the member that lives keeps it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <variant>

#include "absl/strings/match.h"
#include "unit/chief/fake_cluster.h"

namespace evenkeel {
namespace {

FakeClusterOptions Options() {
  FakeClusterOptions options;
  options.samples = 60000;
  options.workers = 3;
  options.overrides =
      "membership.lease_ms=4000 membership.renew_ms=1000 membership.ps_replacement_timeout_ms=9000 "
      "train.global_batch_size=120 train.epochs=20 train.max_commits=8000";
  return options;
}

const Refuse* RefusalIn(const std::deque<Message>& told) {
  for (const Message& message : told) {
    if (const auto* refuse = std::get_if<Refuse>(&message.body)) return refuse;
  }
  return nullptr;
}

template <class T>
bool Heard(const std::deque<Message>& told) {
  return std::any_of(told.begin(), told.end(),
                     [](const Message& message) { return std::holds_alternative<T>(message.body); });
}

template <class T>
bool Heard(const std::vector<Message>& told) {
  return std::any_of(told.begin(), told.end(),
                     [](const Message& message) { return std::holds_alternative<T>(message.body); });
}

}  // namespace

TEST_CASE("a worker that lives keeps its name, and another process of that name is refused", "[chief][names]") {
  FakeCluster cluster(Options());
  cluster.RunUntil([&] { return cluster.commits().size() == 20; });
  const int twin = cluster.StartWorker("worker:1");
  const TimePoint came = cluster.now();
  cluster.RunUntil([&] { return cluster.WorkerGone(twin) || cluster.end().has_value(); });
  REQUIRE(cluster.WorkerGone(twin));
  CHECK(absl::StrContains(cluster.Refusal(twin), "another process has the name worker:1"));
  CHECK(Heard<Waiting>(cluster.sent_to(twin)));
  CHECK_FALSE(Heard<Welcome>(cluster.sent_to(twin)));
  CHECK(cluster.now() - came < std::chrono::seconds(4));
  CHECK_FALSE(cluster.WorkerGone(1));
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() == before + 5; });
  CHECK(cluster.commits().back().decision.updates.size() == 3);
}

TEST_CASE("a worker whose stream has closed is replaced at once by one of its name", "[chief][names]") {
  FakeCluster cluster(Options());
  cluster.RunUntil([&] { return cluster.commits().size() == 20; });
  cluster.DisconnectWorker(1);
  const TimePoint came = cluster.now();
  const int next = cluster.StartWorker("worker:1");
  cluster.RunUntil([&] { return Heard<Welcome>(cluster.sent_to(next)); });
  CHECK(cluster.now() - came < std::chrono::seconds(1));
}

TEST_CASE("a worker that vanished with its stream open is replaced when its lease ends, or its stream closes",
          "[chief][names]") {
  const bool closes = GENERATE(false, true);
  FakeCluster cluster(Options());
  cluster.RunUntil([&] { return cluster.commits().size() == 20; });
  cluster.KillWorker(1);
  const TimePoint killed = cluster.now();
  const int next = cluster.StartWorker("worker:1");
  cluster.RunUntil([&] { return Heard<Waiting>(cluster.sent_to(next)); });
  CHECK_FALSE(Heard<Welcome>(cluster.sent_to(next)));
  if (closes) cluster.DisconnectWorker(1);
  cluster.RunUntil([&] { return Heard<Welcome>(cluster.sent_to(next)) || cluster.end().has_value(); });
  REQUIRE(Heard<Welcome>(cluster.sent_to(next)));
  CHECK(cluster.now() - killed < (closes ? std::chrono::seconds(1) : std::chrono::seconds(5)));
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() == before + 5; });
  CHECK(cluster.commits().back().decision.updates.size() == 3);
}

TEST_CASE("a server that lives keeps its name: nothing is rolled back for another of that name", "[chief][names]") {
  FakeCluster cluster(Options());
  cluster.RunUntil([&] { return cluster.commits().size() == 20; });
  const SessionId twin = cluster.StartTwinServer(1);
  cluster.RunUntil([&] { return RefusalIn(cluster.Told(twin)) != nullptr || cluster.end().has_value(); });
  REQUIRE(RefusalIn(cluster.Told(twin)) != nullptr);
  CHECK(RefusalIn(cluster.Told(twin))->reason == RefuseReason::kNameTaken);
  CHECK_FALSE(Heard<Welcome>(cluster.Told(twin)));
  CHECK(cluster.rollbacks() == 0);
  REQUIRE(cluster.Run());
  CHECK(cluster.end()->summary.status == "finished");
  CHECK(cluster.rollbacks() == 0);
}

TEST_CASE("a server that vanished with its stream open is replaced by one of its name", "[chief][names]") {
  const bool closes = GENERATE(false, true);
  FakeCluster cluster(Options());
  cluster.RunUntil([&] { return cluster.commits().size() == 20; });
  closes ? cluster.DisconnectServer(1) : cluster.KillServer(1);
  const TimePoint killed = cluster.now();
  cluster.StartServer(1);
  cluster.RunUntil([&] { return cluster.rollbacks() == 1 || cluster.end().has_value(); });
  REQUIRE(cluster.rollbacks() == 1);
  CHECK(cluster.now() - killed < (closes ? std::chrono::seconds(1) : std::chrono::seconds(5)));
  REQUIRE(cluster.Run());
  CHECK(cluster.end()->summary.status == "finished");
}

TEST_CASE("a restarted chief takes back the server that holds the parameters, not another process of its name",
          "[chief][names]") {
  FakeClusterOptions options = Options();
  options.samples = 100000;
  options.servers = GENERATE(1, 2);
  const int last = options.servers - 1;
  FakeCluster before(options);
  before.RunUntil([&] { return before.commits().size() == 20 && !before.manifests().empty(); });
  Chief chief(Again(before, options.workers));
  TimePoint now = before.now() + std::chrono::seconds(1);
  std::vector<ChiefActions> all;
  all.push_back(chief.Start(now, 1700000000000));
  const CommitRecord newest = before.commits().back();
  const LayoutRecord layout = before.layouts().back();
  const auto join = [&](int index, std::uint64_t session, std::uint64_t nonce, bool holds) {
    Message message = JoinOfWorker(before);
    Join body;
    body.role = Role::kPs;
    body.name = "ps:" + std::to_string(index);
    body.nonce = nonce;
    body.address = "host:" + std::to_string(index);
    if (holds) {
      const Version decided = newest.decision.version;
      body.holding = Holding{.layout = layout.layout,
                             .server = ServerIndex(static_cast<std::uint32_t>(index)),
                             .servers = static_cast<std::uint32_t>(options.servers),
                             .decided = decided,
                             .hash = newest.decision.hash,
                             .applied = decided.commit};
    }
    message.body = body;
    all.push_back(chief.OnMessage(SessionId(session), std::move(message), now));
  };
  const auto rollbacks = [&] {
    std::size_t count = 0;
    for (const ChiefActions& actions : all) {
      for (const ChiefAction& action : actions) {
        const auto* append = std::get_if<AppendLogAction>(&action);
        count += append != nullptr && std::holds_alternative<RollbackRecord>(append->record) ? 1 : 0;
      }
    }
    return count;
  };
  const auto told = [&](std::uint64_t session) {
    std::deque<Message> messages;
    for (const ChiefActions& actions : all) {
      for (const ChiefAction& action : actions) {
        const auto* send = std::get_if<SendAction>(&action);
        if (send != nullptr && send->session == SessionId(session)) messages.push_back(send->message);
      }
    }
    return messages;
  };
  all.push_back(chief.OnMessage(SessionId(9), JoinOfWorker(before), now));
  join(last, 21, 777, false);  // the other process is faster
  if (last == 1) join(0, 10, 100001, true);
  CHECK(rollbacks() == 0);
  SECTION("it comes") {
    now += std::chrono::seconds(2);
    join(last, 11, 100002, true);
    REQUIRE(RefusalIn(told(21)) != nullptr);
    CHECK(RefusalIn(told(21))->reason == RefuseReason::kNameTaken);
    CHECK(Heard<Continue>(told(11)));
    CHECK(rollbacks() == 0);
  }
  SECTION("it does not") {
    while (rollbacks() == 0 && now < before.now() + std::chrono::seconds(5)) {
      now = chief.NextDeadline();
      all.push_back(chief.Tick(now));
    }
    CHECK(rollbacks() == 1);
    CHECK(RefusalIn(told(21)) == nullptr);
  }
}

TEST_CASE("a process that claims the name of a member that leaves is refused in the end", "[chief][names]") {
  FakeClusterOptions options = Options();
  options.overrides += " membership.ps_timeout_ms=20000";
  options.timed = true;
  FakeCluster cluster(options);
  for (int i = 0; i < options.workers; ++i) cluster.SetSpeed(i, 0, 0.1);
  cluster.RunUntil([&] { return cluster.commits().size() == 20; });
  cluster.SetFillError("the link is too slow");
  REQUIRE(cluster.Order(Drain{"ps:1"}).accepted);
  const SessionId twin = cluster.StartTwinServer(1);
  const TimePoint came = cluster.now();
  cluster.RunUntil([&] { return RefusalIn(cluster.Told(twin)) != nullptr || cluster.end().has_value(); });
  REQUIRE(RefusalIn(cluster.Told(twin)) != nullptr);
  CHECK(absl::StrContains(RefusalIn(cluster.Told(twin))->message, "is still connected"));
  CHECK(cluster.now() - came >= std::chrono::seconds(20));
  CHECK(cluster.now() - came < std::chrono::seconds(22));
}

TEST_CASE("of two that claim a name the newer waits, and the end of the job reaches it", "[chief][names]") {
  FakeClusterOptions options = Options();
  options.overrides += " membership.lease_ms=60000 membership.drain_ms=2000";
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() == 20; });
  cluster.KillServer(1);
  const SessionId first = cluster.StartTwinServer(1);
  cluster.RunUntil([&] { return Heard<Waiting>(cluster.Told(first)); });
  const SessionId second = cluster.StartTwinServer(1);
  cluster.RunUntil([&] { return Heard<Waiting>(cluster.Told(second)); });
  REQUIRE(RefusalIn(cluster.Told(first)) != nullptr);
  CHECK(RefusalIn(cluster.Told(first))->reason == RefuseReason::kNameTaken);
  cluster.StopJob();
  cluster.RunUntil([&] { return cluster.end().has_value(); });
  CHECK(Heard<JobEnd>(cluster.Told(second)));
}

}  // namespace evenkeel
