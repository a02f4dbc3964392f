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
