// Decides which processes of a machine are started, stopped and started again, and when.
//
// Threading: none; one caller at a time.
// Time:      always passed in; never reads a clock.
// Restarts:  a process that ends unasked, in a way that its policy starts again, comes back after a delay that doubles
//            from `first_delay` to `longest_delay`, times a random part between a half and one, so that many that died
//            together do not come back together. After `max_restarts` in a row it stays down. One that ran for
//            `healthy_after` has proved itself: its count begins anew; not where it ended because it had waited in vain
//            (4), for waiting is no sign of health.
// Stops:     a process that was told to end and still runs after its grace is killed.
// Limits:    kMaxProcesses, by CHECK.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "evenkeel/core/clock.h"
#include "evenkeel/core/random.h"
#include "evenkeel/launch/process_exit.h"

namespace evenkeel {

// Which ends bring a process back. Exit codes are those of core/status.h.
enum class RestartOn {
  kNever,
  // A signal only: the chief's own exit code is the job's verdict.
  kSignal,
  // A signal, 1 (failed) and 4 (a deadline passed). Not 0; not 2 (wrong input), which stays wrong; not 3 (refused): it
  // has another job or experiment, or another process has its name, which a restart would take away again. A worker
  // whose lease ended while it was paused or cut off comes back by itself.
  kFailure,
  // Every end but exit code 0: for programs whose codes mean something else.
  kNotZero,
};

struct SupervisorOptions {
  int max_restarts = 3;  // 0: none
  Duration first_delay = std::chrono::milliseconds(250);
  Duration longest_delay = std::chrono::seconds(30);
  Duration healthy_after = std::chrono::seconds(60);
  std::uint64_t jitter_key = 0;
};

// What the caller does, in order.
struct StartProcess {
  int process = 0;
  int restart = 0;  // 0: it was asked for; else which restart this is
  friend bool operator==(const StartProcess&, const StartProcess&) = default;
};
struct SignalProcess {
  int process = 0;
  int signal = 0;
  friend bool operator==(const SignalProcess&, const SignalProcess&) = default;
};
// For people: one line.
struct TellEnd {
  int process = 0;
  std::string text;
  bool for_good = false;  // it does not come back, and did not end in good order
  friend bool operator==(const TellEnd&, const TellEnd&) = default;
};
using SupervisorAction = std::variant<StartProcess, SignalProcess, TellEnd>;
using SupervisorActions = std::vector<SupervisorAction>;

class Supervisor {
 public:
  static constexpr int kMaxProcesses = 4096;

  enum class State {
    kIdle,  // never asked for
    kRunning,
    kWaiting,   // to be started again
    kStopping,  // told to end
    kEnded,     // in good order: exit code 0, or because it was told to
    kFailed,    // for good
  };

  explicit Supervisor(const SupervisorOptions& options);

  // Returns its number, from 0. Nothing is started yet.
  int Add(std::string name, RestartOn policy);

  // It shall run, with all its restarts before it. One that is ending is started again when it has ended.
  SupervisorActions Start(int process, TimePoint now);
  // It shall not run: SIGTERM, and SIGKILL after `grace`; SIGKILL at once without grace.
  SupervisorActions Stop(int process, Duration grace, TimePoint now);
  SupervisorActions StopAll(Duration grace, TimePoint now);
  // Nothing is started again from now on: the job has ended. What runs goes on.
  void EndRestarts();

  SupervisorActions OnExit(int process, const ProcessExit& exit, TimePoint now);
  // It could not be started, for `reason`; that is final.
  SupervisorActions OnStartFailed(int process, const std::string& reason);
  // What has come due.
  SupervisorActions Tick(TimePoint now);
  TimePoint NextDeadline() const;

  State state(int process) const { return At(process).state; }
  // Runs, or will again.
  bool alive(int process) const;
  int restarts(int process) const { return At(process).restarts; }
  const std::string& name(int process) const { return At(process).name; }
  int size() const { return static_cast<int>(processes_.size()); }
  // Had to be killed after its grace.
  bool killed(int process) const { return At(process).killed; }

 private:
  struct Process {
    std::string name;
    RestartOn policy = RestartOn::kNever;
    State state = State::kIdle;
    TimePoint started{};
    int restarts = 0;              // since it was last healthy
    TimePoint due = kNever;        // kWaiting: start; kStopping: kill
    bool start_after_end = false;  // kStopping
    bool killed = false;
  };
  const Process& At(int process) const { return processes_[static_cast<std::size_t>(process)]; }
  Process& At(int process) { return processes_[static_cast<std::size_t>(process)]; }
  // Why this end is for good; empty where it is not.
  std::string WhyFinal(const Process& process, const ProcessExit& exit) const;
  Duration Delay(int restart);
  StartProcess Begin(int process, TimePoint now);

  const SupervisorOptions options_;
  std::vector<Process> processes_;
  bool restarts_ended_ = false;
  Rng jitter_;
};

}  // namespace evenkeel
