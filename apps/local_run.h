// A job on this machine from its first process to its last: starts them, watches them, starts those again that die,
// shows how it goes, ends them all.
//
// Threading: Create and Run on main()'s thread; Interrupt from any.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/config/availability.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/launch/local_job.h"
#include "evenkeel/launch/supervised_group.h"
#include "evenkeel/launch/trace_player.h"
#include "evenkeel/transport/transports.h"
#include "progress.h"
#include "status_client.h"

namespace evenkeel::apps {

constexpr int kMaxOfRole = 256;  // workers, or servers, of one job on a machine

struct LocalRunOptions {
  LocalJobOptions job;  // its folders exist
  // Fewer that train, the chief among them where it does, and none to come back: the job is stopped.
  int least_trainers = 1;
  SupervisorOptions supervisor;
  Duration monitor_interval = std::chrono::milliseconds(500);
  // Drives the workers; job.workers is then the most that live at once. Empty: all live from the start.
  std::vector<AvailabilityEvent> trace;
  double time_scale = 1;
  Duration notice = Duration::zero();  // from SIGTERM to SIGKILL of a removed worker; none: SIGKILL at once
};

class LocalRun {
 public:
  static absl::StatusOr<std::unique_ptr<LocalRun>> Create(const LocalRunOptions& options, const Experiment& experiment);

  // Returns launch's exit code: 0 only if the job finished; a process's own code where one failed the job; 130 after an
  // interrupt. No process is left.
  int Run();

  // count 1: the chief is told to stop, with a checkpoint; 2: all are killed.
  void Interrupt(int count);

 private:
  LocalRun(const LocalRunOptions& options, const Experiment& experiment);

  absl::Status StartAll();
  absl::StatusOr<int> StartChief();
  void PlayTrace(TimePoint now);
  int Watch();
  void AskStatus(TimePoint now);
  // Those that `evenkeel scale` asked for and that are not there.
  void StartServersWanted(const std::string& status_json);
  // Once: those that were asked for with --ps and have no part of the parameters.
  void SayIfServersStandBy(const std::string& status_json);
  std::optional<int> IdleServer(const std::set<std::string>& taken);
  void OnInterrupt();
  void OnExit(int process, const ProcessExit& exit);
  void OnFailed(int process);
  void CheckTrainers();
  void GiveUp(int process, const std::string& why);
  int FinishAfterChief();
  int Conclude();
  int ChiefDidNotStart(const absl::Status& status);
  int AliveTrainers() const;
  int AliveServers() const;
  bool chief_alive() const { return processes_->running(0) || processes_->supervisor().alive(0); }

  const LocalRunOptions options_;
  const Duration grace_;          // from SIGTERM to SIGKILL
  const Duration stop_timeout_;   // for the chief to end after it was told to
  const Duration answer_within_;  // a chief that is silent for longer hangs
  Display display_;
  MembershipNews news_;
  std::optional<SupervisedGroup> processes_;  // set by Create
  std::unique_ptr<Transport> transport_;
  std::optional<StatusClient> client_;  // once the chief's port is known
  std::optional<TracePlayer> trace_;
  int port_ = 0;
  int first_worker_ = 0;                 // its process
  int told_ = 0;                         // interrupts acted on
  TimePoint answered_{};                 // by the chief, last
  std::optional<TimePoint> give_up_at_;  // then all are stopped
  std::string gave_up_;                  // why
  int failure_code_ = 0;                 // of the process that failed the job
  std::vector<int> failed_;              // down for good, not looked at yet
  bool servers_failed_ = false;          // to start; none are added any more
  std::size_t servers_refused_ = 0;      // so many were ordered, which are too many
  bool said_standing_by_ = false;
  std::atomic<int> interrupts_ = 0;
};

}  // namespace evenkeel::apps
