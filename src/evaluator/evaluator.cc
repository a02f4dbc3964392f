#include "evenkeel/evaluator/evaluator.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evaluator/folder_watch.h"
#include "evaluator/score_runner.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/member_session.h"

namespace evenkeel {
namespace {

// How often to look again where no event can be relied on.
constexpr Duration kLookAgain = std::chrono::seconds(1);
// Announcements kept while a score is in progress; the folder tells about older ones.
constexpr std::size_t kAnnouncedMax = 1024;

class Evaluator {
 public:
  Evaluator(const EvaluatorOptions& options, Transport& transport, Storage& storage, const Clock& clock,
            StopSource& stop)
      : options_(options),
        transport_(transport),
        clock_(clock),
        stop_(stop),
        runner_(options, storage, clock, [this](Version version, bool final) { return Cancelled(version, final); }) {}

  absl::Status Run();

 private:
  // What came since the last look.
  struct News {
    std::deque<CheckpointDurable> announced;
    std::optional<std::string> welcomed_job;
    std::optional<absl::Status> end;
    bool stop = false;
  };

  // --- callbacks
  void OnChiefMessage(Message message);
  void OnEnd(const absl::Status& status);
  void OnStop();
  bool Cancelled(Version version, bool final);

  // --- the caller's thread
  absl::Status Alone();
  absl::Status IdleEnd(Duration idle) const;
  absl::Status Beside();
  std::unique_ptr<MemberSession> Connect();
  News AwaitNews();
  absl::Status ScoreDue(bool only_final);
  void Report();
  absl::Status Finish(const absl::Status& end);
  absl::Status LeaveInOrder();

  // Constant after construction.
  const EvaluatorOptions& options_;
  Transport& transport_;
  const Clock& clock_;
  StopSource& stop_;

  // The caller's thread only.
  ScoreRunner runner_;
  FolderWatch watch_;
  bool found_ = false;  // a score, or a checkpoint not seen before, since last cleared
  bool ever_scored_ = false;
  std::optional<Version> final_sent_;  // on the present stream

  Mutex mutex_;
  CondVar changed_;
  News news_ ABSL_GUARDED_BY(mutex_);
  std::optional<Version> announced_final_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<MemberSession> session_;  // last: its callbacks use the others
};

// --- callbacks ------------------------------------------------------------------------------------------------------

void Evaluator::OnChiefMessage(Message message) {
  std::string say;
  {
    MutexLock lock(mutex_);
    if (const auto* durable = std::get_if<CheckpointDurable>(&message.body)) {
      if (news_.announced.size() == kAnnouncedMax) news_.announced.pop_front();
      news_.announced.push_back(*durable);
      if (durable->final_checkpoint) announced_final_ = durable->version;
    } else if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
      news_.welcomed_job = welcome->job_id;
    } else if (const auto* end = std::get_if<JobEnd>(&message.body)) {
      say = absl::StrCat("the job is over: ", end->status, end->message.empty() ? "" : ": ", end->message);
      if (!news_.end) news_.end = absl::OkStatus();
    }
    changed_.NotifyAll();
  }
  if (!say.empty()) LogInfo(say);
}

void Evaluator::OnEnd(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (!news_.end) news_.end = status;
  changed_.NotifyAll();
}

void Evaluator::OnStop() {
  watch_.Wake();
  MutexLock lock(mutex_);
  news_.stop = true;
  changed_.NotifyAll();
}

bool Evaluator::Cancelled(Version version, bool final) {
  MutexLock lock(mutex_);
  if (news_.stop) return true;
  return news_.end && !final && announced_final_ != version;
}

// --- alone on a model_dir -------------------------------------------------------------------------------------------

absl::Status Evaluator::IdleEnd(Duration idle) const {
  const std::string waited = absl::StrFormat("nothing new in %s for %.1f s", options_.model_dir, ToSeconds(idle));
  const absl::Status damage = runner_.AnyDamage();
  if (!ever_scored_ && !damage.ok() && !runner_.state().last()) return damage;
  if (!runner_.newest()) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "[evaluator] waited %.1f s for a first checkpoint in %s/checkpoints; is it the job's model_dir?",
        ToSeconds(idle), options_.model_dir));
  }
  LogInfo(absl::StrCat(waited, "; ending"));
  return absl::OkStatus();
}

absl::Status Evaluator::Alone() {
  TimePoint last_news = clock_.Now();
  std::optional<Version> seen;
  LogInfo(absl::StrFormat("following %s until its final checkpoint, or nothing new comes for %.0f s",
                          options_.model_dir, ToSeconds(EvalConfig().idle_timeout)));
  for (;;) {
    EK_RETURN_IF_ERROR(runner_.Look());
    // What appears between the look and the watch is found by the next look.
    for (const std::string& folder : runner_.folders()) watch_.Add(folder);
    EK_RETURN_IF_ERROR(ScoreDue(/*only_final=*/false));
    if (stop_.requested()) {
      LogInfo(absl::StrCat("ending: ", stop_.reason()));
      return absl::OkStatus();
    }
    const std::optional<ScoreRunner::Newest>& newest = runner_.newest();
    if (newest && newest->final) {
      EK_RETURN_IF_ERROR(runner_.DamageOf(newest->version));
      if (runner_.state().Scored(newest->version)) {
        LogInfo(absl::StrCat("the final checkpoint, ", CheckpointName(newest->version), ", is scored"));
        return absl::OkStatus();
      }
    }
    const TimePoint now = clock_.Now();
    if (std::exchange(found_, false) || (newest && seen != newest->version)) {
      last_news = now;
      if (newest) seen = newest->version;
    }
    const Duration idle = runner_.experiment() ? runner_.experiment()->eval.idle_timeout : EvalConfig().idle_timeout;
    if (now - last_news >= idle) return IdleEnd(idle);
    watch_.Wait(std::min(kLookAgain, last_news + idle - now));
  }
}

// --- beside a job ---------------------------------------------------------------------------------------------------

std::unique_ptr<MemberSession> Evaluator::Connect() {
  const Experiment& experiment = *options_.experiment;
  MemberSessionOptions session;
  session.chief_address = options_.chief_address;
  session.spec_hash = experiment.spec_hash;
  session.chief_timeout = experiment.membership.chief_timeout;
  session.join.role = Role::kEvaluator;
  session.join.name = options_.name;
  session.join.nonce = RandomNonce();
  session.join.experiment_json = experiment.canonical_json;
  return std::make_unique<MemberSession>(
      std::move(session), transport_, clock_,
      MemberSession::Callbacks{[this](Message message) { OnChiefMessage(std::move(message)); },
                               [this](const absl::Status& status) { OnEnd(status); }});
}

Evaluator::News Evaluator::AwaitNews() {
  const TimePoint look_again = runner_.awaits_files() ? clock_.Now() + kLookAgain : kNever;
  MutexLock lock(mutex_);
  while (news_.announced.empty() && !news_.welcomed_job && !news_.end && !news_.stop) {
    if (!changed_.WaitUntil(mutex_, look_again)) break;
  }
  News news;
  news.announced.swap(news_.announced);
  news.welcomed_job = std::exchange(news_.welcomed_job, std::nullopt);
  news.end = news_.end;
  news.stop = news_.stop;
  return news;
}

void Evaluator::Report() {
  EvalReport report = runner_.Report();
  const bool final = report.final_score;
  const Version version = report.version;
  // Without a stream it is lost; the next Welcome has it said again.
  if (session_ && session_->Send(std::move(report)) && final) final_sent_ = version;
}

absl::Status Evaluator::Beside() {
  if (!options_.experiment) {
    return absl::InvalidArgumentError(
        "[evaluator] beside a chief it needs the job's experiment; give --experiment FILE");
  }
  session_ = Connect();
  session_->SetState("waiting for a checkpoint");
  session_->Start();
  for (;;) {
    News news = AwaitNews();
    for (const CheckpointDurable& durable : news.announced) runner_.Announce(durable.version, durable.final_checkpoint);
    if (news.stop) return LeaveInOrder();
    if (news.end) return Finish(*news.end);
    EK_RETURN_IF_ERROR(runner_.Look());
    if (news.welcomed_job) {
      final_sent_.reset();
      // A chief that came back, or missed it, learns of the best so far.
      if (runner_.state().last() && runner_.state().job_id() == *news.welcomed_job) Report();
    }
    EK_RETURN_IF_ERROR(ScoreDue(/*only_final=*/false));
    // The final checkpoint may be one that was scored when it was not known to be the last.
    const std::optional<Score>& last = runner_.state().last();
    if (last && runner_.AnnouncedFinal(last->version) && final_sent_ != last->version) Report();
    session_->SetState("waiting for a checkpoint");
  }
}

absl::Status Evaluator::ScoreDue(bool only_final) {
  while (const std::optional<Version> version = runner_.NextDue(only_final)) {
    if (session_) session_->SetState(absl::StrCat("scoring ", CheckpointName(*version)));
    EK_ASSIGN_OR_RETURN(const ScoreRunner::Result result, runner_.ScoreOne(*version));
    if (result == ScoreRunner::Result::kCancelled) return absl::OkStatus();
    found_ = true;
    if (result == ScoreRunner::Result::kScored) {
      ever_scored_ = true;
      Report();
    }
    std::deque<CheckpointDurable> announced;
    {
      MutexLock lock(mutex_);
      if (news_.stop || (news_.end && !only_final)) return absl::OkStatus();
      announced.swap(news_.announced);
    }
    for (const CheckpointDurable& durable : announced) runner_.Announce(durable.version, durable.final_checkpoint);
    EK_RETURN_IF_ERROR(runner_.Look());
  }
  return absl::OkStatus();
}

absl::Status Evaluator::Finish(const absl::Status& end) {
  if (absl::IsPermissionDenied(end) || absl::IsInvalidArgument(end)) return end;  // never was this job's
  EK_RETURN_IF_ERROR(runner_.Look());
  EK_RETURN_IF_ERROR(ScoreDue(/*only_final=*/true));
  return end;
}

absl::Status Evaluator::LeaveInOrder() {
  LogInfo(absl::StrCat("leaving: ", stop_.reason()));
  const Duration drain = options_.experiment->membership.drain;
  session_->Leave(stop_.reason(), drain);
  const TimePoint deadline = clock_.Now() + drain;
  MutexLock lock(mutex_);
  while (!news_.end && changed_.WaitUntil(mutex_, deadline)) {
  }
  return absl::OkStatus();
}

absl::Status Evaluator::Run() {
  EK_RETURN_IF_ERROR(runner_.Start());
  const int subscription = stop_.Subscribe([this] { OnStop(); });
  const absl::Status status = options_.chief_address.empty() ? Alone() : Beside();
  session_.reset();
  stop_.Unsubscribe(subscription);
  return status;
}

}  // namespace

absl::Status RunEvaluator(const EvaluatorOptions& options, Transport& transport, Storage& storage, const Clock& clock,
                          StopSource& stop) {
  if (options.model_dir.empty()) {
    return absl::InvalidArgumentError("[evaluator] there is no model_dir; give the folder that the job writes to");
  }
  return Evaluator(options, transport, storage, clock, stop).Run();
}

}  // namespace evenkeel
