#include "evenkeel/worker/worker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/plural.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/timeline.h"
#include "worker/worker_impl.h"

namespace evenkeel {
namespace worker_internal {
namespace {

// Before asking a server again that said "retry".
constexpr Duration kRetryPause = std::chrono::milliseconds(5);

}  // namespace

Worker::~Worker() {
  // Links ask the session for the envelope; the session's last callbacks need neither.
  links_.clear();
  coming_.clear();
  std::shared_ptr<MemberSession> last;
  {
    MutexLock lock(mutex_);
    last = std::exchange(session_, nullptr);
  }
  last.reset();
  buffers_.reset();
}

void Worker::Fail(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (!end_) end_ = status;
  NotifyLoop();
}

// --- callbacks ------------------------------------------------------------------------------------------------------

void Worker::OnWelcome(const Welcome& welcome, const Envelope& envelope) {
  ready_due_ = true;
  nothing_binds_ = false;
  connect_ahead_.reset();
  departure_.AnnounceAgain();
  if (welcome_) {
    servers_moved_ = true;
    if (welcome_->incarnation != welcome.incarnation) renewed_ = true;
    if (generation_ != envelope.generation) rest_in_doubt_ = true;  // it may be of an update that was taken back
    if (term_ != envelope.term || generation_ != envelope.generation || welcome_layout_ != envelope.layout) {
      // What the chief before this one had granted is void, and a layout changes only when no ticket is bound.
      Supersede();
      bound_.reset();
      ahead_.reset();
    }
  }
  welcome_ = welcome;
  term_ = envelope.term;
  generation_ = envelope.generation;
  welcome_layout_ = envelope.layout;
}

// A bound ticket follows the outcome of the one before; where that was lost with a broken stream, it stands for it.
void Worker::Supersede() {
  if (!current_ || (outcome_ && outcome_->update == *current_)) return;
  outcome_ = Outcome{*current_, false, {}};
  rest_in_doubt_ = true;  // it may have been committed
}

void Worker::OnChiefMessage(Message message) {
  if (const auto* leave = std::get_if<LeaveNow>(&message.body)) {
    BeginToLeave(leave->reason);
    MutexLock lock(mutex_);
    nothing_binds_ = true;
    NotifyLoop();
    return;
  }
  std::string say;
  {
    MutexLock lock(mutex_);
    if (auto* welcome = std::get_if<Welcome>(&message.body)) {
      OnWelcome(*welcome, message.envelope);
    } else if (auto* connect = std::get_if<ConnectAhead>(&message.body)) {
      connect_ahead_ = std::move(*connect);
    } else if (auto* admitted = std::get_if<Admitted>(&message.body)) {
      say = absl::StrCat("admitted with rank ", admitted->rank.value());
    } else if (auto* waiting = std::get_if<Waiting>(&message.body)) {
      if (!waiting->for_whom.empty() && waiting->for_whom != waits_for_ && waiting->for_whom != options_.name) {
        say = absl::StrCat("waiting for ", waiting->for_whom);
        if (waiting->deadline_ms > 0) {
          absl::StrAppendFormat(&say, ", at most %.1f s", ToSeconds(Milliseconds(waiting->deadline_ms)));
        }
      } else if (waiting->for_whom.empty() && !waits_for_.empty()) {
        say = "the job goes on";
      }
      waits_for_ = waiting->for_whom;
    } else if (auto* ticket = std::get_if<Ticket>(&message.body)) {
      // A provisional ticket comes behind a bound one that the step loop may not have taken yet.
      if (ticket->bound) {
        ahead_.reset();  // taken back, or become this one
        if (current_ != ticket->update) {
          Supersede();
          bound_ = std::move(*ticket);
        }
      } else {
        ahead_ = std::move(*ticket);
      }
    } else if (auto* bind = std::get_if<Bind>(&message.body)) {
      if (ahead_ && ahead_->update == bind->update) {
        Supersede();
        bound_ = std::exchange(ahead_, std::nullopt);
        bound_->bound = true;
        bound_->version = bind->version;
        bound_->deadline_ms = bind->deadline_ms;
        bound_->offer = bind->offer;
      }
    } else if (auto* outcome = std::get_if<Outcome>(&message.body)) {
      if (current_ == outcome->update) outcome_ = *outcome;
      committed_ |= outcome->committed;
      if (bound_ && bound_->update == outcome->update) bound_.reset();
    } else if (auto* end = std::get_if<JobEnd>(&message.body)) {
      say = absl::StrCat("the job is over: ", end->status, end->message.empty() ? "" : ": ", end->message);
      if (!end_) end_ = end->ok ? absl::OkStatus() : absl::AbortedError(absl::StrCat("the job failed: ", end->message));
    }
    NotifyLoop();
  }
  if (!say.empty()) LogInfo(say);
}

void Worker::OnPullData(const Link& link, const PullData& data, const PayloadIn& payload) {
  std::size_t index = 0;
  {
    MutexLock lock(mutex_);
    if (link.place == kNoPlace) return;
    index = static_cast<std::size_t>(link.place);
    if (data.request != pull_request_ || pulled_[index] || torn_pull_) return;
    if (pulled_version_[index] != Version{} && pulled_version_[index] != data.version) {
      torn_pull_ = true;  // layers may have computed on what came before
      NotifyLoop();
      return;
    }
    pulled_version_[index] = data.version;
    if (data.bucket < 0) {
      pulled_[index] = true;
      NotifyLoop();
      if (TimelineOn() && AllPulled()) {
        TimelineSpan("pull", absl::StrCat("pull ", ToString(data.version)), pull_began_, clock_.Now());
      }
      return;
    }
    if (static_cast<std::size_t>(data.bucket) < stripes_missing_.size() && stripe_here_[StripeAt(index, data.bucket)]) {
      return;  // the same again, which a layer may be reading
    }
    ++placing_;
  }
  const bool fits = buffers_->Place(data.bucket, ServerIndex(static_cast<std::uint32_t>(index)), payload);
  const bool whole = payload.Whole();
  MutexLock lock(mutex_);
  if (--placing_ == 0) none_placing_.NotifyAll();
  if (!whole) return;
  if (!fits) {
    if (!end_) {
      end_ = absl::InternalError(absl::StrCat("ps:", index, " sent ", payload.size(), " bytes for bucket ", data.bucket,
                                              "; its stripe has another size"));
    }
    NotifyLoop();
    return;
  }
  if (data.request != pull_request_ || torn_pull_) return;
  stripe_here_[StripeAt(index, data.bucket)] = true;
  if (--stripes_missing_[static_cast<std::size_t>(data.bucket)] == 0) NotifyLoop();
}

void Worker::OnServerMessage(const Link& link, Message message, const PayloadIn& payload) {
  if (const auto* data = std::get_if<PullData>(&message.body)) return OnPullData(link, *data, payload);
  MutexLock lock(mutex_);
  if (link.place == kNoPlace) return;
  const auto index = static_cast<std::size_t>(link.place);
  if (auto* ack = std::get_if<StageAck>(&message.body)) {
    if (ack->update == staging_.update && !ack->complete) {
      for (const std::int32_t bucket : ack->missing) missing_.emplace_back(link.place, bucket);
    }
  } else if (auto* refuse = std::get_if<Refuse>(&message.body)) {
    if (refuse->reason == RefuseReason::kRetry) {
      // A pull that came too early, or a stage whose slot is not free yet.
      const TimePoint later = clock_.Now() + kRetryPause;
      if (!pulled_[index]) pull_at_[index] = later;
      if (refuse->update == staging_.update) restage_at_[index] = later;
    } else if (refuse->reason == RefuseReason::kStaleIncarnation || refuse->reason == RefuseReason::kForeignJob) {
      if (!end_) {
        const std::string text =
            absl::StrCat("ps:", index, " refused (", ToString(refuse->reason), "): ", refuse->message);
        end_ = refuse->reason == RefuseReason::kStaleIncarnation ? absl::FailedPreconditionError(text)
                                                                 : absl::PermissionDeniedError(text);
      }
    } else if (current_ && refuse->update == *current_) {
      // Void there: it can never commit, or it has, and the word of it was lost.
      outcome_ = Outcome{*current_, false, {}};
      rest_in_doubt_ = true;
    }
  }
  NotifyLoop();
}

// --- start ----------------------------------------------------------------------------------------------------------

absl::Status Worker::OpenModel() {
  const Experiment& experiment = options_.experiment;
  LogInfo("opening the training data");
  EK_ASSIGN_OR_RETURN(data_, OpenTrainingData(experiment.input, options_.data_folder));
  if (experiment.train.backend == "reference") {
    backend_ = MakeReferenceBackend(DType::kFloat32);
  } else {
    EK_ASSIGN_OR_RETURN(backend_, MakeCpuBackend(CpuBackendOptions{options_.threads}));
  }
  const ExampleSpec& spec = data_.dataset->spec();
  EK_ASSIGN_OR_RETURN(
      model_, Model::Build(experiment.model, ModelOptions{spec.features, spec.label_width, spec.sparse}, *backend_));
  if (TimelineOn()) model_->Observe(&layer_timeline_);
  loader_ = std::make_unique<BatchLoader>(
      *data_.dataset,
      AugmentOptions{experiment.train.seed, experiment.input.flip_horizontal, experiment.input.crop_padding});
  return absl::OkStatus();
}

absl::Status Worker::Connect() {
  const MembershipConfig& membership = options_.experiment.membership;
  MemberSessionOptions session;
  session.chief_address = options_.chief_address;
  session.spec_hash = options_.experiment.spec_hash;
  session.chief_timeout = membership.chief_timeout;
  session.join.role = Role::kWorker;
  session.join.name = options_.name;
  session.join.index = options_.index;
  session.join.nonce = RandomNonce();
  session.join.experiment_json = options_.experiment.canonical_json;
  session.join.samples = data_.dataset->size();
  session.join.data_fingerprint = data_.fingerprint;
  session.join.data_statistics_json = data_.statistics_json;
  session.join.tensors.assign(model_->tensors().begin(), model_->tensors().end());
  session.join.compute_fingerprint = backend_->Fingerprint();
  session.join.former = former_;
  session.job_id = job_id_;
  auto fresh = std::make_shared<MemberSession>(
      std::move(session), transport_, clock_,
      MemberSession::Callbacks{[this](Message message) { OnChiefMessage(std::move(message)); },
                               [this](const absl::Status& status) { Fail(status); }});
  {
    MutexLock lock(mutex_);
    session_ = std::move(fresh);
  }
  data_paths_.clear();
  LogInfo(absl::StrCat("joining the job of the chief at ", options_.chief_address, ": ",
                       Counted(static_cast<std::uint64_t>(data_.dataset->size()), "training sample"), " open"));
  session_->Start();
  Doing("connecting to the servers");
  EK_RETURN_IF_ERROR(WaitFor("the chief's welcome", kNever,
                             [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return welcome_.has_value() || stop_asked_; }));
  Welcome welcome;
  {
    MutexLock lock(mutex_);
    if (end_ || !welcome_) return absl::OkStatus();
    welcome = *welcome_;
    layout_ = welcome_layout_;
    servers_moved_ = renewed_ = false;
  }
  LogInfo(absl::StrCat("taken in as incarnation ", welcome.incarnation.value(),
                       "; before it is admitted it connects to ", Counted(welcome.servers.size(), "server"),
                       " and takes a step for nothing"));
  EK_RETURN_IF_ERROR(Divide(welcome, /*renewed=*/true));
  EK_RETURN_IF_ERROR(TimeMyself());
  EK_RETURN_IF_ERROR(WarmUp(welcome.likely_samples, welcome.likely_later));
  return WaitFor("the servers", kNever, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stop_asked_ || AllUp(); });
}

// When the next connection is due, and when patience with a server ends where it is needed.
absl::Status Worker::WatchLinks(const std::string& what, bool needs_servers, TimePoint now, TimePoint& attempt,
                                TimePoint& wake) {
  const Duration ps_timeout = options_.experiment.membership.ps_timeout;
  for (const auto& link : coming_) attempt = std::min(attempt, link->stream->NextAttempt());
  for (const auto& owner : links_) {
    Link& held = *owner;
    const ServerLink* const link = held.stream.get();
    attempt = std::min(attempt, link->NextAttempt());
    const TimePoint down = link->down_since();
    if (down == kNever) held.said_down = false;
    if (down == kNever || !needs_servers) continue;
    if (const std::string why = link->last_error(); !why.empty() && !held.said_down) {
      held.said_down = true;
      const std::string whom = absl::StrCat("waiting for ", link->server(), " at ", link->address());
      LogInfo(absl::StrFormat("%s, at most %.1f s (%s)", whom, ToSeconds(down + ps_timeout - now), why));
      Doing(absl::StrCat(whom, ": ", why));
    }
    if (down + ps_timeout <= now) {
      return absl::DeadlineExceededError(absl::StrFormat("waited %.1f s for %s at %s, while waiting for %s: %s",
                                                         ToSeconds(ps_timeout), link->server(), link->address(), what,
                                                         link->last_error()));
    }
    wake = std::min(wake, down + ps_timeout);
  }
  return absl::OkStatus();
}

absl::Status Worker::WaitFor(const std::string& what, TimePoint deadline, const std::function<bool()>& done,
                             bool needs_servers) {
  for (;;) {
    EK_RETURN_IF_ERROR(FollowServers());
    for (auto& link : links_) link->stream->Poll();
    FollowLayoutToCome();
    TellDataPaths();
    SayReady();
    for (bool attended = false;;) {
      std::uint64_t known = 0;
      {
        MutexLock lock(mutex_);
        if (end_) return *end_;
        // First, because a ticket that came after them is for the new servers.
        if (servers_moved_ && !links_.empty()) break;
        if (done()) return absl::OkStatus();
        const TimePoint now = clock_.Now();
        if (now >= deadline) return absl::DeadlineExceededError(absl::StrCat("waited too long for ", what));
        TimePoint wake = deadline;
        for (TimePoint due : pull_at_) wake = std::min(wake, due > now ? due : kNever);
        for (TimePoint due : restage_at_) wake = std::min(wake, due > now ? due : kNever);
        TimePoint attempt = kNever;
        EK_RETURN_IF_ERROR(WatchLinks(what, needs_servers, now, attempt, wake));
        if (attempt <= now || (ready_due_ && AllUp()) || LayoutToComeDue()) break;
        if (std::exchange(attended, false)) {
          changed_.WaitUntil(mutex_, std::min(wake, attempt));
          continue;
        }
        known = changes_.load(std::memory_order_relaxed);
      }
      // Before it sleeps; then everything is looked at once more.
      const auto changed = [&] { return changes_.load(std::memory_order_acquire) != known; };
      transport_.Attend(changed);
      attended = !changed();
    }
  }
}

// --- the loop -------------------------------------------------------------------------------------------------------

absl::Status Worker::Loop() {
  for (;;) {
    Doing("waiting for a ticket");
    EK_RETURN_IF_ERROR(WaitFor(
        "a ticket", kNever,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return (stop_asked_ && nothing_binds_) || bound_ || (ahead_ && ahead_->update != requested_);
        },
        /*needs_servers=*/false));
    std::optional<Ticket> ticket;
    {
      MutexLock lock(mutex_);
      if (end_) return absl::OkStatus();
      if (servers_moved_) continue;  // the ticket came after that
      const bool fits = !stop_asked_ || clock_.Now() + FromSeconds(step_seconds_) <= leave_by_;
      if (stop_asked_ && (bound_ ? !fits : nothing_binds_)) return absl::OkStatus();
      ticket = std::exchange(bound_, std::nullopt);
      if (ticket) {
        current_ = ticket->update;
        outcome_.reset();
      }
    }
    if (!ticket) {
      ReadAhead();
      continue;
    }
    if (requested_ != ticket->update) {
      loader_->Request(ticket->update, ticket->epoch, ticket->positions);
      requested_ = ticket->update;
    }
    const absl::Status status = Step(*ticket);
    MutexLock lock(mutex_);
    step_began_ = kNever;
    current_.reset();
    if (!status.ok()) return status;
  }
}

// Has the provisional ticket's samples read, if that is not asked for yet. Who has no step under way, as after joining,
// asks for its version too.
void Worker::ReadAhead() {
  std::optional<Ticket> ahead;
  {
    MutexLock lock(mutex_);
    if (!bound_) ahead = ahead_;  // else what is read for the bound one would go for it
  }
  if (!ahead || requested_ == ahead->update) return;
  loader_->Request(ahead->update, ahead->epoch, ahead->positions);
  requested_ = ahead->update;
  bool idle = false;
  {
    MutexLock lock(mutex_);
    idle = !current_ && asked_ahead_ != ahead->version;
  }
  if (idle && ahead->version != Version{}) PullAhead(*ahead, ahead->version);
}

}  // namespace worker_internal

absl::Status RunWorker(const WorkerOptions& options, Transport& transport, const Clock& clock, StopSource& stop) {
  return worker_internal::Worker(options, transport, clock, stop).Run();
}

}  // namespace evenkeel
