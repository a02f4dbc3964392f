// The workers' side of the conversation.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/bfloat16.h"
#include "evenkeel/ps/server.h"

namespace evenkeel::ps {

std::optional<Server::Refusal> Server::CheckJob(const Envelope& envelope) const {
  if (!welcomed_) return Refusal{RefuseReason::kRetry, "has not reached the chief yet"};
  if (envelope.job_id != job_id_) {
    return Refusal{RefuseReason::kForeignJob, absl::StrCat("serves job ", job_id_, ", not ", envelope.job_id)};
  }
  if (envelope.spec_hash != options_.spec_hash) {
    return Refusal{RefuseReason::kOtherExperiment,
                   absl::StrCat("serves experiment ", options_.spec_hash, ", not ", envelope.spec_hash)};
  }
  if (envelope.term < term_) {
    return Refusal{RefuseReason::kStaleTerm,
                   absl::StrCat("term ", envelope.term.value(), " is stale; now is ", term_.value())};
  }
  if (envelope.term > term_) {
    return Refusal{RefuseReason::kRetry,
                   absl::StrCat("has not heard of term ", envelope.term.value(), " yet; now is ", term_.value())};
  }
  return std::nullopt;
}

std::optional<Server::Refusal> Server::CheckPlace(const Envelope& envelope) const {
  if (!configured_) return Refusal{RefuseReason::kRetry, "has no parameters yet"};
  if (envelope.generation < generation_) {
    return Refusal{RefuseReason::kStaleGeneration,
                   absl::StrCat("generation ", envelope.generation.value(), " is stale; now is ", generation_.value())};
  }
  if (envelope.layout < layout_number_) {
    return Refusal{RefuseReason::kStaleLayout,
                   absl::StrCat("layout ", envelope.layout.value(), " is stale; now is ", layout_number_.value())};
  }
  if (envelope.generation > generation_ || envelope.layout > layout_number_) {
    return Refusal{RefuseReason::kRetry,
                   absl::StrCat("is still at generation ", generation_.value(), ", layout ", layout_number_.value())};
  }
  return std::nullopt;
}

std::optional<Server::Refusal> Server::CheckIncarnation(const Envelope& envelope) const {
  auto it = workers_.find(envelope.sender);
  if (it != workers_.end() && it->second.live) return std::nullopt;
  const std::string who = absl::StrCat("incarnation ", envelope.sender.value());
  if (!members_known_) return Refusal{RefuseReason::kRetry, "has not been told who the members are yet"};
  if (it != workers_.end() && !fenced_.contains(envelope.sender)) {
    return Refusal{RefuseReason::kRetry, absl::StrCat(who, " has not been admitted under this term yet")};
  }
  if (fenced_.contains(envelope.sender)) {
    return Refusal{RefuseReason::kStaleIncarnation, absl::StrCat(who, " has been fenced")};
  }
  if (envelope.sender > highest_seen_ || envelope.membership_epoch > members_epoch_) {
    return Refusal{RefuseReason::kRetry, absl::StrCat(who, " has not been admitted here yet")};
  }
  return Refusal{RefuseReason::kStaleIncarnation,
                 absl::StrCat(who, " is not among the living; the newest is ", highest_seen_.value())};
}

Actions Server::OnWorkerMessage(SessionId session, const Message& message, TimePoint now) {
  if (ended_) return Take(now);
  if (const auto* hello = std::get_if<Hello>(&message.body)) {
    OnHello(session, message.envelope, *hello);
  } else if (const auto* pull = std::get_if<Pull>(&message.body)) {
    OnPull(session, message.envelope, *pull, now);
  } else if (const auto* fetch = std::get_if<Fetch>(&message.body)) {
    OnFetch(session, message.envelope, *fetch);
  } else {
    RefuseWorker(session, RefuseReason::kMalformed,
                 absl::StrCat(NameOf(message.body), " is not for a parameter server"));
  }
  return Take(now);
}

// A worker connects before it is admitted, so an unknown incarnation is let in: it may neither stage nor read until the
// chief has named it. So it does before a layout rules for which this server makes ready.
void Server::OnHello(SessionId session, const Envelope& envelope, const Hello& hello) {
  auto refusal = CheckJob(envelope);
  if (!refusal && !configured_ && !prepared_) refusal = Refusal{RefuseReason::kRetry, "has no parameters yet"};
  if (!refusal && fenced_.contains(envelope.sender)) {
    refusal = Refusal{RefuseReason::kStaleIncarnation,
                      absl::StrCat(hello.name, ", incarnation ", envelope.sender.value(), ", has been fenced")};
  }
  if (!refusal && envelope.sender == Incarnation()) {
    refusal = Refusal{RefuseReason::kMalformed, absl::StrCat("Hello of ", hello.name, " carries no incarnation")};
  }
  if (!refusal && !sessions_.contains(session) && sessions_.size() >= options_.max_sessions) {
    refusal = Refusal{RefuseReason::kRetry, absl::StrCat("has ", sessions_.size(), " streams open already")};
  }
  if (refusal) {
    RefuseWorker(session, refusal->reason, refusal->text);
    actions_.push_back(CloseWorker{session});
    return;
  }
  // A worker has one stream here; it has given up the former.
  if (auto former = session_of_.find(envelope.sender); former != session_of_.end() && former->second != session) {
    actions_.push_back(CloseWorker{former->second});
    EraseSession(former->second);
  }
  if (sessions_.try_emplace(session, Session{.incarnation = envelope.sender}).second) {
    session_of_[envelope.sender] = session;
  }
  ToWorker(session, HelloAck{.server = place_.server, .version = published_});
}

void Server::OnPull(SessionId session, const Envelope& envelope, const Pull& pull, TimePoint now) {
  auto it = sessions_.find(session);
  auto refusal = CheckJob(envelope);
  if (!refusal && (it == sessions_.end() || it->second.incarnation != envelope.sender)) {
    refusal = Refusal{RefuseReason::kMalformed, "Pull on a stream without Hello"};
  }
  if (!refusal) refusal = CheckPlace(envelope);
  if (!refusal && pull.at_least.generation < generation_) {
    refusal = Refusal{RefuseReason::kStaleGeneration,
                      absl::StrCat("version ", ToString(pull.at_least), " is void; now is ", ToString(published_))};
  }
  if (!refusal) refusal = CheckIncarnation(envelope);
  const bool admitted = !refusal;
  if (refusal && refusal->reason == RefuseReason::kRetry && configured_ && it != sessions_.end() &&
      !CheckJob(envelope) && !CheckPlace(envelope)) {
    refusal.reset();  // wait for its admission as for the version
  }
  if (refusal) {
    RefuseWorker(session, refusal->reason, refusal->text);
    return;
  }
  if (admitted && pull.at_least <= published_) {
    actions_.push_back(ServePull{session, pull.request, pull.bfloat16});
    return;
  }
  if (held_pulls_.Contains(session, pull.request)) return;
  if (held_pulls_.CountOf(session) >= options_.max_held_pulls) {
    RefuseWorker(session, RefuseReason::kRetry,
                 absl::StrCat(held_pulls_.CountOf(session), " pulls are waiting on this stream already"));
    return;
  }
  Duration wait = std::clamp(Milliseconds(std::min<std::int64_t>(pull.deadline_ms, 1'000'000'000)), Duration::zero(),
                             options_.max_pull_wait);
  held_pulls_.Add(session, HeldPull{pull.request, pull.at_least, now + wait, pull.bfloat16});
}

void Server::ServeHeldPulls() {
  if (!configured_) return;
  for (ServePull& pull : TakePullsOf(published_)) actions_.push_back(std::move(pull));
}

std::vector<ServePull> Server::TakePullsOf(Version version) {
  std::vector<ServePull> taken;
  held_pulls_.TakeIf([&](SessionId session, const HeldPull& pull) {
    if (pull.at_least > version) return false;
    const Worker* worker = Find(sessions_.at(session).incarnation);
    if (worker == nullptr || !worker->live) return false;
    taken.push_back({session, pull.request, pull.bfloat16});
    return true;
  });
  return taken;
}

StageAnswer Server::BeginStage(SessionId session, const Envelope& envelope, const Stage& stage,
                               std::size_t payload_bytes, TimePoint now) {
  StageAnswer answer;
  if (ended_) return answer;
  auto it = sessions_.find(session);
  auto refusal = CheckJob(envelope);
  if (!refusal && (it == sessions_.end() || it->second.incarnation != envelope.sender)) {
    refusal = Refusal{RefuseReason::kMalformed, "Stage on a stream without Hello"};
  }
  if (!refusal) refusal = CheckPlace(envelope);
  if (!refusal) refusal = CheckIncarnation(envelope);
  if (!refusal && stage.update.incarnation != envelope.sender) {
    refusal = Refusal{RefuseReason::kMalformed,
                      absl::StrCat("update ", ToString(stage.update), " was staged by ", envelope.sender.value())};
  }
  if (!refusal && stage.update.term != term_) {
    refusal = Refusal{stage.update.term < term_ ? RefuseReason::kStaleTerm : RefuseReason::kRetry,
                      absl::StrCat("update ", ToString(stage.update), " is not of term ", term_.value())};
  }
  if (!refusal) {
    const auto buckets = static_cast<std::int32_t>(stripe_bytes_.size());
    if (stage.bucket < -1 || stage.bucket >= buckets || (stage.bucket == -1 && !stage.closing)) {
      refusal =
          Refusal{RefuseReason::kMalformed, absl::StrCat("bucket ", stage.bucket, " is not one of [0, ", buckets, ")")};
    } else {
      auto expected = stage.bucket < 0 || stage.offered ? 0 : stripe_bytes_[static_cast<size_t>(stage.bucket)];
      const bool statistic = stage.bucket >= 0 && place_.layout->buckets()[static_cast<size_t>(stage.bucket)].statistic;
      if (stage.mean_of != 0 && !statistic) {
        expected = expected / WireBytes(WireDtype::kFloat32) * WireBytes(WireDtype::kBfloat16);
      }
      if (stage.mean_of < 0 || (stage.mean_of > 0 && statistic)) {
        refusal = Refusal{
            RefuseReason::kMalformed,
            absl::StrCat("bucket ", stage.bucket, " of update ", ToString(stage.update), " cannot be the mean of ",
                         stage.mean_of, " samples", statistic ? "; statistics travel as float32 sums" : "")};
      } else if (payload_bytes != static_cast<std::size_t>(expected)) {
        refusal = Refusal{RefuseReason::kMalformed,
                          absl::StrCat("bucket ", stage.bucket, " of update ", ToString(stage.update), " has ",
                                       payload_bytes, " bytes; its stripe here has ", expected)};
      }
    }
  }
  if (refusal) {
    RefuseWorker(session, refusal->reason, refusal->text, stage.update);
  } else {
    Worker& worker = workers_.at(envelope.sender);
    if (OpenStaging(session, worker, stage) && SamplesAgree(session, *worker.staging, stage)) {
      answer.write = Receive(session, worker, stage);
    }
  }
  answer.actions = Take(now);
  return answer;
}

// Makes worker.staging that of stage's update and attempt. False: nothing of this message is to be taken.
bool Server::OpenStaging(SessionId session, Worker& worker, const Stage& stage) {
  auto refuse = [&](RefuseReason reason, std::string text) {
    RefuseWorker(session, reason, absl::StrCat("update ", ToString(stage.update), " ", text), stage.update);
    return false;
  };
  auto retry = [&](std::string text) { return refuse(RefuseReason::kRetry, std::move(text)); };
  // Void for good, as what a rollback leaves behind is: nobody need send it again.
  auto gone = [&](std::string text) { return refuse(RefuseReason::kStaleGeneration, std::move(text)); };
  if (auto finished = finished_.find(stage.update); finished != finished_.end()) {
    if (!finished->second) return gone("has been dropped by the chief");
    if (stage.closing) ToWorker(session, StageAck{.update = stage.update, .attempt = stage.attempt, .complete = true});
    return false;
  }
  const bool current = worker.staging && worker.staging->update == stage.update;
  if (!current && stage.update.sequence < worker.next_sequence) return gone("has been replaced by a newer one");
  if (!current && worker.staging && worker.staging->complete) {
    return retry(absl::StrCat("must wait until ", ToString(worker.staging->update), " is decided"));
  }
  if (current && stage.attempt < worker.staging->attempt) return false;
  if (current && (stage.attempt == worker.staging->attempt || worker.staging->complete)) return true;
  if (current && worker.staging->position >= 0) {
    return refuse(RefuseReason::kMalformed, "is summed while it comes: what has come cannot be staged anew");
  }
  Staging staging{.update = stage.update,
                  .attempt = stage.attempt,
                  .buckets = std::vector<BucketState>(stripe_bytes_.size(), BucketState::kMissing)};
  if (SharesSlots()) {
    FindPlace(staging);
  } else {
    if (!worker.slot) return retry("has no place here yet");
    const Slot& slot = slots_[worker.slot->value()];
    if (!slot.ready) return retry("has no place here yet");
    if (slot.writers > 0 || slot.readers > 0) return retry("must wait until its place here is free");
    staging.slot = *worker.slot;
  }
  worker.next_sequence = stage.update.sequence + 1;
  worker.staging = std::move(staging);
  return true;
}

// The order of its set says where, once that is known.
void Server::FindPlace(Staging& staging) const {
  const std::optional<SetIndex::Entry> entry = sets_of_.NewestOf(staging.update);
  if (!entry) return;
  const SealSet& set = sets_.at(entry->set);
  if (set.folded && folded_set_ != entry->set) return;
  staging.placed = true;
  if (set.folded) {
    staging.position = entry->position;
    staging.slot = fold_.SlotOf(entry->position);
    staging.set_attempt = set.attempt;
  } else {
    staging.slot = set.slots[static_cast<std::size_t>(entry->position)];
  }
}

// Whether the bucket's payload may be written now.
bool Server::HasRoom(const Staging& staging, std::int32_t bucket) const {
  if (!SharesSlots()) return true;
  if (!staging.placed || staging.slot.value() >= slots_.size()) return false;
  const Slot& slot = slots_[staging.slot.value()];
  return slot.ready && slot.readers == 0 && fold_.Free(staging.slot, bucket, staging.position);
}

// A mean is multiplied by what its bucket says, the sum divided by what the closing message says.
bool Server::SamplesAgree(SessionId session, Staging& staging, const Stage& stage) {
  for (const std::int64_t samples : {stage.mean_of, stage.closing ? stage.samples : 0}) {
    if (samples <= 0) continue;
    if (staging.samples == 0) staging.samples = samples;
    if (staging.samples == samples) continue;
    RefuseWorker(session, RefuseReason::kMalformed,
                 absl::StrCat("update ", ToString(stage.update), " says that it covers ", samples, " samples and ",
                              staging.samples),
                 stage.update);
    return false;
  }
  return true;
}

std::optional<StageWrite> Server::Receive(SessionId session, Worker& worker, const Stage& stage) {
  Staging& staging = *worker.staging;
  std::optional<StageWrite> write;
  if (!staging.complete) {
    if (stage.bucket >= 0 && stripe_bytes_[static_cast<size_t>(stage.bucket)] > 0 &&
        staging.buckets[static_cast<size_t>(stage.bucket)] < BucketState::kWriting) {
      BucketState& state = staging.buckets[static_cast<size_t>(stage.bucket)];
      if (!HasRoom(staging, stage.bucket)) {
        state = BucketState::kOffered;  // a payload that came with it is void
      } else if (stage.offered) {
        state = BucketState::kOffered;
        Ask(worker, {stage.bucket});
      } else {
        state = BucketState::kWriting;
        ++slots_[staging.slot.value()].writers;
        if (SharesSlots()) fold_.BeginWrite(staging.slot, stage.bucket);
        write = StageWrite{configuration_, staging.slot, stage.update,  stage.attempt,      stage.bucket,
                           stage.closing,  session,      stage.mean_of, staging.set_attempt};
      }
    }
    if (stage.closing && !staging.closing) staging.closing = stage;
    TryComplete(worker);
  }
  if (stage.closing && !write) SendStageAck(session, staging);
  return write;
}

Actions Server::EndStage(const StageWrite& write, bool whole, TimePoint now) {
  if (ended_ || write.configuration != configuration_) return Take(now);
  Slot& slot = slots_[write.slot.value()];
  --slot.writers;
  if (SharesSlots()) fold_.EndWrite(write.slot, write.bucket);
  Worker* worker = Find(write.update.incarnation);
  if (worker != nullptr && worker->staging && worker->staging->update == write.update &&
      worker->staging->attempt == write.attempt && worker->staging->set_attempt == write.set_attempt) {
    Staging& staging = *worker->staging;
    staging.buckets[static_cast<size_t>(write.bucket)] = whole ? BucketState::kReceived : BucketState::kMissing;
    if (whole) ++staging.received;
    // What came on the next stream meanwhile was taken for the same again.
    const auto session = session_of_.find(write.update.incarnation);
    if (!whole && session != session_of_.end() && session->second != write.session) Ask(*worker, {write.bucket});
    if (whole && staging.position >= 0) {
      fold_.Received(write.bucket, staging.position);
      FoldWhatCame(write.bucket);
    }
    TryComplete(*worker);
    if (write.closing) SendStageAck(write.session, *worker->staging);
  } else if (SharesSlots()) {
    AskForOffered();  // somebody else may have waited for the room
  }
  MaybeReleaseSlot(slot.owner);
  return Take(now);
}

void Server::FoldWhatCame(std::int32_t bucket) {
  const std::optional<FoldStep> step = fold_.Next(bucket);
  if (!step) return;
  const auto positions = static_cast<std::int32_t>(sets_.at(folded_set_).updates.size());
  actions_.push_back(FoldBucket{configuration_, *step, positions, fold_.SlotsOf(*step)});
}

void Server::AskForOffered() {
  if (!SharesSlots()) return;
  for (const auto& [number, set] : sets_) {
    for (const UpdateId& update : set.updates) {
      Worker* worker = Find(update.incarnation);
      if (worker == nullptr || !worker->staging || worker->staging->update != update) continue;
      const Staging& staging = *worker->staging;
      std::vector<std::int32_t> buckets;
      for (std::size_t bucket = 0; bucket < staging.buckets.size(); ++bucket) {
        const auto b = static_cast<std::int32_t>(bucket);
        if (staging.buckets[bucket] == BucketState::kOffered && HasRoom(staging, b)) buckets.push_back(b);
      }
      if (!buckets.empty()) Ask(*worker, std::move(buckets));
    }
  }
}

void Server::AskForOffered(std::int32_t bucket, std::int32_t first, std::int32_t last) {
  const auto set = sets_.find(folded_set_);
  if (set == sets_.end()) return;
  last = std::min(last, static_cast<std::int32_t>(set->second.updates.size()) - 1);
  for (std::int32_t position = first; position <= last; ++position) {
    const UpdateId& update = set->second.updates[static_cast<std::size_t>(position)];
    Worker* worker = Find(update.incarnation);
    if (worker == nullptr || !worker->staging || worker->staging->update != update) continue;
    const Staging& staging = *worker->staging;
    const BucketState state = staging.buckets[static_cast<std::size_t>(bucket)];
    if (state == BucketState::kOffered && HasRoom(staging, bucket)) Ask(*worker, {bucket});
  }
}

// Where its stream is down, the worker offers everything anew on the next one.
void Server::Ask(Worker& worker, std::vector<std::int32_t> buckets) {
  const Staging& staging = *worker.staging;
  const auto session = session_of_.find(staging.update.incarnation);
  if (session == session_of_.end()) return;
  for (const std::int32_t bucket : buckets) {
    worker.staging->buckets[static_cast<std::size_t>(bucket)] = BucketState::kAsked;
  }
  ToWorker(session->second,
           StageAck{.update = staging.update, .attempt = staging.attempt, .missing = std::move(buckets)});
}

void Server::TryComplete(Worker& worker) {
  Staging& staging = *worker.staging;
  if (staging.complete || !staging.closing || staging.received < stripes_) return;
  staging.complete = true;
  SendStaged(staging);
  if (staging.ack_owed) SendStageAck(staging.ack_session, staging);
  for (SetNumber number : sets_of_.Of(staging.update)) {
    SealSet& set = sets_.at(number);
    if (set.missing > 0) --set.missing;
    CheckSet(number, set);
  }
}

void Server::SendStageAck(SessionId session, Staging& staging) {
  StageAck ack{.update = staging.update, .attempt = staging.attempt, .complete = staging.complete};
  if (!staging.complete) {
    for (size_t bucket = 0; bucket < stripe_bytes_.size(); ++bucket) {
      if (stripe_bytes_[bucket] > 0 && staging.buckets[bucket] == BucketState::kMissing) {
        ack.missing.push_back(static_cast<std::int32_t>(bucket));
      }
    }
  }
  staging.ack_owed = !staging.complete;
  staging.ack_session = session;
  ToWorker(session, std::move(ack));
}

void Server::SendStaged(const Staging& staging) {
  ToChief(Staged{.update = staging.update,
                 .samples = staging.closing->samples,
                 .loss_sum = staging.closing->loss_sum,
                 .non_finite = staging.closing->non_finite,
                 .non_finite_layer = staging.closing->non_finite_layer,
                 .computed_on = staging.closing->computed_on,
                 .feedback = staging.closing->feedback,
                 .set_attempt = staging.set_attempt});
}

Actions Server::OnWorkerClosed(SessionId session, TimePoint now) {
  EraseSession(session);
  return Take(now);
}

void Server::EraseSession(SessionId session) {
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  auto of = session_of_.find(it->second.incarnation);
  if (of != session_of_.end() && of->second == session) session_of_.erase(of);
  held_pulls_.Erase(session);
  sessions_.erase(it);
}

}  // namespace evenkeel::ps
