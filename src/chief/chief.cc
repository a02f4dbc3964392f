#include "evenkeel/chief/chief.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "chief/chief_impl.h"
#include "evenkeel/core/plural.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

// Of two experiments, in words.
constexpr std::size_t kDifferingFieldsNamed = 8;
constexpr int kMaxDifferingFields = 1000;
// A chief that has nothing to do stays so long for its members to come and hear it.
constexpr Duration kFinishedLinger = std::chrono::seconds(5);
constexpr char kEvaluatorName[] = "evaluator:0";

}  // namespace

const char* ToString(Phase phase) {
  switch (phase) {
    case Phase::kGathering:
      return "gathering";
    case Phase::kReading:
      return "reading";
    case Phase::kConfiguring:
      return "configuring";
    case Phase::kRunning:
      return "running";
    case Phase::kEnding:
      return "ending";
    case Phase::kFinalScore:
      return "final_score";
    case Phase::kEnded:
      return "ended";
  }
  return "unknown";
}

Chief::Impl::Impl(ChiefOptions o)
    : options(std::move(o)),
      generation(options.history.generation),
      log(options.history),
      last_incarnation(options.history.last_incarnation),
      membership_epoch(options.history.membership_epoch),
      leases(options.experiment.membership.lease,
             std::max<Duration>(std::chrono::seconds(1), options.experiment.membership.lease / 4)),
      global_batch(options.experiment.train.global_batch_size, options.experiment.batching) {
  const BatchingConfig& batching = options.experiment.batching;
  if (batching.gradnorm_window > 0) noise.emplace(batching.gradnorm_window);
  if (batching.mode == BatchingConfig::Mode::kProportional || batching.mode == BatchingConfig::Mode::kModel) {
    BatchControllerOptions controller;
    controller.mode = batching.mode == BatchingConfig::Mode::kModel ? BatchControllerOptions::Mode::kModel
                                                                    : BatchControllerOptions::Mode::kProportional;
    controller.min_batch_size = batching.min_batch_size;
    controller.max_batch_size = batching.max_batch_size;
    controller.dead_band = batching.dead_band;
    controller.window_size = batching.window_size;
    controller.smoothing = batching.smoothing;
    controller.hold_off_steps = batching.hold_off_steps;
    controller.rates = options.experiment.train.sync.mode != SyncConfig::Mode::kBsp;
    batches.emplace(controller);
  }
  for (std::size_t i = 0; i < options.listed_workers.size(); ++i) {
    listed_places.try_emplace(options.listed_workers[i], i);
  }
  job_id = log.job_id.empty() ? options.new_job_id : log.job_id;
  TakeUpLayout();
}

bool FinishedBefore(const ChiefOptions& options) {
  const std::optional<EndRecord>& end = options.history.end;
  return end && end->status == "finished" && options.resume && options.resume->final &&
         options.resume->spec_hash == options.experiment.spec_hash;
}

Chief::Chief(ChiefOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Chief::~Chief() = default;

ChiefActions Chief::Start(TimePoint now, std::int64_t unix_ms) {
  Impl& impl = *impl_;
  impl.now = now;
  impl.started = now;
  impl.last_tick = now;
  (void)impl.leases.Expire(now);  // nobody has one yet: from here on it can be late
  impl.last_checkpoint_at = now;
  impl.started_unix_ms = unix_ms;
  const MembershipConfig& membership = impl.options.experiment.membership;
  impl.Await(membership.ps_timeout);
  impl.replace_until = now + membership.ps_replacement_timeout;
  if (FinishedBefore(impl.options)) {
    impl.end_status = impl.options.history.end->status;
    impl.end_reason = "the job had finished before; nothing is left to do";
    impl.phase = Phase::kEnded;
    impl.ended_at = now;
    impl.Say(impl.end_reason);
    EndAction action;
    action.final_checkpoint = impl.options.resume->version;
    action.finished_before = true;
    for (const ServerState& server : impl.servers) impl.AwaitGoodbye(server.name, now + kFinishedLinger);
    for (const std::string& worker : impl.options.listed_workers) impl.AwaitGoodbye(worker, now + kFinishedLinger);
    if (impl.options.expects_evaluator) impl.AwaitGoodbye(kEvaluatorName, now + kFinishedLinger);
    impl.actions.push_back(std::move(action));
    return std::exchange(impl.actions, {});
  }
  impl.OpenTerm(unix_ms);
  impl.Advance();
  return std::exchange(impl.actions, {});
}

ChiefActions Chief::OnMessage(SessionId session, Message message, TimePoint now) {
  impl_->now = now;
  impl_->MakeUpForGap();
  if (const auto* join = std::get_if<Join>(&message.body)) impl_->joining = {session, join->name};
  const bool accepted = impl_->CheckEnvelope(session, message);
  if (accepted) impl_->Dispatch(session, message);
  impl_->joining = {};
  if (accepted) impl_->Advance();
  return std::exchange(impl_->actions, {});
}

ChiefActions Chief::OnSessionClosed(SessionId session, TimePoint now) {
  Impl& impl = *impl_;
  impl.now = now;
  impl.MakeUpForGap();
  impl.waiting.erase(session);
  std::erase_if(impl.claims, [session](const auto& claim) { return claim.second.session == session; });
  impl.evaluators.erase(session);
  impl.told.erase(session);
  impl.askers.erase(session);
  if (const WorkerState* worker = impl.workers.BySession(session)) {
    impl.workers.Change(*worker, [](WorkerState& w) {
      w.session = SessionId{};
      w.state = "disconnected";
    });
    if (impl.phase != Phase::kEnded) impl.Say(absl::StrCat(worker->name, " disconnected; its lease goes on"));
  }
  if (ServerState* server = impl.ServerBySession(session)) {
    server->session = SessionId{};
    server->state = "disconnected";
    if (impl.phase != Phase::kEnded) impl.Say(absl::StrCat(server->name, " disconnected; its lease goes on"));
  }
  impl.Advance();
  return std::exchange(impl.actions, {});
}

ChiefActions Chief::OnManifestWritten(Version version, const absl::Status& status, TimePoint now) {
  impl_->now = now;
  impl_->MakeUpForGap();
  impl_->ManifestWritten(version, status);
  impl_->Advance();
  return std::exchange(impl_->actions, {});
}

ChiefActions Chief::Tick(TimePoint now) {
  impl_->now = now;
  impl_->MakeUpForGap();
  impl_->last_tick = now;
  if (impl_->phase != Phase::kEnded) {
    impl_->CheckDeadlines();
    impl_->Advance();
  }
  return std::exchange(impl_->actions, {});
}

ChiefActions Chief::Stop(const std::string& reason, TimePoint now) {
  Impl& impl = *impl_;
  impl.now = now;
  impl.MakeUpForGap();
  if (impl.phase == Phase::kRunning) {
    impl.Stop(reason);
  } else if (impl.phase < Phase::kRunning && impl.ServersHoldMore()) {
    impl.stop_wanted = reason;
    impl.phase_deadline = std::min(impl.phase_deadline, now + impl.options.experiment.membership.drain);
    impl.Say(absl::StrCat("told to stop: ", reason, "; the servers hold what no checkpoint does"));
    impl.said_waiting.clear();  // the deadline is another one now
  } else if (impl.phase < Phase::kRunning) {
    impl.end_status = "stopped";
    impl.end_reason = reason;
    impl.EndJob(absl::OkStatus());
  } else if (impl.phase == Phase::kEnding) {
    impl.phase_deadline = std::min(impl.phase_deadline, now + impl.options.experiment.membership.drain);
    impl.Say(absl::StrCat("told to stop: ", reason, "; the job ends already"));
    impl.said_waiting.clear();
  } else if (impl.phase == Phase::kFinalScore) {
    impl.FinishWithoutScore(absl::StrCat("told to stop: ", reason));
  }
  impl.Advance();
  return std::exchange(impl.actions, {});
}

TimePoint Chief::NextDeadline() const {
  const Impl& impl = *impl_;
  if (impl.phase == Phase::kEnded) return kNever;
  // A bound on the interval, so that a late tick can be told from a quiet time. From the last tick, not the last
  // message: messages must not put it off.
  TimePoint next = impl.last_tick + std::chrono::milliseconds(500);
  next = std::min({next, impl.phase_deadline, impl.leases.NextExpiry(), impl.undecided.NextDeadline()});
  if (impl.move) next = std::min(next, impl.move->deadline);
  if (impl.move && impl.move->connect_until > impl.last_tick) next = std::min(next, impl.move->connect_until);
  if (impl.phase == Phase::kGathering && impl.replace_until > impl.last_tick) next = std::min(next, impl.replace_until);
  return std::max(next, impl.last_tick + std::chrono::milliseconds(1));
}

std::string Chief::StatusJson(TimePoint now) const { return impl_->StatusJson(now); }
TimePoint Chief::AwaitsUntil() const {
  TimePoint latest = TimePoint::min();
  for (const auto& [member, until] : impl_->unheard) latest = std::max(latest, until);
  return latest;
}
bool Chief::ended() const { return impl_->phase == Phase::kEnded; }

// --- messages -------------------------------------------------------------------------------------------------------

void Chief::Impl::Say(std::string text, LogLevel level) { actions.push_back(LogLineAction{level, std::move(text)}); }

void Chief::Impl::AppendLog(LogRecord record) {
  log.Add(record);
  actions.push_back(AppendLogAction{std::move(record)});
}

void Chief::Impl::Send(SessionId session, Body body) {
  if (session == SessionId{}) return;
  Message message;
  message.envelope =
      Envelope{job_id, options.experiment.spec_hash, options.term, generation, layout, Incarnation{}, membership_epoch};
  message.body = std::move(body);
  actions.push_back(SendAction{session, std::move(message)});
}

void Chief::Impl::SendToServers(const Body& body) {
  for (const ServerState& server : servers) Send(server.session, body);
}

void Chief::Impl::RefuseSession(SessionId session, RefuseReason reason, std::string message, bool close) {
  if (close && session == joining.first) {
    Say(absl::StrCat("refuses ", joining.second, ": ", message), LogLevel::kWarning);
  }
  Send(session, Refuse{reason, std::move(message), {}});
  if (close) actions.push_back(CloseAction{session});
}

bool Chief::Impl::CheckEnvelope(SessionId session, const Message& message) {
  // Anyone may ask, of whatever job it is.
  if (std::holds_alternative<StatusRequest>(message.body) || std::holds_alternative<ExperimentRequest>(message.body) ||
      std::holds_alternative<Drain>(message.body) || std::holds_alternative<Scale>(message.body)) {
    return true;
  }
  const Envelope& envelope = message.envelope;
  if (!envelope.job_id.empty() && envelope.job_id != job_id) {
    RefuseSession(session, RefuseReason::kForeignJob,
                  absl::StrCat("this is job ", job_id, "; the sender belongs to job ", envelope.job_id), true);
    return false;
  }
  if (given_up) return false;
  if (envelope.spec_hash != options.experiment.spec_hash) {
    std::string difference;
    if (const auto* join = std::get_if<Join>(&message.body)) {
      const std::vector<std::string> fields =
          DifferingFields(options.experiment.canonical_json, join->experiment_json, kMaxDifferingFields);
      for (std::size_t i = 0; i < fields.size() && i < kDifferingFieldsNamed; ++i) {
        absl::StrAppend(&difference, difference.empty() ? "; they differ in " : ", ", fields[i]);
      }
      if (fields.size() > kDifferingFieldsNamed) {
        absl::StrAppend(&difference, " and ", fields.size() - kDifferingFieldsNamed, " more");
      }
    }
    if (phase == Phase::kGathering && !envelope.job_id.empty() && !EndedBefore()) {
      GiveUpTo(std::get_if<Join>(&message.body), difference);
      return false;
    }
    RefuseSession(session, RefuseReason::kOtherExperiment,
                  absl::StrCat("the sender's experiment is not this job's", difference), true);
    return false;
  }
  if (envelope.term > options.term) {
    RefuseSession(session, RefuseReason::kStaleTerm,
                  absl::StrCat("this chief reigns in term ", options.term.value(), "; the sender has seen term ",
                               envelope.term.value()),
                  true);
    return false;
  }
  if (std::holds_alternative<Join>(message.body)) return true;
  if (phase == Phase::kEnded) {
    if (std::holds_alternative<Leave>(message.body)) {
      OnGoodbye(session);
    } else {
      Send(session, JobEnd{end_status != "failed", end_status, end_reason});
    }
    return false;
  }
  if (envelope.sender != Incarnation{}) {
    const WorkerState* worker = workers.BySession(session);
    const ServerState* server = ServerBySession(session);
    const bool current = (worker && worker->incarnation == envelope.sender) ||
                         (server && server->incarnation == envelope.sender) || evaluators.contains(session);
    if (!current) {
      RefuseSession(session, RefuseReason::kStaleIncarnation,
                    absl::StrCat("incarnation ", envelope.sender.value(), " is no member any more"), true);
      return false;
    }
    // Of what a server was before. Whoever goes may say so.
    const bool always = std::holds_alternative<Leave>(message.body) || std::holds_alternative<Renew>(message.body) ||
                        std::holds_alternative<Prepared>(message.body) || std::holds_alternative<Filled>(message.body);
    if (server && server->configured && !always &&
        std::pair(envelope.generation, envelope.layout) != std::pair(generation, layout)) {
      return false;
    }
  }
  return true;
}

void Chief::Impl::Dispatch(SessionId session, Message& message) {
  if (auto* join = std::get_if<Join>(&message.body)) return OnJoin(session, *join);
  if (std::holds_alternative<StatusRequest>(message.body)) {
    askers.insert(session);
    return Send(session, StatusReply{StatusJson(now)});
  }
  if (const auto* request = std::get_if<ExperimentRequest>(&message.body)) {
    NoteComing(request->name);
    const Experiment& experiment = options.experiment;
    return Send(session, ExperimentReply{job_id, experiment.canonical_json, experiment.spec_hash});
  }
  if (auto* drain = std::get_if<Drain>(&message.body)) {
    return AnswerOrder(session, absl::StrCat("evenkeel drain ", drain->name), OnDrain(drain->name));
  }
  if (auto* scale = std::get_if<Scale>(&message.body)) {
    return AnswerOrder(session, absl::StrCat("evenkeel scale --ps ", scale->servers), OnScale(scale->servers));
  }
  if (auto* renew = std::get_if<Renew>(&message.body)) return OnRenew(session, message.envelope, *renew);
  if (auto* report = std::get_if<EvalReport>(&message.body)) {
    if (evaluators.contains(session)) OnEvalReport(*report);
    return;
  }
  if (ServerState* server = ServerBySession(session)) {
    if (auto* prepared = std::get_if<Prepared>(&message.body)) return OnPrepared(*server, *prepared);
    if (auto* filled = std::get_if<Filled>(&message.body)) return OnFilled(*server, *filled);
    if (auto* leave = std::get_if<Leave>(&message.body)) return OnServerLeave(*server, *leave);
    if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
      return Say(absl::StrCat("refused (", ToString(refuse->reason), "): ", refuse->message), LogLevel::kWarning);
    }
    if (!InLayout(*server)) return;  // of the time when it was
    if (auto* configured = std::get_if<Configured>(&message.body)) {
      return OnConfigured(*server, message.envelope, *configured);
    }
    if (auto* kept = std::get_if<KeptDecisions>(&message.body)) return OnKeptDecisions(*server, *kept);
    if (auto* ack = std::get_if<MembersAck>(&message.body)) {
      server->acked = std::max(server->acked, ack->epoch);
      return;
    }
    if (auto* staged = std::get_if<Staged>(&message.body)) return OnStaged(*server, *staged);
    if (auto* sealed = std::get_if<Sealed>(&message.body)) return OnSealed(*server, *sealed);
    if (auto* applied = std::get_if<Applied>(&message.body)) return OnApplied(*server, *applied);
    if (auto* done = std::get_if<SnapshotDone>(&message.body)) return OnSnapshotDone(*server, *done);
  }
  if (const WorkerState* worker = workers.BySession(session)) {
    if (auto* ready = std::get_if<Ready>(&message.body)) return OnReady(session, *ready);
    if (auto* report = std::get_if<StepReport>(&message.body)) return OnStepReport(session, *report);
    if (auto* connected = std::get_if<ConnectedAhead>(&message.body)) return OnConnectedAhead(*worker, *connected);
    if (auto* leave = std::get_if<Leave>(&message.body)) {
      return leave->after_ticket ? BeginToLeave(*worker, leave->reason)
                                 : Fence(worker->incarnation, leave->reason, true);
    }
  }
  RefuseSession(session, RefuseReason::kMalformed,
                absl::StrCat("a ", NameOf(message.body), " message is not expected from this stream"), true);
}

void Chief::Impl::AnswerOrder(SessionId session, const std::string& order, OrderReply reply) {
  Say(absl::StrCat(order, reply.accepted ? ": " : " is refused: ", reply.message));
  Send(session, std::move(reply));
}

void Chief::Impl::Advance() {
  SettleClaims();
  if (phase == Phase::kGathering) SeatServers();
  if (phase == Phase::kGathering && !tensors.empty() &&
      std::all_of(servers.begin(), servers.end(),
                  [](const ServerState& s) { return s.incarnation != Incarnation{}; })) {
    if (recovering && !AwaitsFormer()) TakeUpServers();
    if (phase == Phase::kGathering && !recovering) ConfigureServers();
  }
  if (phase == Phase::kRunning) {
    ResolveFenced();
    ChooseWithBackups();
    while (phase == Phase::kRunning && CommitNext()) {
    }
    if (phase == Phase::kRunning && (early_stop || training_complete())) BeginEnd("finished", early_stop.value_or(""));
    if (phase == Phase::kRunning) ChangeLayout();
    if (phase == Phase::kRunning) Grant();
  }
  if (phase == Phase::kEnding) TakeFinalCheckpoint();
  const std::string waiting_for = phase == Phase::kEnded ? "" : WaitingToSay();
  const WaitingEnd end = waiting_for.empty() ? WaitingEnd{} : WaitingUntil();
  // While the job gathers it may come to another end.
  const bool may_turn = !waiting_for.empty() && (phase == Phase::kGathering || !first_grant_done);
  std::string to_say = may_turn ? absl::StrCat(waiting_for, "; ", end.then) : waiting_for;
  if (to_say != said_waiting) {
    if (waiting_for.empty() && phase == Phase::kRunning) {
      Say(absl::StrCat("goes on with ", Counted(static_cast<std::uint64_t>(workers.training()), "worker")));
    }
    said_waiting = std::move(to_say);
    if (phase != Phase::kEnded) {
      const Waiting told = WaitingNow();
      SendToServers(told);
      for (const auto& [session, join] : waiting) Send(session, told);
      for (const auto& [incarnation, worker] : workers) Send(worker.session, told);
    }
    if (!waiting_for.empty()) {
      std::string text = absl::StrCat("waiting for ", waiting_for);
      if (end.at != kNever) {
        absl::StrAppendFormat(&text, "; %s in %.1f s unless %s", end.then, ToSeconds(end.at - now), end.unless);
      }
      Say(std::move(text));
    }
  }
}

void Chief::Impl::Await(Duration time) {
  if (stop_wanted) time = std::min(time, options.experiment.membership.drain);
  awaited_since = now;
  phase_deadline = now + time;
}

// While this process was held up (SIGSTOP, a machine that swaps) nobody could be heard: that time is nobody's. Before
// anything that has come meanwhile is looked at, for deadlines that it sets are right.
void Chief::Impl::MakeUpForGap() {
  if (phase == Phase::kEnded) return;
  const Duration gap = leases.TakeGap(now);
  if (gap == Duration::zero()) return;
  Say(absl::StrFormat("nothing was done here for %.1f s; all deadlines move by that", ToSeconds(gap)),
      LogLevel::kWarning);
  for (TimePoint* deadline : {&phase_deadline, &first_grant_by, &replace_until}) {
    if (*deadline != kNever) *deadline += gap;
  }
  if (move) {
    move->deadline += gap;
    move->connect_until += gap;
  }
  for (auto& [holder, claim] : claims) claim.until += gap;
  undecided.Shift(gap);
  if (last_commit_at) *last_commit_at += gap;
  for (const auto& [incarnation, worker] : workers) {
    if (!worker.idle_since) continue;
    workers.Change(worker, [gap](WorkerState& w) { *w.idle_since += gap; });
  }
}

void Chief::Impl::CheckDeadlines() {
  for (Incarnation member : leases.Expire(now)) {
    if (const WorkerState* worker = workers.Find(member)) {
      // Whoever waits here to be welcomed has nothing to renew its lease with.
      if (phase < Phase::kRunning && worker->session != SessionId{}) {
        leases.Grant(member, now);
      } else {
        Fence(member, "its lease ended", false);
      }
      continue;
    }
    ServerState* server = FindServer(member);
    if (server == nullptr) continue;
    if (InLayout(*server)) {
      LoseServer(*server, "its lease ended");
    } else {
      EndSpare(member, "its lease ended", false);
    }
  }
  SettleClaims();
  EndClaims();
  if (move && move->deadline <= now) {
    std::vector<std::string> late;
    for (Incarnation member : move->members) {
      if (const ServerState* server = FindServer(member); AwaitedInMove(*server)) late.push_back(server->name);
    }
    std::set<std::string> steps;
    if (late.empty()) {
      for (const auto& [id, update] : undecided.updates()) {
        if (const WorkerState* worker = workers.Find(update.share.worker)) steps.insert(worker->name);
      }
    }
    if (!steps.empty()) late.push_back(absl::StrCat("the steps of ", absl::StrJoin(steps, ", ")));
    if (late.empty() && checkpoint) late.push_back("the checkpoint under way");
    FailMove(absl::StrCat("waited ", ToSeconds(options.experiment.membership.ps_replacement_timeout), " s for ",
                          absl::StrJoin(late, ", ")));
  }
  std::vector<Incarnation> overdue;
  for (const UpdateId& id : undecided.Overdue(now)) overdue.push_back(undecided.At(id).share.worker);
  for (Incarnation member : overdue) {
    Fence(member, "it did not stage its update on every server before its ticket's deadline", false);
  }
  if (phase_deadline > now) return;
  phase_deadline = kNever;
  switch (phase) {
    case Phase::kGathering:
    case Phase::kReading:
    case Phase::kConfiguring:
      if (stop_wanted) {
        return EndStopped(absl::StrFormat("%s did not come within %.1f s", MissingMembers(),
                                          ToSeconds(options.experiment.membership.drain)));
      }
      return Fail(absl::DeadlineExceededError(
          absl::StrFormat("waited %.1f s for %s", ToSeconds(now - awaited_since), MissingMembers())));
    case Phase::kRunning:
      if (first_grant_done ||
          workers.training() +
                  static_cast<int>(std::count_if(workers.begin(), workers.end(),
                                                 [](const auto& w) { return w.second.ready && !w.second.rank; })) <
              options.experiment.membership.workers_min) {
        if (workers.training() >= options.experiment.membership.workers_min) return;
        return FailWithCheckpoint(
            absl::DeadlineExceededError(absl::StrCat("waited ", ToSeconds(options.experiment.membership.join_timeout),
                                                     " s for ", WaitingFor(), WhatJoinersDo())));
      }
      Say(absl::StrCat("not all listed workers came in time; starting without ", MissingMembers(), WhatJoinersDo()),
          LogLevel::kWarning);
      first_grant_done = true;
      return;
    case Phase::kEnding:
      return Fail(
          absl::DeadlineExceededError(absl::StrCat("the last checkpoint was not complete in time: ", WaitingFor())));
    case Phase::kFinalScore:
      return FinishWithoutScore("eval.final_timeout_ms is over");
    case Phase::kEnded:
      return;
  }
}

}  // namespace evenkeel
