#include "evenkeel/launch/supervisor.h"

#include <csignal>
#include <string>

#include "catch2/catch.hpp"

namespace evenkeel {
namespace {

constexpr ProcessExit kKilled{true, SIGKILL};
constexpr Duration kGrace = std::chrono::seconds(10);
constexpr Duration kSecond = std::chrono::seconds(1);
using State = Supervisor::State;

ProcessExit Code(int code) { return {false, code}; }

SupervisorOptions Options(int max_restarts) {
  SupervisorOptions options;
  options.max_restarts = max_restarts;
  return options;
}

// One worker, started, and time.
struct Bench {
  explicit Bench(const SupervisorOptions& options, RestartOn policy = RestartOn::kFailure) : supervisor(options) {
    process = supervisor.Add("worker:1", policy);
    CHECK(supervisor.Start(process, clock.Now()) == SupervisorActions{StartProcess{process, 0}});
  }
  SupervisorActions Exit(const ProcessExit& exit) { return supervisor.OnExit(process, exit, clock.Now()); }
  // Waits for its next start; how long it took.
  Duration Restarted(int restart) {
    const Duration delay = supervisor.NextDeadline() - clock.Now();
    clock.Advance(delay - Duration(1));
    CHECK(supervisor.Tick(clock.Now()).empty());
    clock.Advance(Duration(1));
    CHECK(supervisor.Tick(clock.Now()) == SupervisorActions{StartProcess{process, restart}});
    CHECK(supervisor.NextDeadline() == kNever);
    return delay;
  }
  State state() const { return supervisor.state(process); }

  ManualClock clock;
  Supervisor supervisor;
  int process = 0;
};

std::string TextOf(const SupervisorActions& actions) {
  REQUIRE(actions.size() == 1);
  REQUIRE(std::holds_alternative<TellEnd>(actions[0]));
  return std::get<TellEnd>(actions[0]).text;
}

bool ForGood(const SupervisorActions& actions) {
  REQUIRE(actions.size() == 1);
  return std::get<TellEnd>(actions[0]).for_good;
}

TEST_CASE("a process that dies comes back, later each time, until it has had its restarts", "[launch][fast]") {
  Bench bench(Options(3));
  Duration least = std::chrono::milliseconds(125);
  for (int restart = 1; restart <= 3; ++restart) {
    const SupervisorActions told = bench.Exit(kKilled);
    CHECK_THAT(TextOf(told), Catch::StartsWith("worker:1 ended with signal 9 (Killed); starts again in "));
    CHECK_THAT(TextOf(told), Catch::EndsWith("(restart " + std::to_string(restart) + " of 3)"));
    CHECK(bench.supervisor.alive(bench.process));
    const Duration delay = bench.Restarted(restart);
    CHECK(delay >= least);
    CHECK(delay <= 2 * least);
    least *= 2;
  }
  const SupervisorActions last = bench.Exit(kKilled);
  CHECK(TextOf(last) == "worker:1 ended with signal 9 (Killed); it has had its 3 restarts");
  CHECK(ForGood(last));
  CHECK(bench.state() == State::kFailed);
  CHECK_FALSE(bench.supervisor.alive(bench.process));
  CHECK(bench.supervisor.NextDeadline() == kNever);
}

TEST_CASE("the delay has a cap, and differs between processes that die together", "[launch][fast]") {
  SupervisorOptions options = Options(1000);
  options.longest_delay = std::chrono::seconds(2);
  Bench bench(options);
  Duration before{};
  bool differs = false;
  for (int restart = 1; restart <= 40; ++restart) {
    bench.Exit(kKilled);
    const Duration delay = bench.Restarted(restart);
    CHECK(delay <= options.longest_delay);
    if (restart > 6) {
      CHECK(delay >= options.longest_delay / 2);
      differs = differs || delay != before;
    }
    before = delay;
  }
  CHECK(differs);
}

TEST_CASE("a long healthy life gives the restarts back", "[launch][fast]") {
  Bench bench(Options(1));
  bench.Exit(kKilled);
  bench.Restarted(1);
  bench.clock.Advance(std::chrono::seconds(60));
  CHECK_FALSE(ForGood(bench.Exit(kKilled)));
  bench.Restarted(1);
  bench.clock.Advance(std::chrono::seconds(60) - Duration(1));
  CHECK(ForGood(bench.Exit(kKilled)));
}

TEST_CASE("a long life that was spent waiting gives no restarts back", "[launch][fast]") {
  Bench bench(Options(1));
  bench.clock.Advance(std::chrono::seconds(90));
  CHECK_FALSE(ForGood(bench.Exit(Code(4))));
  bench.Restarted(1);
  bench.clock.Advance(std::chrono::seconds(90));
  CHECK(ForGood(bench.Exit(Code(4))));
}

TEST_CASE("which ends bring a process back", "[launch][fast]") {
  struct Case {
    RestartOn policy;
    ProcessExit exit;
    Duration lived;
    State state;
  };
  const Case cases[] = {
      {RestartOn::kFailure, kKilled, kSecond, State::kWaiting},
      {RestartOn::kFailure, {true, SIGSEGV}, kSecond, State::kWaiting},
      {RestartOn::kFailure, Code(0), kSecond, State::kEnded},
      {RestartOn::kFailure, Code(1), kSecond, State::kWaiting},
      {RestartOn::kFailure, Code(2), kSecond, State::kFailed},
      {RestartOn::kFailure, Code(2), 100 * kSecond, State::kFailed},
      {RestartOn::kFailure, Code(3), 6 * kSecond, State::kFailed},
      {RestartOn::kFailure, Code(4), kSecond, State::kWaiting},
      {RestartOn::kFailure, Code(130), kSecond, State::kFailed},
      {RestartOn::kSignal, kKilled, kSecond, State::kWaiting},
      {RestartOn::kSignal, Code(1), kSecond, State::kFailed},
      {RestartOn::kSignal, Code(4), kSecond, State::kFailed},
      {RestartOn::kSignal, Code(0), kSecond, State::kEnded},
      {RestartOn::kNotZero, Code(17), kSecond, State::kWaiting},
      {RestartOn::kNotZero, Code(2), kSecond, State::kWaiting},
      {RestartOn::kNotZero, Code(0), kSecond, State::kEnded},
      {RestartOn::kNever, kKilled, kSecond, State::kFailed},
  };
  for (const Case& c : cases) {
    Bench bench(Options(3), c.policy);
    bench.clock.Advance(c.lived);
    INFO(static_cast<int>(c.policy) << ", " << c.exit.ToString());
    const SupervisorActions told = bench.Exit(c.exit);
    CHECK(bench.state() == c.state);
    CHECK(told.empty() == (c.state == State::kEnded));
    if (!told.empty()) CHECK(ForGood(told) == (c.state == State::kFailed));
  }
}

TEST_CASE("no restarts at all", "[launch][fast]") {
  Bench bench(Options(0));
  CHECK(TextOf(bench.Exit(kKilled)) == "worker:1 ended with signal 9 (Killed); it is not started again");
}

TEST_CASE("one that was told to end is killed after the grace, and not started again", "[launch][fast]") {
  Bench bench(Options(3));
  CHECK(bench.supervisor.Stop(bench.process, kGrace, bench.clock.Now()) ==
        SupervisorActions{SignalProcess{bench.process, SIGTERM}});
  CHECK(bench.supervisor.Stop(bench.process, 2 * kGrace, bench.clock.Now()).empty());
  CHECK(bench.supervisor.NextDeadline() == bench.clock.Now() + kGrace);
  CHECK_FALSE(bench.supervisor.alive(bench.process));
  bench.clock.Advance(kGrace);
  CHECK(bench.supervisor.Tick(bench.clock.Now()) == SupervisorActions{SignalProcess{bench.process, SIGKILL}});
  CHECK(bench.supervisor.killed(bench.process));
  CHECK(bench.Exit(kKilled).empty());
  CHECK(bench.state() == State::kEnded);
  CHECK(bench.supervisor.NextDeadline() == kNever);
}

TEST_CASE("one that leaves in time is not killed, nor one that was never started", "[launch][fast]") {
  Bench bench(Options(3));
  const int other = bench.supervisor.Add("worker:2", RestartOn::kFailure);
  CHECK(bench.supervisor.StopAll(kGrace, bench.clock.Now()).size() == 1);
  CHECK(bench.Exit(Code(0)).empty());
  bench.clock.Advance(2 * kGrace);
  CHECK(bench.supervisor.Tick(bench.clock.Now()).empty());
  CHECK_FALSE(bench.supervisor.killed(bench.process));
  CHECK(bench.supervisor.state(other) == State::kIdle);
}

TEST_CASE("a machine that is taken without notice is killed at once", "[launch][fast]") {
  Bench bench(Options(3));
  CHECK(bench.supervisor.Stop(bench.process, Duration::zero(), bench.clock.Now()) ==
        SupervisorActions{SignalProcess{bench.process, SIGKILL}});
  CHECK(bench.Exit(kKilled).empty());
  CHECK_FALSE(bench.supervisor.killed(bench.process));
}

TEST_CASE("a start while it ends waits for the end", "[launch][fast]") {
  Bench bench(Options(3));
  bench.supervisor.Stop(bench.process, kGrace, bench.clock.Now());
  CHECK(bench.supervisor.Start(bench.process, bench.clock.Now()).empty());
  CHECK(bench.supervisor.alive(bench.process));
  CHECK(bench.Exit(Code(0)) == SupervisorActions{StartProcess{bench.process, 0}});
  CHECK(bench.state() == State::kRunning);
}

TEST_CASE("a stop calls off the restart that was due", "[launch][fast]") {
  Bench bench(Options(3));
  bench.Exit(kKilled);
  CHECK(bench.supervisor.Stop(bench.process, kGrace, bench.clock.Now()).empty());
  CHECK(bench.supervisor.NextDeadline() == kNever);
  CHECK(bench.state() == State::kEnded);
}

TEST_CASE("after the job's end nothing is started again", "[launch][fast]") {
  Bench bench(Options(3));
  const int other = bench.supervisor.Add("worker:2", RestartOn::kFailure);
  bench.supervisor.Start(other, bench.clock.Now());
  bench.Exit(kKilled);
  bench.supervisor.EndRestarts();
  CHECK(bench.state() == State::kFailed);
  CHECK(bench.supervisor.NextDeadline() == kNever);
  CHECK(bench.supervisor.OnExit(other, Code(1), bench.clock.Now()).empty());
  CHECK(bench.supervisor.state(other) == State::kFailed);
}

TEST_CASE("a program that cannot be started is not tried again", "[launch][fast]") {
  Bench bench(Options(3));
  const SupervisorActions told = bench.supervisor.OnStartFailed(bench.process, "cannot start worker:1: not found");
  CHECK(TextOf(told) == "cannot start worker:1: not found");
  CHECK(bench.state() == State::kFailed);
}

}  // namespace
}  // namespace evenkeel
