// The chief's side of the conversation: place, members, term, the end. server_commit.cc has what becomes of updates.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "evenkeel/ps/server.h"

namespace evenkeel::ps {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

}  // namespace

Actions Server::OnChiefMessage(const Message& message, TimePoint now) {
  if (ended_ || !AcceptChiefEnvelope(message)) return Take(now);
  const Envelope& envelope = message.envelope;
  // Runs `body` for orders that mean one generation and layout only.
  auto here = [&](auto&& body) {
    auto theirs = std::pair(envelope.generation, envelope.layout);
    auto ours = std::pair(generation_, layout_number_);
    if (theirs < ours) {
      RefuseChief(envelope.generation < generation_ ? RefuseReason::kStaleGeneration : RefuseReason::kStaleLayout,
                  absl::StrCat(NameOf(message.body), " is for generation ", envelope.generation.value(), ", layout ",
                               envelope.layout.value(), "; this server is at generation ", generation_.value(),
                               ", layout ", layout_number_.value()));
    } else if (theirs > ours || !configured_) {
      RefuseChief(RefuseReason::kRetry, absl::StrCat(NameOf(message.body), " came before its place was ready"));
    } else {
      body();
    }
  };
  std::visit(Overloaded{
                 [&](const Welcome& body) { OnWelcome(envelope, body); },
                 [&](const Refuse& body) { OnRefuse(body); },
                 [&](const Configure& body) { OnConfigure(envelope, body); },
                 [&](const Prepare& body) { OnPrepare(envelope, body); },
                 [&](const Fill& body) { OnFill(envelope, body); },
                 [&](const Abandon& body) {
                   if (prepared_ && prepared_->layout == body.layout) DropPreparation();
                 },
                 [&](const Switch& body) { OnSwitch(envelope, body); },
                 [&](const LeaveNow& body) { OnLeaveNow(body); },
                 [&](const Continue& body) { here([&] { OnContinue(body); }); },
                 [&](const ReadDecisions& body) { here([&] { OnReadDecisions(body); }); },
                 [&](const Members& body) { OnMembers(body); },
                 [&](const Seal& body) { here([&] { OnSeal(body); }); },
                 [&](const Drop& body) { here([&] { OnDrop(body); }); },
                 [&](const Decision& body) { here([&] { OnDecision(body); }); },
                 [&](const Snapshot& body) { here([&] { OnSnapshot(body); }); },
                 [&](const CheckpointDurable& body) {
                   if (body.version.generation != generation_) return;
                   while (!kept_.empty() && kept_.front().version <= body.version) kept_.pop_front();
                 },
                 [&](const JobEnd& body) { OnJobEnd(body); },
                 [&](const Waiting& body) { OnWaiting(body); },
                 [](const Renewed&) {},
                 [&](const auto&) {
                   RefuseChief(RefuseReason::kMalformed,
                               absl::StrCat(NameOf(message.body), " is not for a parameter server"));
                 },
             },
             message.body);
  return Take(now);
}

bool Server::AcceptChiefEnvelope(const Message& message) {
  const Envelope& envelope = message.envelope;
  if (std::holds_alternative<Refuse>(message.body)) {
    const bool ours = !welcomed_ || envelope.job_id == job_id_;  // another job's terms count something else
    if (ours && envelope.term > term_) StartTerm(envelope.term);
    return true;
  }
  // A chief that welcomes us to another job has taken the place of ours; anybody else's orders are refused.
  const bool welcome = std::holds_alternative<Welcome>(message.body);
  auto foreign = [&](RefuseReason reason, std::string text) {
    RefuseChief(reason, text);
    if (welcome) Fail(absl::PermissionDeniedError(absl::StrCat("[ps] ", options_.name, " ", text)));
    return false;
  };
  if (welcomed_ && envelope.job_id != job_id_) {
    return foreign(RefuseReason::kForeignJob,
                   absl::StrCat("belongs to job ", job_id_, ", the chief's is ", envelope.job_id));
  }
  if (envelope.spec_hash != options_.spec_hash) {
    return foreign(RefuseReason::kOtherExperiment,
                   absl::StrCat("runs experiment ", options_.spec_hash, ", the chief's is ", envelope.spec_hash));
  }
  if (envelope.term < term_) {
    const std::string text = absl::StrCat(NameOf(message.body), " is of term ", envelope.term.value(),
                                          "; this server obeys term ", term_.value());
    RefuseChief(RefuseReason::kStaleTerm, text);
    if (welcome) actions_.push_back(RejoinChief{text});
    return false;
  }
  if (envelope.term > term_) StartTerm(envelope.term);
  return true;
}

void Server::StartTerm(Term term) {
  if (term_ != Term()) {
    Say(LogLevel::kInfo,
        absl::StrCat("obeys term ", term.value(), "; what was undecided under term ", term_.value(), " is void"));
  }
  term_ = term;
  DropPreparation();
  // A new chief numbers incarnations and memberships by its log, which may have lost its end: it may give a number
  // again, so all that is known of workers is void until it has named the living.
  members_epoch_ = MembershipEpoch();
  members_known_ = false;
  highest_seen_ = Incarnation();
  fenced_.clear();
  fenced_order_.clear();
  pending_acks_.clear();
  future_.clear();
  future_snapshots_.clear();
  continue_owed_ = false;
  // The former chief may have decided what is sealed here: it stays until the new one has resent what it knows.
  std::vector<Incarnation> all;
  for (auto& [incarnation, worker] : workers_) {
    worker.live = false;
    if (worker.staging && !worker.staging->complete) worker.staging.reset();
    worker.next_sequence = 0;
    all.push_back(incarnation);
  }
  for (Incarnation incarnation : all) MaybeReleaseSlot(incarnation);
}

Holding Server::Holds() const {
  if (!configured_) return Holding{};
  return Holding{.layout = layout_number_,
                 .server = place_.server,
                 .servers = place_.layout->servers(),
                 .decided = Version{generation_, decided_},
                 .hash = chain_known_ ? decided_hash_ : 0,
                 .applied = published_.commit};
}

void Server::OnReadDecisions(const ReadDecisions& request) {
  constexpr std::size_t kPerMessage = 256;
  KeptDecisions kept;
  for (const Decision& decision : kept_) {
    if (decision.version <= request.after) continue;
    kept.decisions.push_back(decision);
    if (kept.decisions.size() == kPerMessage) ToChief(std::exchange(kept, {}));
  }
  ToChief(std::move(kept));  // perhaps empty: an answer all the same
}

void Server::OnContinue(const Continue& order) {
  if (order.version != Version{generation_, decided_}) {
    Fail(absl::InternalError(absl::StrCat("[ps] the chief goes on from ", ToString(order.version),
                                          ", but the newest decision here is ",
                                          ToString(Version{generation_, decided_}))));
    return;
  }
  if (place_term_ != term_) {
    place_term_ = term_;
    std::vector<Incarnation> all;
    for (auto& [incarnation, worker] : workers_) {
      worker.staging.reset();
      all.push_back(incarnation);
    }
    for (Incarnation incarnation : all) MaybeReleaseSlot(incarnation);
    ClearSets();
    Say(LogLevel::kInfo, absl::StrCat("goes on from ", ToString(order.version)));
  }
  start_version_ = order.version;
  continue_owed_ = true;
  MaybeConfirmContinue();
}

// A snapshot for an earlier chief would be in the way of the first one that this chief asks for.
void Server::MaybeConfirmContinue() {
  if (!continue_owed_ || snapshotting_) return;
  continue_owed_ = false;
  SendConfigured();
}

void Server::OnWelcome(const Envelope& envelope, const Welcome& welcome) {
  const bool again = welcomed_;
  const bool news = !again || incarnation_ != welcome.incarnation;
  welcomed_ = true;
  job_id_ = welcome.job_id;
  incarnation_ = welcome.incarnation;
  highest_seen_ = std::max(highest_seen_, incarnation_);
  if (news) {
    Say(LogLevel::kInfo, absl::StrCat(again ? "joined again" : "joined job ", again ? "" : job_id_, " as incarnation ",
                                      incarnation_.value(), ", term ", term_.value()));
  }
  if (again) Resend();
  if (!leave_asked_.empty()) ToChief(Leave{leave_asked_, true});
}

void Server::OnWaiting(const Waiting& waiting) {
  if (!waiting.for_whom.empty() && waiting.for_whom != waits_for_) {
    const std::string limit =
        waiting.deadline_ms > 0 ? absl::StrCat(", at most ", ToSeconds(Milliseconds(waiting.deadline_ms)), " s") : "";
    Say(LogLevel::kInfo, absl::StrCat("waiting for ", waiting.for_whom, limit));
  } else if (waiting.for_whom.empty() && !waits_for_.empty()) {
    Say(LogLevel::kInfo, "the job goes on");
  }
  waits_for_ = waiting.for_whom;
}

void Server::OnRefuse(const Refuse& refuse) {
  const std::string chief = absl::StrCat("[ps] the chief", options_.chief_address.empty() ? "" : " at ",
                                         options_.chief_address, " refused this server");
  switch (refuse.reason) {
    case RefuseReason::kRetry:
    case RefuseReason::kStaleTerm:
      if (!welcomed_ || refuse.reason == RefuseReason::kStaleTerm) {
        actions_.push_back(RejoinChief{refuse.message});
      } else {
        Say(LogLevel::kWarning, absl::StrCat("the chief refused: ", refuse.message));
      }
      return;
    case RefuseReason::kStaleIncarnation:
      fenced_itself_ = true;
      welcomed_ = false;  // nobody to take leave of
      Fail(absl::FailedPreconditionError(absl::StrCat(chief, ": ", refuse.message)));
      return;
    default:
      welcomed_ = false;
      Fail(absl::PermissionDeniedError(absl::StrCat(chief, " (", ToString(refuse.reason), "): ", refuse.message)));
  }
}

void Server::OnConfigure(const Envelope& envelope, const Configure& configure) {
  auto theirs = std::pair(envelope.generation, envelope.layout);
  auto ours = std::pair(generation_, layout_number_);
  if (theirs < ours) {
    RefuseChief(
        envelope.generation < generation_ ? RefuseReason::kStaleGeneration : RefuseReason::kStaleLayout,
        absl::StrCat("Configure is for generation ", envelope.generation.value(), ", layout ", envelope.layout.value(),
                     "; this server is at generation ", generation_.value(), ", layout ", layout_number_.value()));
    return;
  }
  // What another term put here is of its history, whatever the numbers say.
  if (theirs == ours && place_term_ == term_ && configuration_ > 0 && place_.server == configure.server &&
      place_.layout->servers() == configure.servers && start_version_ == configure.version) {
    if (configured_) SendConfigured();
    return;
  }
  if (configure.server.value() >= configure.servers) {
    Fail(absl::InvalidArgumentError(absl::StrCat("[ps] was given place ", configure.server.value(), " in a layout of ",
                                                 configure.servers, " servers")));
    return;
  }
  auto layout = ParameterLayout::Create(configure.tensors, configure.bucket_bytes, configure.servers);
  if (!layout.ok()) {
    Fail(Annotate(layout.status(), "[ps] the chief's layout"));
    return;
  }
  DropPreparation();
  ResetPlace();
  SetPlace(envelope,
           Place{std::make_shared<const ParameterLayout>(*std::move(layout)), configure.server, configure.optimizer,
                 configure.measure_gradients, configure.stage_slots},
           configure.version);
  const std::int64_t owned = place_.layout->ServerFloats(place_.server);
  const std::string seat = absl::StrCat("place ", configure.server.value(), " of ", configure.servers, ", layout ",
                                        layout_number_.value(), ", generation ", generation_.value());
  if (owned == 0) {
    Say(LogLevel::kWarning, absl::StrCat(seat, ": owns nothing, ", configure.servers, " servers share ",
                                         place_.layout->total_floats(), " floats"));
  } else {
    Say(LogLevel::kInfo, absl::StrCat(seat, ": ", owned, " of ", place_.layout->total_floats(), " floats, ",
                                      configure.restore ? absl::StrCat("restoring ", ToString(configure.checkpoint))
                                                        : absl::StrCat("initialising from seed ", configure.seed)));
  }
  if (configure.restore) {
    actions_.push_back(Restore{place_, configure.model_dir, configure.checkpoint, configure.version});
  } else {
    actions_.push_back(Initialise{place_, configure.seed, configure.version});
  }
}

void Server::SetPlace(const Envelope& envelope, Place place, Version version) {
  generation_ = envelope.generation;
  layout_number_ = envelope.layout;
  place_term_ = term_;
  start_version_ = version;
  place_ = std::move(place);
  for (size_t bucket = 0; bucket < place_.layout->buckets().size(); ++bucket) {
    std::int64_t floats = place_.layout->StripeOf(static_cast<int>(bucket), place_.server).size();
    stripe_bytes_.push_back(floats * static_cast<std::int64_t>(sizeof(float)));
    if (floats > 0) ++stripes_;
  }
  std::vector<bool> held;
  for (const std::int64_t bytes : stripe_bytes_) held.push_back(bytes > 0);
  fold_.Reset(place_.stage_slots, std::move(held));
  said_folds_ = false;
}

void Server::ResetPlace() {
  configuring_ = true;
  configured_ = false;
  ++configuration_;
  stripe_bytes_.clear();
  stripes_ = 0;
  slots_.clear();
  free_slots_.clear();
  for (auto it = workers_.begin(); it != workers_.end();) {
    it->second.slot.reset();
    it->second.staging.reset();
    it = it->second.live ? std::next(it) : workers_.erase(it);
  }
  for (PendingAck& ack : pending_acks_) ack.waits_for.clear();
  FlushMembersAcks();
  held_pulls_.TakeIf([this](SessionId session, const HeldPull& pull) {
    RefuseWorker(session, RefuseReason::kStaleGeneration,
                 absl::StrCat("pull ", pull.request, " of ", ToString(pull.at_least), " is void: the job has moved"));
    return true;
  });
  ClearSets();
  continue_owed_ = false;
  norms_in_flight_.clear();
  applying_.clear();
  future_.clear();
  future_snapshots_.clear();
  kept_.clear();
  snapshotting_.reset();
  last_snapshot_.reset();
  published_ = Version();
  published_hash_ = 0;
  decided_ = CommitNumber();
  decided_hash_ = 0;
  chain_known_ = false;
}

void Server::SendConfigured() {
  ToChief(Configured{
      .server = place_.server, .version = start_version_, .owned_floats = place_.layout->ServerFloats(place_.server)});
}

// What the chief may have missed while its stream was down.
void Server::Resend() {
  if (!configured_ || place_term_ != term_) return;
  for (const auto& [incarnation, worker] : workers_) {
    if (worker.staging && worker.staging->complete) SendStaged(*worker.staging);
  }
  for (const auto& [number, set] : sets_) {
    if (set.state == SealSet::State::kAnswered) AnswerSeal(number, set);
  }
  if (published_ != start_version_) {
    ToChief(Applied{published_, published_hash_, published_seconds_, published_squared_sums_});
  }
}

void Server::OnMembers(const Members& members) {
  members_known_ |= members.full;
  // A change to a list that is yet to come is in it; until then nobody is let in.
  if (!members_known_) return ToChief(MembersAck{members.epoch});
  if (members.epoch < members_epoch_ || (members.epoch == members_epoch_ && !members.full)) {
    ToChief(MembersAck{members.epoch});  // known already
    return;
  }
  members_epoch_ = members.epoch;
  std::vector<Incarnation> dead = members.fenced;
  if (members.full) {
    absl::flat_hash_set<Incarnation> listed;
    for (const Member& member : members.admitted) listed.insert(member.incarnation);
    for (const auto& [incarnation, worker] : workers_) {
      if (worker.live && !listed.contains(incarnation)) dead.push_back(incarnation);
    }
  }
  for (Incarnation incarnation : dead) Fence(incarnation);
  std::vector<StageSlot> new_slots;
  for (const Member& member : members.admitted) Admit(member, new_slots);
  if (configured_ && SharesSlots()) GiveSharedSlots(new_slots);
  if (members.full) Resend();
  pending_acks_.push_back(PendingAck{members.epoch, std::move(new_slots)});
  FlushMembersAcks();
  ServeHeldPulls();
}

void Server::Admit(const Member& member, std::vector<StageSlot>& new_slots) {
  if (fenced_.contains(member.incarnation)) return;
  highest_seen_ = std::max(highest_seen_, member.incarnation);
  auto [it, fresh] = workers_.try_emplace(member.incarnation);
  it->second.name = member.name;
  it->second.live = true;  // another term's dead may have had this number
  if (!fresh) return;
  Say(LogLevel::kInfo, absl::StrCat("serves ", member.name, ", incarnation ", member.incarnation.value()));
  if (!configured_ || SharesSlots()) return;
  if (auto slot = GiveSlot(member.incarnation)) new_slots.push_back(*slot);
}

void Server::Fence(Incarnation incarnation) {
  highest_seen_ = std::max(highest_seen_, incarnation);
  if (!fenced_.insert(incarnation).second) return;
  fenced_order_.push_back(incarnation);
  while (fenced_order_.size() > options_.max_fenced) {
    fenced_.erase(fenced_order_.front());
    fenced_order_.pop_front();
  }
  if (auto session = session_of_.find(incarnation); session != session_of_.end()) {
    held_pulls_.Erase(session->second);
    RefuseWorker(session->second, RefuseReason::kStaleIncarnation,
                 absl::StrCat("incarnation ", incarnation.value(), " has been fenced"));
    actions_.push_back(CloseWorker{session->second});
  }
  Worker* worker = Find(incarnation);
  if (worker == nullptr) return;
  worker->live = false;
  const bool kept = worker->staging && worker->staging->complete;
  Say(LogLevel::kInfo, absl::StrCat(worker->name, ", incarnation ", incarnation.value(), ", is no member any more",
                                    kept ? absl::StrCat("; its complete update ", ToString(worker->staging->update),
                                                        " waits for the chief")
                                         : ""));
  if (!kept) worker->staging.reset();
  MaybeReleaseSlot(incarnation);
}

void Server::FlushMembersAcks() {
  auto ready = [this](StageSlot slot) { return slot.value() < slots_.size() && slots_[slot.value()].ready; };
  while (!pending_acks_.empty()) {
    const PendingAck& ack = pending_acks_.front();
    if (!std::all_of(ack.waits_for.begin(), ack.waits_for.end(), ready)) return;
    ToChief(MembersAck{ack.epoch});
    pending_acks_.pop_front();
  }
}

void Server::OnJobEnd(const JobEnd& end) {
  Say(end.ok ? LogLevel::kInfo : LogLevel::kError,
      absl::StrCat("the job has ended: ", end.status, end.message.empty() ? "" : ": ", end.message));
  ToChief(Leave{.reason = absl::StrCat("the job has ended: ", end.status)});
  actions_.push_back(
      Finish{end.ok ? absl::OkStatus() : absl::AbortedError(absl::StrCat("the job ", end.status, ": ", end.message))});
  ended_ = true;
}

}  // namespace evenkeel::ps
