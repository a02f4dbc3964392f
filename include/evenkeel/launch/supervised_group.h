// A ProcessGroup whose processes a Supervisor starts, stops and starts again.
//
// Threading: one caller at a time, on a thread that lives as long as the group; only Wake is thread-safe.
// Time:      real.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/launch/process_group.h"
#include "evenkeel/launch/supervisor.h"

namespace evenkeel {

class SupervisedGroup {
 public:
  struct Callbacks {
    // A line for people: a restart, an end. With the last lines of the process's log where it is down for good.
    std::function<void(const std::string& text)> say;
    // Called before an end is judged. May call EndRestarts, Stop and StopAll. May be empty.
    std::function<void(int process, const ProcessExit& exit)> on_exit;
  };

  static absl::StatusOr<SupervisedGroup> Create(const SupervisorOptions& options, Callbacks callbacks);

  int Add(ProcessSpec spec, RestartOn policy);
  // For the starts to come.
  void Replace(int process, ProcessSpec spec) { specs_[static_cast<std::size_t>(process)] = std::move(spec); }
  // Errors: what ProcessGroup::Start gives; the process stays down.
  absl::Status Start(int process);
  void Stop(int process, Duration grace);
  void StopAll(Duration grace);
  void EndRestarts() { supervisor_.EndRestarts(); }
  // To the process as it is, without telling the supervisor: its end counts as unasked.
  void Signal(int process, int signal);

  // Waits until a process ends, Wake is called or `deadline` passes, and does meanwhile what comes due.
  void Wait(TimePoint deadline);
  // Says the last lines of its log.
  void TellLog(int process);
  void Wake() { group_.Wake(); }
  // Waits until no process runs or is to run, or the deadline.
  void WaitForAll(TimePoint deadline);
  // SIGKILL to all; returns when all are reaped.
  void Kill();

  const Supervisor& supervisor() const { return supervisor_; }
  bool running(int process) const;
  bool any_running() const { return group_.running_count() > 0; }
  pid_t pid(int process) const;  // of its newest life; 0: never started
  // How its newest life ended; absent while it runs or before it ran.
  std::optional<ProcessExit> exit(int process) const;

 private:
  SupervisedGroup(const SupervisorOptions& options, Callbacks callbacks, ProcessGroup group);
  void Carry(const SupervisorActions& actions, absl::Status* start_status = nullptr);
  absl::Status Do(const StartProcess& action);
  void Do(const TellEnd& action);
  std::string LogTail(int process) const;
  const ProcessGroup::Entry* entry(int process) const;

  const Callbacks callbacks_;
  Supervisor supervisor_;
  ProcessGroup group_;
  std::vector<ProcessSpec> specs_;
  std::vector<std::int64_t> logs_begin_;  // bytes that are of earlier runs
  std::vector<int> places_;               // in group_, by process; -1: never started
  std::vector<int> occupants_;            // the other way round
};

}  // namespace evenkeel
