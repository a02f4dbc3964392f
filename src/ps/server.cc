// What both sides of the server share: events from the runner, envelopes, slots, state.
#include "evenkeel/ps/server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel::ps {

Server::Server(ServerOptions options) : options_(std::move(options)), state_text_(StateText()) {}

Envelope Server::MakeEnvelope() const {
  return Envelope{.job_id = job_id_,
                  .spec_hash = options_.spec_hash,
                  .term = term_,
                  .generation = generation_,
                  .layout = layout_number_,
                  .sender = incarnation_,
                  .membership_epoch = members_epoch_};
}

std::string Server::StateText() const {
  if (ended_) return "ended";
  if (!welcomed_) return "waiting for the chief";
  if (configuring_) return absl::StrCat("preparing ", ToString(start_version_));
  if (prepared_ && prepared_->version && !prepared_->filled) {
    return absl::StrCat("filling its place in layout ", prepared_->layout.value());
  }
  if (!configured_) return "waiting for a place in the layout";
  if (!applying_.empty()) return absl::StrCat("applying ", ToString(applying_.front().version));
  if (snapshotting_) return absl::StrCat("writing the snapshot of ", ToString(*snapshotting_));
  return absl::StrCat("serving ", ToString(published_));
}

Renew Server::State(TimePoint now) const {
  return Renew{.state = state_text_,
               .since_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - state_since_).count(),
               .filled_pieces = prepared_ ? prepared_->pieces : 0};
}

Actions Server::Take(TimePoint now) {
  std::string state = StateText();
  if (state != state_text_ || state_since_ == TimePoint{}) {
    state_text_ = std::move(state);
    state_since_ = now;
  }
  return std::exchange(actions_, {});
}

void Server::ToChief(Body body) { actions_.push_back(SendToChief{{MakeEnvelope(), std::move(body)}}); }

void Server::ToWorker(SessionId session, Body body) {
  actions_.push_back(SendToWorker{session, {MakeEnvelope(), std::move(body)}});
}

void Server::RefuseWorker(SessionId session, RefuseReason reason, std::string text, UpdateId update) {
  ToWorker(session, Refuse{.reason = reason, .message = absl::StrCat(options_.name, ": ", text), .update = update});
}

void Server::RefuseChief(RefuseReason reason, std::string text) {
  ToChief(Refuse{.reason = reason, .message = absl::StrCat(options_.name, ": ", text)});
}

void Server::Say(LogLevel level, std::string text) { actions_.push_back(LogLine{level, std::move(text)}); }

void Server::Fail(absl::Status status) {
  if (ended_) return;
  if (welcomed_) ToChief(Leave{.reason = absl::StrCat("failed: ", status.message())});
  actions_.push_back(Finish{std::move(status)});
  ended_ = true;
}

Actions Server::OnConfigured(Version version, const absl::Status& status, TimePoint now) {
  if (ended_ || !configuring_ || version != start_version_) return Take(now);
  if (!status.ok()) {
    Fail(Annotate(status, absl::StrCat("[ps] cannot prepare ", ToString(version))));
    return Take(now);
  }
  configuring_ = false;
  configured_ = true;
  published_ = version;
  decided_ = version.commit;
  if (SharesSlots()) {
    std::vector<StageSlot> awaited;  // by the acknowledgement of the members to come
    GiveSharedSlots(awaited);
  } else {
    for (auto& [incarnation, worker] : workers_) {
      if (worker.live) GiveSlot(incarnation);
    }
  }
  SendConfigured();
  ServeHeldPulls();
  Say(LogLevel::kInfo, absl::StrCat("serves ", ToString(version)));
  return Take(now);
}

Actions Server::OnSlotReady(StageSlot slot, const absl::Status& status, TimePoint now) {
  // Reports of a former place come before its successor's OnConfigured.
  if (ended_ || !configured_ || slot.value() >= slots_.size()) return Take(now);
  if (!status.ok()) {
    Fail(Annotate(status, "[ps] no memory for a worker's staged update"));
    return Take(now);
  }
  slots_[slot.value()].ready = true;
  FlushMembersAcks();
  AskForOffered();
  return Take(now);
}

Actions Server::OnFolded(std::uint64_t configuration, const FoldStep& step, TimePoint now) {
  if (ended_ || configuration != configuration_) return Take(now);
  if (fold_.Ended(step)) {
    FoldWhatCame(step.bucket);
    const std::int32_t last = fold_.LastWithRoom(step.bucket);
    AskForOffered(step.bucket, last - step.count + 1, last);
    if (auto set = sets_.find(folded_set_); fold_.Whole() && set != sets_.end()) CheckSet(set->first, set->second);
  } else {
    AskForOffered();
  }
  return Take(now);
}

Actions Server::OnNorms(SetNumber set, std::uint32_t attempt, std::vector<BlockNorm> norms, TimePoint now) {
  if (ended_ || norms_in_flight_.empty()) return Take(now);
  NormsInFlight flight = norms_in_flight_.front();
  if (flight.set != set || flight.attempt != attempt) return Take(now);
  norms_in_flight_.pop_front();
  auto it = sets_.find(set);
  if (it != sets_.end() && it->second.attempt == attempt && it->second.state == SealSet::State::kNorms) {
    it->second.state = SealSet::State::kAnswered;
    it->second.norms = std::move(norms);
    AnswerSeal(set, it->second);
  }
  ReadersDone(flight.slots);
  AskForOffered();  // where the set began anew meanwhile
  return Take(now);
}

Actions Server::OnApplied(Version version, double apply_seconds, std::vector<double> squared_sums, TimePoint now) {
  if (ended_ || applying_.empty() || applying_.front().version != version) return Take(now);
  InFlight flight = std::move(applying_.front());
  applying_.pop_front();
  published_ = version;
  published_hash_ = flight.hash;
  published_seconds_ = apply_seconds;
  published_squared_sums_ = std::move(squared_sums);
  ToChief(Applied{version, flight.hash, apply_seconds, published_squared_sums_});
  ReadersDone(flight.slots);
  AskForOffered();
  ServeHeldPulls();
  return Take(now);
}

Actions Server::OnSnapshotWritten(const SnapshotDone& done, TimePoint now) {
  if (ended_ || !snapshotting_ || *snapshotting_ != done.version) return Take(now);
  snapshotting_.reset();
  last_snapshot_ = done;
  MaybeConfirmContinue();
  if (!done.error.empty()) {
    Say(LogLevel::kError, absl::StrCat("snapshot of ", ToString(done.version), " failed: ", done.error));
  }
  ToChief(done);
  return Take(now);
}

Actions Server::Tick(TimePoint now) {
  if (ended_) return Take(now);
  if (held_pulls_.NextDeadline() > now) return Take(now);
  held_pulls_.TakeIf([&](SessionId session, const HeldPull& pull) {
    if (pull.deadline > now) return false;
    RefuseWorker(session, RefuseReason::kRetry,
                 absl::StrCat("pull ", pull.request, " waited for ", ToString(pull.at_least), "; newest is ",
                              ToString(published_)));
    return true;
  });
  return Take(now);
}

TimePoint Server::NextDeadline() const { return held_pulls_.NextDeadline(); }

Server::Worker* Server::Find(Incarnation incarnation) {
  auto it = workers_.find(incarnation);
  return it == workers_.end() ? nullptr : &it->second;
}

const Server::Staging* Server::FindComplete(const UpdateId& update) const {
  auto it = workers_.find(update.incarnation);
  if (it == workers_.end() || !it->second.staging) return nullptr;
  const Staging& staging = *it->second.staging;
  return staging.update == update && staging.complete ? &staging : nullptr;
}

std::optional<StageSlot> Server::GiveSlot(Incarnation owner) {
  StageSlot number(static_cast<std::uint32_t>(slots_.size()));
  if (free_slots_.empty()) {
    slots_.emplace_back();
    actions_.push_back(AllocateSlot{number});
  } else {
    number = *free_slots_.begin();
    free_slots_.erase(free_slots_.begin());
  }
  Slot& slot = slots_[number.value()];
  slot.owner = owner;
  workers_.at(owner).slot = number;
  return slot.ready ? std::nullopt : std::optional(number);
}

void Server::GiveSharedSlots(std::vector<StageSlot>& new_slots) {
  const auto live = static_cast<std::size_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second.live; }));
  AllocateSharedSlots(std::min<std::size_t>(live, place_.stage_slots));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].ready) new_slots.push_back(StageSlot(static_cast<std::uint32_t>(i)));
  }
}

void Server::AllocateSharedSlots(std::size_t wanted) {
  while (slots_.size() < wanted) {
    actions_.push_back(AllocateSlot{StageSlot(static_cast<std::uint32_t>(slots_.size()))});
    slots_.emplace_back();
  }
}

void Server::MaybeReleaseSlot(Incarnation incarnation) {
  Worker* worker = Find(incarnation);
  if (worker == nullptr || worker->live || worker->staging) return;
  if (worker->slot) {
    Slot& slot = slots_[worker->slot->value()];
    if (slot.writers > 0 || slot.readers > 0) return;
    slot.owner = Incarnation();
    free_slots_.insert(*worker->slot);
  }
  workers_.erase(incarnation);
}

void Server::ReadersDone(const std::vector<StageSlot>& slots) {
  for (StageSlot number : slots) {
    Slot& slot = slots_[number.value()];
    --slot.readers;
    MaybeReleaseSlot(slot.owner);
  }
}

void Server::FinishUpdate(const UpdateId& update, bool decided) {
  if (Worker* worker = Find(update.incarnation)) {
    worker->next_sequence = std::max(worker->next_sequence, update.sequence + 1);
    if (worker->staging && worker->staging->update == update) worker->staging.reset();
  }
  if (!finished_.try_emplace(update, decided).second) return;
  finished_order_.push_back(update);
  while (finished_order_.size() > options_.max_finished) {
    finished_.erase(finished_order_.front());
    finished_order_.pop_front();
  }
}

}  // namespace evenkeel::ps
