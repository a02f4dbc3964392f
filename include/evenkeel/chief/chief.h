// The chief's decisions: who is a member, which samples go to whom, which updates commit, when to checkpoint, when the
// job ends. Pure: events and `now` go in, actions come out; it reads no clock, starts no thread, does no I/O. A runner
// (runtime/) or a simulator drives it.
//
// Threading: none; one caller at a time. The caller carries out the actions in order before it delivers the next event
// to the same peer; sends to different peers may overtake one another. Time: always passed in; call Tick no later than
// NextDeadline(). Limits: members: membership.workers_max workers that train, as many again that stand by; undecided
// updates: one a worker; decisions that a server has not applied: 64, then no ticket binds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/chief/log_history.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/core/log.h"
#include "evenkeel/metrics/sinks.h"
#include "evenkeel/protocol/log_record.h"
#include "evenkeel/protocol/messages.h"

namespace evenkeel {

struct ChiefOptions {
  std::string new_job_id;  // 32 hex digits; taken where the log knows no job yet
  Term term;               // claimed by the runner
  Experiment experiment;
  std::string model_dir;
  std::uint32_t servers = 1;
  // Names of the training tasks in the cluster file, in rank order: "chief:0" (where it trains), "worker:0", ...
  std::vector<std::string> listed_workers;
  std::vector<std::int64_t> batch_sizes;  // batch_size_list, as listed_workers; empty: none given
  bool expects_evaluator = false;
  // A server's room for staged updates, bytes; three find room whatever their size. In bsp without backup workers a
  // step of more updates is summed as they come.
  std::int64_t stage_bytes = std::int64_t{8} << 20;
  // Of earlier terms. The job goes on from the log's last commit where its servers still hold that, else from the
  // checkpoint.
  LogHistory history;
  std::optional<Manifest> resume;  // the newest checkpoint that `history` lets survive
};

// The job had ended well in an earlier term: whoever comes is told so, and nothing is done.
bool FinishedBefore(const ChiefOptions& options);

struct SendAction {
  SessionId session;
  Message message;
};
// After what was sent to it has gone out.
struct CloseAction {
  SessionId session;
};
struct AppendLogAction {
  LogRecord record;
};
struct SyncLogAction {};
// A new segment of the log begins with what is appended next. The one before it is synced.
struct CutLogAction {};
// Write it, prune older checkpoints, then call OnManifestWritten.
struct WriteManifestAction {
  Manifest manifest;
};
struct CommitRow {
  Version version;
  bool adopted = false;  // by a chief before this one: what only that one knew is not there
  TimePoint at{};        // of the decision
  double epoch = 0;      // passes over the data so far, with fraction
  std::int64_t samples = 0;
  std::int64_t samples_trained = 0;
  double loss = 0;  // mean over the samples
  double learning_rate = 0;
  std::optional<double> seconds;  // of training so far, of the whole job
  std::optional<double> examples_per_second;
  std::int64_t dropped_updates = 0;
  std::int64_t global_batch_size = 0;  // that the step was planned with
  // Of commits before this one, where servers measure gradients; noise and efficiency as chief/gradient_noise.h has
  // them.
  std::optional<double> gradient_norm;  // the newest measured commit's mean gradient
  std::optional<double> noise_scale;    // samples
  std::optional<double> statistical_efficiency;
  struct Worker {
    std::string name;
    Rank rank;
    std::int64_t batch = 0;
    double step_seconds = 0;       // computing; newest report; 0 before the first
    double busy_seconds = 0;       // of its newest step: from the go until every server had its gradient
    double predicted_seconds = 0;  // the same, as the batch controller had expected it; 0: it had not
    double waiting_share = 0;      // of its time since the decision on the update before
    std::int64_t staleness = 0;
    double gradient_norm = 0;           // of its newest measured update, a mean over its batch; 0: none is
    TimePoint bound_at{}, staged_at{};  // this update: from the go until every server had it
  };
  std::vector<Worker> workers;  // in rank order
};
struct CommitMetricsAction {
  CommitRow row;
};
struct LogLineAction {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};
// The job is over: end with this status once AwaitsUntil() has passed. parameters_sha256 is left to the runner.
struct EndAction {
  absl::Status status;
  Summary summary;
  std::optional<Version> final_checkpoint;
  bool finished_before = false;  // in an earlier term; there is no new summary
  bool keeps_summary = false;    // an earlier chief's, where there is one: this one had taken nothing up
};
using ChiefAction = std::variant<SendAction, CloseAction, AppendLogAction, SyncLogAction, CutLogAction,
                                 WriteManifestAction, CommitMetricsAction, LogLineAction, EndAction>;
using ChiefActions = std::vector<ChiefAction>;

class Chief {
 public:
  explicit Chief(ChiefOptions options);
  ~Chief();
  Chief(const Chief&) = delete;
  Chief& operator=(const Chief&) = delete;

  // Once, first. Errors end the job through an EndAction (a checkpoint that does not fit the experiment).
  ChiefActions Start(TimePoint now, std::int64_t unix_ms);
  ChiefActions OnMessage(SessionId session, Message message, TimePoint now);
  // A closed stream ends no membership.
  ChiefActions OnSessionClosed(SessionId session, TimePoint now);
  ChiefActions OnManifestWritten(Version version, const absl::Status& status, TimePoint now);
  ChiefActions Tick(TimePoint now);
  // SIGTERM: a checkpoint, then all leave.
  ChiefActions Stop(const std::string& reason, TimePoint now);
  TimePoint NextDeadline() const;

  // For `evenkeel status` and progress displays: a JSON object.
  std::string StatusJson(TimePoint now) const;
  bool ended() const;
  // After the end: until then it must be there for members that have not said that they know of it, as long as their
  // leases last. TimePoint::min() once all have.
  TimePoint AwaitsUntil() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace evenkeel
