#include "evenkeel/launch/supervised_group.h"

#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "catch2/catch.hpp"

namespace evenkeel {
namespace {

constexpr Duration kLong = std::chrono::seconds(30);

TimePoint Deadline() { return Clock::Real().Now() + kLong; }

struct Bench {
  explicit Bench(int max_restarts) {
    SupervisorOptions options;
    options.max_restarts = max_restarts;
    options.first_delay = std::chrono::milliseconds(2);
    auto made = SupervisedGroup::Create(options, {[this](const std::string& text) { said.push_back(text); }, {}});
    REQUIRE(made.ok());
    group.emplace(*std::move(made));
  }
  int Shell(const std::string& script, RestartOn policy = RestartOn::kFailure) {
    const int process = group->Add({"shell", {"/bin/sh", "-c", script}, {}, "", -1}, policy);
    REQUIRE(group->Start(process).ok());
    return process;
  }
  std::vector<std::string> said;
  std::optional<SupervisedGroup> group;
};

TEST_CASE("a process that fails is run as often as it may, and each end and start is said", "[launch][fast]") {
  const std::string folder = (std::filesystem::temp_directory_path() / "evenkeel_supervised_XXXXXX").string();
  std::string name = folder;
  REQUIRE(mkdtemp(name.data()) != nullptr);
  Bench bench(2);
  const int process = bench.Shell("mktemp " + name + "/life.XXXXXX > /dev/null; exit 1");
  bench.group->WaitForAll(Deadline());
  CHECK(bench.group->supervisor().state(process) == Supervisor::State::kFailed);
  CHECK(bench.group->exit(process) == ProcessExit{false, 1});
  CHECK(std::distance(std::filesystem::directory_iterator(name), {}) == 3);
  REQUIRE(bench.said.size() == 5);
  CHECK_THAT(bench.said[1], Catch::StartsWith("shell runs again, process "));
  CHECK(bench.said[4] == "shell ended with exit code 1; it has had its 2 restarts");
  std::filesystem::remove_all(name);
}

TEST_CASE("one that ignores SIGTERM is killed after its grace", "[launch][fast]") {
  Bench bench(3);
  const int process = bench.Shell("trap '' TERM; while :; do sleep 1000; done");
  bench.group->Stop(process, std::chrono::milliseconds(50));
  bench.group->WaitForAll(Deadline());
  CHECK(bench.group->exit(process)->signalled);
  CHECK(bench.group->supervisor().state(process) == Supervisor::State::kEnded);
}

TEST_CASE("one that was stopped is started again once it has ended", "[launch][fast]") {
  Bench bench(3);
  const int process = bench.Shell("exec sleep 1000");
  const pid_t before = bench.group->pid(process);
  bench.group->Stop(process, Duration::zero());
  REQUIRE(bench.group->Start(process).ok());
  while (bench.group->pid(process) == before) bench.group->Wait(Deadline());
  CHECK(bench.group->running(process));
  bench.group->Kill();
  CHECK_FALSE(bench.group->any_running());
}

TEST_CASE("a program that is not there is the caller's to tell", "[launch][fast]") {
  Bench bench(3);
  const int process = bench.group->Add({"worker:1", {"/no/such/program"}, {}, "", -1}, RestartOn::kFailure);
  CHECK(absl::IsNotFound(bench.group->Start(process)));
  CHECK(bench.said.empty());
  CHECK_FALSE(bench.group->supervisor().alive(process));
}

TEST_CASE("all ends of one moment are known before one is judged", "[launch][fast]") {
  SupervisorOptions options;
  std::vector<std::string> said;
  std::optional<SupervisedGroup> group;
  int chief = -1;
  auto made = SupervisedGroup::Create(options, {[&](const std::string& text) { said.push_back(text); },
                                                [&](int process, const ProcessExit&) {
                                                  if (process == chief) group->EndRestarts();
                                                }});
  REQUIRE(made.ok());
  group.emplace(*std::move(made));
  const int worker = group->Add({"worker:0", {"/bin/sh", "-c", "exit 1"}, {}, "", -1}, RestartOn::kFailure);
  chief = group->Add({"chief:0", {"/bin/sh", "-c", "exit 0"}, {}, "", -1}, RestartOn::kSignal);
  REQUIRE(group->Start(worker).ok());
  REQUIRE(group->Start(chief).ok());
  // Both have ended before anybody looks.
  for (const int process : {worker, chief}) {
    siginfo_t info{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(group->pid(process)), &info, WEXITED | WNOWAIT) == 0);
  }
  group->WaitForAll(Deadline());
  CHECK(said.empty());
  CHECK(group->supervisor().state(worker) == Supervisor::State::kFailed);
}

}  // namespace
}  // namespace evenkeel
