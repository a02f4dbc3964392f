#include "evenkeel/runtime/chief_runner.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/chief/chief.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/timeline.h"
#include "evenkeel/protocol/commit_log.h"
#include "evenkeel/protocol/log_record.h"
#include "runtime/chief_outputs.h"
#include "runtime/job_folder.h"

namespace evenkeel {
namespace {

constexpr Duration kShutdownGrace = std::chrono::seconds(1);  // for who has said goodbye, or will not
constexpr Duration kFlushInterval = std::chrono::seconds(1);
// Work for the disk that has not been done yet; beyond it the decisions wait.
constexpr std::size_t kMaxDiskQueue = 1 << 16;
// Rows of metrics are many and nobody waits for them: they are written in batches, so large or so old at most.
constexpr std::size_t kRowsAtOnce = 1 << 10;
constexpr Duration kRowsWait = std::chrono::milliseconds(100);
constexpr int kBatchesInTurn = 64;  // of actions, that one thread carries out on end

class ChiefRunner {
 public:
  ChiefRunner(const ChiefRunnerOptions& options, Transport& transport, Storage& storage, const Clock& clock,
              StopSource& stop)
      : options_(options), transport_(transport), storage_(storage), clock_(clock), stop_(stop) {}

  absl::Status Run();

 private:
  struct Handler : StreamHandler {
    Handler(ChiefRunner& r, SessionId s) : runner(r), session(s) {}
    void OnMessage(Stream&, Message message, const PayloadIn&) override {
      runner.Deliver([&](Chief& chief, TimePoint now) { return chief.OnMessage(session, std::move(message), now); });
    }
    void OnClosed(Stream&, const absl::Status&) override {
      runner.Forget(session);
      runner.Deliver([&](Chief& chief, TimePoint now) { return chief.OnSessionClosed(session, now); });
    }
    ChiefRunner& runner;
    SessionId session;
  };
  struct SyncFormerLog {
    std::shared_ptr<WritableFile> log;  // work in a queue is copied
  };
  using DiskWork = std::variant<SyncLogAction, SyncFormerLog, WriteManifestAction, CommitMetricsAction>;

  absl::Status Prepare();
  // Feeds an event to the chief; what follows is done here, or by whoever is at it.
  template <class Event>
  void Deliver(Event&& event);
  template <class Event>
  void Feed(Event&& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PerformPending();
  bool NobodyPerforms() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !performing_ && !pending_.empty(); }
  void Perform(ChiefAction& action);
  void CutLog();
  void NoteOutputError(const absl::Status& status);
  void Forget(SessionId session);
  void QueueForDisk(DiskWork work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunTimer();
  void RunDisk();
  void DoDiskWork(DiskWork& work);
  absl::Status WriteAndPrune(const Manifest& manifest);
  absl::Status FinishOutputs();
  void AwaitGoodbyes();

  // Constant after Prepare.
  const ChiefRunnerOptions& options_;
  Transport& transport_;
  Storage& storage_;
  const Clock& clock_;
  StopSource& stop_;
  std::unique_ptr<ChiefOutputs> outputs_;
  Term term_;

  // Of whoever performs actions.
  std::uint64_t segment_ = 0;

  Mutex mutex_;
  // Each of one kind of waiter: at every message a wake-up of all would cost more than the message.
  CondVar timer_changed_;                 // the timer has something to do before it wakes by itself
  CondVar disk_changed_, disk_has_room_;  // work for the disk, and room for it
  CondVar ending_;                        // what Run waits for, once the end is near
  TimePoint timer_wakes_ ABSL_GUARDED_BY(mutex_) = TimePoint::min();  // min: it is awake
  std::shared_ptr<WritableFile> log_;  // replaced under the mutex by whoever performs; work for the disk shares it
  std::unique_ptr<Chief> chief_ ABSL_GUARDED_BY(mutex_);
  // Actions are performed in order, outside the mutex, by whichever thread finds nobody doing it.
  std::deque<ChiefAction> pending_ ABSL_GUARDED_BY(mutex_);
  bool performing_ ABSL_GUARDED_BY(mutex_) = false;
  bool timer_gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<SessionId, std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  SessionId last_session_ ABSL_GUARDED_BY(mutex_);
  bool stop_asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_told_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<DiskWork> disk_ ABSL_GUARDED_BY(mutex_);
  TimePoint disk_due_ ABSL_GUARDED_BY(mutex_) = kNever;  // when what is in it is to be done
  bool disk_done_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<EndAction> end_ ABSL_GUARDED_BY(mutex_);
  absl::Status output_error_ ABSL_GUARDED_BY(mutex_);
};

absl::Status ChiefRunner::Prepare() {
  EK_ASSIGN_OR_RETURN(JobFolder folder, ReadJobFolder(storage_, options_.model_dir));
  ChiefOptions chief;
  chief.experiment = options_.experiment;
  chief.model_dir = options_.model_dir;
  chief.servers = options_.servers;
  chief.listed_workers = options_.listed_workers;
  chief.batch_sizes = options_.batch_sizes;
  chief.expects_evaluator = options_.expects_evaluator;
  chief.new_job_id = absl::StrFormat("%016x%016x", RandomNonce(), RandomNonce());
  std::optional<std::int64_t> resumed;
  if (!folder.history.job_id.empty()) {
    CommitNumber last = folder.newest ? folder.newest->version.commit : CommitNumber(0);
    if (!folder.history.commits.empty()) last = std::max(last, folder.history.commits.back().version.commit);
    resumed = static_cast<std::int64_t>(last.value());
  }
  EK_ASSIGN_OR_RETURN(ClaimedTerm claim, ClaimTerm(storage_, options_.model_dir, folder.history.last_term));
  log_ = std::move(claim.log);
  EK_RETURN_IF_ERROR(storage_.SyncFolder(options_.model_dir));
  chief.term = term_ = claim.term;
  chief.history = std::move(folder.history);
  chief.resume = std::move(folder.newest);
  if (!FinishedBefore(chief)) {
    EK_ASSIGN_OR_RETURN(outputs_, ChiefOutputs::Open(storage_, options_.model_dir, clock_, resumed));
  }
  MutexLock lock(mutex_);
  chief_ = std::make_unique<Chief>(std::move(chief));
  return absl::OkStatus();
}

template <class Event>
void ChiefRunner::Feed(Event&& event) {
  for (ChiefAction& action : event(*chief_, clock_.Now())) pending_.push_back(std::move(action));
  if (chief_->NextDeadline() < timer_wakes_) timer_changed_.NotifyOne();
  if (end_) ending_.NotifyAll();
}

template <class Event>
void ChiefRunner::Deliver(Event&& event) {
  {
    MutexLock lock(mutex_);
    Feed(event);
  }
  PerformPending();
}

// A thread that goes on while others bring more leaves its own work undone: what is pending after kBatchesInTurn is the
// timer's, or the next event's.
void ChiefRunner::PerformPending() {
  std::deque<ChiefAction> batch;
  for (int batches = 0;; ++batches) {
    {
      MutexLock lock(mutex_);
      if (batches == 0 && performing_) return;
      performing_ = !pending_.empty();
      if (performing_ && batches >= kBatchesInTurn && !timer_gone_) {
        performing_ = false;
        timer_changed_.NotifyOne();
        return;
      }
      if (!performing_) {
        if (end_ || !output_error_.ok()) ending_.NotifyAll();
        return;
      }
      batch.swap(pending_);
    }
    for (ChiefAction& action : batch) Perform(action);
    batch.clear();
  }
}

void ChiefRunner::Perform(ChiefAction& action) {
  if (auto* send = std::get_if<SendAction>(&action)) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(mutex_);
      auto it = streams_.find(send->session);
      if (it == streams_.end()) return;
      stream = it->second;
    }
    (void)stream->Send(std::move(send->message));  // a stream that fails ends in OnClosed
  } else if (auto* close = std::get_if<CloseAction>(&action)) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(mutex_);
      auto it = streams_.find(close->session);
      if (it == streams_.end()) return;
      stream = it->second;
    }
    stream->Close();
  } else if (auto* append = std::get_if<AppendLogAction>(&action)) {
    const std::string bytes = EncodeLogRecord(append->record);
    NoteOutputError(Annotate(log_->Append(std::as_bytes(std::span(bytes))), "commit log"));
  } else if (std::holds_alternative<CutLogAction>(action)) {
    CutLog();
  } else if (auto* line = std::get_if<LogLineAction>(&action)) {
    Log(line->level, line->text);
  } else if (auto* end = std::get_if<EndAction>(&action)) {
    MutexLock lock(mutex_);
    end_ = std::move(*end);
    timer_changed_.NotifyAll();
    ending_.NotifyAll();
  } else {
    MutexLock lock(mutex_);
    while (disk_.size() >= kMaxDiskQueue) disk_has_room_.Wait(mutex_);
    if (auto* sync = std::get_if<SyncLogAction>(&action)) QueueForDisk(*sync);
    if (auto* write = std::get_if<WriteManifestAction>(&action)) QueueForDisk(std::move(*write));
    if (auto* row = std::get_if<CommitMetricsAction>(&action)) QueueForDisk(std::move(*row));
  }
}

void ChiefRunner::QueueForDisk(DiskWork work) {
  const bool at_once = !std::holds_alternative<CommitMetricsAction>(work) || disk_.size() + 1 >= kRowsAtOnce;
  disk_.push_back(std::move(work));
  const TimePoint due = at_once ? TimePoint::min() : clock_.Now() + kRowsWait;
  if (due >= disk_due_) return;  // it wakes early enough
  disk_due_ = due;
  disk_changed_.NotifyAll();
}

void ChiefRunner::CutLog() {
  const std::string path = JoinPath(options_.model_dir, LogFileName(term_, ++segment_));
  auto opened = storage_.Open(path, Storage::Create::kExclusive);
  if (!opened.ok()) return NoteOutputError(Annotate(opened.status(), "commit log"));
  MutexLock lock(mutex_);
  QueueForDisk(SyncFormerLog{std::move(log_)});
  log_ = *std::move(opened);
}

void ChiefRunner::NoteOutputError(const absl::Status& status) {
  if (status.ok()) return;
  MutexLock lock(mutex_);
  if (output_error_.ok()) output_error_ = status;
  timer_changed_.NotifyAll();
  ending_.NotifyAll();
}

void ChiefRunner::Forget(SessionId session) {
  std::shared_ptr<Stream> last;
  MutexLock lock(mutex_);
  auto it = streams_.find(session);
  if (it == streams_.end()) return;
  last = std::move(it->second);
  streams_.erase(it);
}

// Ticks, tells the chief to stop, and carries out what others have left.
void ChiefRunner::RunTimer() {
  for (;;) {
    bool stop_now = false, due = false;
    {
      MutexLock lock(mutex_);
      while (!end_ && output_error_.ok() && !(stop_asked_ && !stop_told_) && !NobodyPerforms() &&
             clock_.Now() < chief_->NextDeadline()) {
        timer_wakes_ = chief_->NextDeadline();
        timer_changed_.WaitUntil(mutex_, timer_wakes_);
      }
      timer_wakes_ = TimePoint::min();
      timer_gone_ = end_ || !output_error_.ok();
      if (timer_gone_) return;
      if (stop_asked_ && !stop_told_) stop_now = stop_told_ = true;
      due = clock_.Now() >= chief_->NextDeadline();
    }
    if (stop_now) {
      const std::string reason = stop_.reason();  // not under our lock: a request holds its own while it takes ours
      Deliver([&](Chief& chief, TimePoint now) { return chief.Stop(reason, now); });
    } else if (due) {
      Deliver([](Chief& chief, TimePoint now) { return chief.Tick(now); });
    } else {
      PerformPending();
    }
  }
}

// Slow work in order, off the decisions' path.
void ChiefRunner::RunDisk() {
  TimePoint next_flush = kNever;
  for (;;) {
    std::deque<DiskWork> works;
    {
      MutexLock lock(mutex_);
      while (!disk_done_ && clock_.Now() < std::min(disk_due_, next_flush)) {
        disk_changed_.WaitUntil(mutex_, std::min(disk_due_, next_flush));
      }
      if (disk_done_ && disk_.empty()) return;
      works.swap(disk_);
      disk_due_ = kNever;
      disk_has_room_.NotifyAll();
    }
    for (DiskWork& work : works) DoDiskWork(work);
    if (!works.empty() && next_flush == kNever) next_flush = clock_.Now() + kFlushInterval;
    if (clock_.Now() < next_flush) continue;
    next_flush = kNever;
    if (outputs_) NoteOutputError(outputs_->Flush());
  }
}

// What each worker's update had been through when it was committed, on a track for each.
void DrawCommit(const CommitRow& row) {
  if (!TimelineOn() || row.adopted) return;
  for (const CommitRow::Worker& worker : row.workers) {
    TimelineSpan(worker.name, absl::StrCat(worker.batch, " samples for ", ToString(row.version)), worker.bound_at,
                 worker.staged_at);
    TimelineSpan(worker.name, "wait for the others", worker.staged_at, row.at);
  }
  TimelineMark("commits", absl::StrCat("commit ", ToString(row.version)), row.at);
}

void ChiefRunner::DoDiskWork(DiskWork& work) {
  absl::Status status;
  if (std::holds_alternative<SyncLogAction>(work)) {
    std::shared_ptr<WritableFile> log;
    {
      MutexLock lock(mutex_);
      log = log_;
    }
    status = log->Sync();
  }
  if (auto* former = std::get_if<SyncFormerLog>(&work)) {
    status = former->log->Sync();
    if (status.ok()) status = storage_.SyncFolder(options_.model_dir);
  }
  if (auto* row = std::get_if<CommitMetricsAction>(&work)) {
    status = outputs_->Write(row->row);
    DrawCommit(row->row);
  }
  if (auto* write = std::get_if<WriteManifestAction>(&work)) {
    const Version version = write->manifest.version;
    // A chief that is started again knows the commits after it from the log: what was before must be in the files.
    if (outputs_) NoteOutputError(outputs_->Flush());
    const absl::Status written = WriteAndPrune(write->manifest);
    // Carried out elsewhere: actions may wait for room in this thread's queue.
    MutexLock lock(mutex_);
    Feed([&](Chief& chief, TimePoint now) { return chief.OnManifestWritten(version, written, now); });
    if (NobodyPerforms()) timer_changed_.NotifyOne();
  }
  NoteOutputError(status);
}

absl::Status ChiefRunner::WriteAndPrune(const Manifest& manifest) {
  EK_RETURN_IF_ERROR(WriteManifest(storage_, options_.model_dir, manifest));
  EK_ASSIGN_OR_RETURN(const CheckpointList list, ListCheckpoints(storage_, options_.model_dir));
  const CheckpointConfig& config = options_.experiment.checkpoint;
  const Version pinned[] = {manifest.version};
  for (Version version : CheckpointsToRemove(list.versions, config.keep_max, config.keep_every, pinned)) {
    absl::Status removed = RemoveCheckpoint(storage_, options_.model_dir, version);
    if (!removed.ok()) LogWarning(absl::StrCat("old checkpoint stays: ", removed.message()));
  }
  return absl::OkStatus();
}

absl::Status ChiefRunner::FinishOutputs() {
  std::optional<EndAction> end;
  {
    MutexLock lock(mutex_);
    end = end_;
  }
  if (outputs_) EK_RETURN_IF_ERROR(outputs_->Flush());
  EK_RETURN_IF_ERROR(log_->Sync());
  if (end->finished_before) return absl::OkStatus();
  if (end->keeps_summary && storage_.Exists(JoinPath(options_.model_dir, "summary.json"))) return absl::OkStatus();
  if (end->final_checkpoint) {
    EK_ASSIGN_OR_RETURN(const CheckpointReader reader,
                        CheckpointReader::Open(storage_, options_.model_dir, *end->final_checkpoint));
    EK_ASSIGN_OR_RETURN(end->summary.parameters_sha256, ParametersSha256(reader));
  }
  return WriteSummary(storage_, options_.model_dir, end->summary);
}

// Whoever lost its stream just before the end comes back and hears it.
void ChiefRunner::AwaitGoodbyes() {
  MutexLock lock(mutex_);
  for (;;) {
    const TimePoint until = chief_->AwaitsUntil();
    const bool stop = stop_asked_ && !std::exchange(stop_told_, true);
    if (stop || clock_.Now() >= until) return;
    ending_.WaitUntil(mutex_, until);
  }
}

absl::Status ChiefRunner::Run() {
  EK_RETURN_IF_ERROR(storage_.MakeFolder(options_.model_dir));
  EK_ASSIGN_OR_RETURN(ModelDirLock lock_file, ModelDirLock::Take(options_.model_dir));
  EK_RETURN_IF_ERROR(Prepare());
  auto accept = [this](std::shared_ptr<Stream> stream) -> std::shared_ptr<StreamHandler> {
    MutexLock lock(mutex_);
    last_session_ = last_session_.Next();
    streams_[last_session_] = std::move(stream);
    return std::make_shared<Handler>(*this, last_session_);
  };
  // Before anybody can come: the log begins with the term.
  Deliver([&](Chief& chief, TimePoint now) {
    return chief.Start(now, clock_.WallNow().time_since_epoch() / std::chrono::milliseconds(1));
  });
  EK_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                      transport_.Listen(Service::kChief, options_.listen_address, accept));
  if (options_.on_listening) options_.on_listening(listener->port());
  const int subscription = stop_.Subscribe([this] {
    MutexLock lock(mutex_);
    stop_asked_ = true;
    timer_changed_.NotifyAll();
    ending_.NotifyAll();
  });
  std::thread timer([this] { RunTimer(); });
  std::thread disk([this] { RunDisk(); });

  absl::Status output_error;
  {
    MutexLock lock(mutex_);
    while (!end_ && output_error_.ok()) ending_.Wait(mutex_);
    output_error = output_error_;
  }
  timer.join();
  PerformPending();  // what was left to the timer
  {
    MutexLock lock(mutex_);
    while (performing_) ending_.Wait(mutex_);
    disk_done_ = true;
    disk_changed_.NotifyAll();
  }
  disk.join();
  PerformPending();  // what followed the disk's last work
  // A chief that cannot write decides nothing more; its members are let go without a word of success.
  absl::Status result = output_error.ok() ? FinishOutputs() : output_error;
  if (result.ok()) AwaitGoodbyes();
  stop_.Unsubscribe(subscription);
  listener->Shutdown(kShutdownGrace);
  {
    MutexLock lock(mutex_);
    streams_.clear();
  }
  if (!result.ok()) return result;
  MutexLock lock(mutex_);
  return end_->status;
}

}  // namespace

absl::Status RunChief(const ChiefRunnerOptions& options, Transport& transport, Storage& storage, const Clock& clock,
                      StopSource& stop) {
  return ChiefRunner(options, transport, storage, clock, stop).Run();
}

}  // namespace evenkeel
