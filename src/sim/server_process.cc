#include "sim/server_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evenkeel::sim {
namespace {

constexpr Duration kSnapshotTime = std::chrono::milliseconds(10);
constexpr Duration kCopyTime = std::chrono::milliseconds(3);
constexpr double kNoiseScale = 96;  // samples

// Of what is there and what is added to it; another order gives another.
std::uint64_t SumOf(std::uint64_t sum, std::uint64_t value) { return MixKey(sum, value); }

}  // namespace

ServerProcess::ServerProcess(Environment& environment, std::uint32_t index, std::uint64_t life)
    : Peer(absl::StrCat("ps:", index)),
      environment_(environment),
      index_(index),
      nonce_(MixKey(environment.scenario.seed, HashName(machine()), life)),
      rng_(environment.NewRng(machine(), life)),
      server_(std::make_unique<ps::Server>(
          ps::ServerOptions{.name = machine(), .spec_hash = environment.experiment.spec_hash})),
      backoff_(Milliseconds(100), std::chrono::seconds(2), nonce_) {}

void ServerProcess::Start() {
  environment_.invariants.ServerStarts(index_);
  away_since_ = next_attempt_ = now();
  OnTimer();
}

void ServerProcess::Leave() {
  if (ended_ || stop_at_ != kNever) return;
  let_go_ = true;
  stop_at_ = joined_ ? now() + environment_.experiment.membership.drain : now();
  environment_.scheduler.Wake(*this, stop_at_);
  Perform(server_->AskToLeave("told to", now()));
}

void ServerProcess::OnTimer() {
  if (ended_) return;
  if (now() >= stop_at_) {
    SendToChief({server_->MakeEnvelope(), evenkeel::Leave{.reason = "told to"}});
    return Perform({ps::Finish{absl::OkStatus()}});
  }
  if (!joined_ && now() >= away_since_ + environment_.experiment.membership.chief_timeout) {
    Perform({ps::Finish{absl::DeadlineExceededError("the chief is away")}});
    return;
  }
  if (!joined_ && chief_ == SessionId{} && now() >= next_attempt_) Connect();
  if (now() >= renewal_.next()) {
    if (!renewal_.Due(now())) return GiveUpChief();
    SendToChief({server_->MakeEnvelope(), server_->State(now())});
  }
  Perform(now() >= server_->NextDeadline() ? server_->Tick(now()) : ps::Actions{});
  if (!ended_) environment_.scheduler.Wake(*this, server_->NextDeadline());
}

void ServerProcess::Connect() {
  chief_ = environment_.network.Connect(*this, "chief");
  Join join;
  join.role = Role::kPs;
  join.name = machine();
  join.index = static_cast<int>(index_);
  join.nonce = nonce_;
  join.address = machine();
  join.holding = server_->Holds();
  environment_.network.Send(*this, chief_, {server_->MakeEnvelope(), std::move(join)});
}

void ServerProcess::Reconnect() {
  if (ended_ || chief_ == SessionId{}) return;
  joined_ = false;
  away_since_ = now();
  renewal_.End();
  Connect();
}

// Its stream is open, but nobody answers there.
void ServerProcess::GiveUpChief() {
  environment_.network.Close(*this, chief_);
  OnClosed(chief_);
}

void ServerProcess::OnMessage(SessionId stream, Message message, Payload payload) {
  if (ended_) return;
  if (const std::optional<std::size_t> source = SourceOf(stream)) return OnFetchMessage(*source, message, payload);
  if (stream == chief_) {
    environment_.interposer.BeforeServer(index_, message);
    if (std::holds_alternative<LeaveNow>(message.body) && message.envelope.term >= server_->MakeEnvelope().term) {
      let_go_ = true;
      environment_.invariants.ServerReleased(index_, message.envelope.term, server_->MakeEnvelope().sender);
    }
    const auto* decision = std::get_if<Decision>(&message.body);
    if (decision != nullptr && shard_ && decision->version <= server_->published() &&
        environment_.interposer.AppliesAgain(index_, *decision)) {
      shard_->fingerprint = NextFingerprint(shard_->fingerprint, *decision);
    }
    renewal_.Heard(now());
    ps::Actions actions = server_->OnChiefMessage(message, now());
    const auto* welcome = std::get_if<Welcome>(&message.body);
    if (welcome != nullptr && message.envelope.term == server_->MakeEnvelope().term) {
      joined_ = true;
      backoff_.Reset();
      renewal_.Begin(*welcome, now());
    }
    return Perform(std::move(actions));
  }
  const bool stage = std::holds_alternative<Stage>(message.body);
  if (!stage && !std::holds_alternative<Hello>(message.body) && !std::holds_alternative<Pull>(message.body) &&
      !std::holds_alternative<Fetch>(message.body)) {
    return;  // of a stream that was given up
  }
  if (stage) return OnStage(stream, message, payload);
  ps::Actions actions = server_->OnWorkerMessage(stream, message, now());
  NoteStale(actions, message.envelope);
  Perform(std::move(actions));
  // Nothing but a pull brings its deadline nearer, and to ask for it costs a look at every worker.
  const bool pull = std::holds_alternative<Pull>(message.body);
  if (pull && !ended_) environment_.scheduler.Wake(*this, server_->NextDeadline());
}

void ServerProcess::NoteStale(const ps::Actions& actions, const Envelope& envelope) {
  for (const ps::Action& action : actions) {
    const auto* send = std::get_if<ps::SendToWorker>(&action);
    const auto* refuse = send == nullptr ? nullptr : std::get_if<Refuse>(&send->message.body);
    if (refuse == nullptr || refuse->reason != RefuseReason::kStaleIncarnation) continue;
    environment_.invariants.WorkerCalledStale(index_, send->message.envelope.term, envelope.sender);
  }
}

void ServerProcess::OnStage(SessionId stream, const Message& message, Payload payload) {
  const Stage& stage = std::get<Stage>(message.body);
  ps::StageAnswer answer = server_->BeginStage(stream, message.envelope, stage, payload.bytes, now());
  NoteStale(answer.actions, message.envelope);
  Perform(std::move(answer.actions));
  if (!answer.write) return;
  const ps::StageWrite write = *answer.write;
  environment_.invariants.ServerTakes(index_, write.update);
  const auto slot = static_cast<std::size_t>(write.slot.value());
  const auto bucket = static_cast<std::size_t>(write.bucket);
  if (!shard_ || slot >= shard_->slots.size() || shard_->slots[slot].empty()) {
    return environment_.invariants.Break(absl::StrCat(machine(), " writes into slot ", slot, ", which has no memory"));
  }
  if (rng_.NextDouble() >= environment_.scenario.slow_stages) {
    shard_->slots[slot][bucket] = payload.value;
    return Perform(server_->EndStage(write, true, now()));
  }
  // The copy takes a while; whoever reads meanwhile gets neither the old nor the new.
  shard_->slots[slot][bucket] = 0;
  const Duration time = Vary(rng_, kCopyTime);
  environment_.network.Hold(*this, stream, time);
  environment_.scheduler.At(now() + time, this,
                            [this, write, slot, bucket, value = payload.value, layout = shard_->place.layout] {
                              if (ended_) return;
                              if (shard_ && shard_->place.layout == layout && slot < shard_->slots.size())
                                shard_->slots[slot][bucket] = value;
                              Perform(server_->EndStage(write, true, now()));
                            });
}

void ServerProcess::OnClosed(SessionId stream) {
  if (ended_) return;
  if (const std::optional<std::size_t> source = SourceOf(stream)) {
    prepared_->sources[*source].stream = SessionId{};
    const std::string& name = prepared_->order.sources[*source].name;
    return EndFetch(absl::UnavailableError(absl::StrCat("the stream to ", name, " broke")), true);
  }
  if (stream != chief_) return Perform(server_->OnWorkerClosed(stream, now()));
  if (joined_) away_since_ = now();
  joined_ = false;
  chief_ = SessionId{};
  renewal_.End();
  next_attempt_ = now() + backoff_.Next();
  Perform({});
}

void ServerProcess::SendToChief(Message message) {
  environment_.invariants.ServerSends(index_, message);
  const bool goes = joined_ || std::holds_alternative<Refuse>(message.body);
  if (goes && chief_ != SessionId{}) environment_.network.Send(*this, chief_, std::move(message));
}

void ServerProcess::Perform(ps::Actions actions) {
  for (ps::Action& action : actions) {
    if (auto* send = std::get_if<ps::SendToChief>(&action)) {
      SendToChief(std::move(send->message));
    } else if (auto* to_worker = std::get_if<ps::SendToWorker>(&action)) {
      environment_.network.Send(*this, to_worker->session, std::move(to_worker->message));
    } else if (auto* close = std::get_if<ps::CloseWorker>(&action)) {
      environment_.network.Close(*this, close->session);
      environment_.scheduler.At(now(), this, [this, stream = close->session] { OnClosed(stream); });
    } else if (std::holds_alternative<ps::RejoinChief>(action)) {
      if (chief_ != SessionId{}) GiveUpChief();
    } else if (auto* pull = std::get_if<ps::ServePull>(&action)) {
      ServePull(pull->session, pull->request);
    } else if (auto* finish = std::get_if<ps::Finish>(&action)) {
      environment_.invariants.ServerEnded(index_, finish->status);
      EndFetch(absl::CancelledError(), false);
      left_ = let_go_ && finish->status.ok();
      ended_ = true;
    } else if (auto* initialise = std::get_if<ps::Initialise>(&action)) {
      Enqueue(std::move(*initialise));
    } else if (auto* restore = std::get_if<ps::Restore>(&action)) {
      Enqueue(std::move(*restore));
    } else if (auto* allocate = std::get_if<ps::AllocateSlot>(&action)) {
      Enqueue(*allocate);
    } else if (auto* fold = std::get_if<ps::FoldBucket>(&action)) {
      Enqueue(std::move(*fold));
    } else if (auto* norms = std::get_if<ps::ComputeNorms>(&action)) {
      Enqueue(std::move(*norms));
    } else if (auto* apply = std::get_if<ps::ApplyDecision>(&action)) {
      Enqueue(std::move(*apply));
    } else if (auto* snapshot = std::get_if<ps::StartSnapshot>(&action)) {
      Enqueue(std::move(*snapshot));
    } else if (auto* prepare = std::get_if<ps::PreparePlace>(&action)) {
      Enqueue(std::move(*prepare));
    } else if (auto* fill = std::get_if<ps::FillPlace>(&action)) {
      Enqueue(*fill);
    } else if (auto* drop = std::get_if<ps::DropPrepared>(&action)) {
      Enqueue(*drop);
    } else if (auto* adopt = std::get_if<ps::AdoptPrepared>(&action)) {
      Enqueue(*adopt);
    } else if (auto* fetch = std::get_if<ps::ServeFetch>(&action)) {
      Enqueue(std::move(*fetch));
    }
  }
  if (ended_) return;
  TimePoint wake = std::min(renewal_.next(), stop_at_);
  if (!joined_) wake = std::min(wake, away_since_ + environment_.experiment.membership.chief_timeout);
  if (!joined_ && chief_ == SessionId{}) wake = std::min(wake, next_attempt_);
  environment_.scheduler.Wake(*this, wake);
}

bool ServerProcess::Owns(int bucket) const {
  return shard_->place.layout->StripeOf(bucket, shard_->place.server).size() > 0;
}

void ServerProcess::ServePull(SessionId stream, std::uint64_t request) {
  if (!shard_) {
    Refuse refuse;
    refuse.message = "the parameters are being replaced";
    return environment_.network.Send(*this, stream, {server_->MakeEnvelope(), std::move(refuse)});
  }
  const auto buckets = static_cast<std::int32_t>(shard_->place.layout->buckets().size());
  for (std::int32_t bucket = 0; bucket < buckets; ++bucket) {
    if (!Owns(bucket)) continue;
    environment_.network.Send(*this, stream, {server_->MakeEnvelope(), PullData{request, shard_->version, bucket}});
  }
  environment_.network.Send(*this, stream, {server_->MakeEnvelope(), PullData{request, shard_->version, -1}});
}

// --- the queue of work ----------------------------------------------------------------------------------------------

void ServerProcess::Enqueue(Work work) {
  work_.push_back(std::move(work));
  if (!working_) BeginWork();
}

void ServerProcess::BeginWork() {
  working_ = true;
  const Work& work = work_.front();
  if (std::holds_alternative<ps::Initialise>(work) || std::holds_alternative<ps::Restore>(work)) shard_.reset();
  if (const auto* apply = std::get_if<ps::ApplyDecision>(&work)) CheckSlots(*apply, "as its sum begins");
  const bool moves = std::holds_alternative<ps::ServeFetch>(work) || std::holds_alternative<ps::AdoptPrepared>(work);
  const Scenario& scenario = environment_.scenario;
  const auto time = std::chrono::microseconds(scenario.work_us + (moves ? scenario.move_us : 0));
  const Duration takes = Vary(rng_, time);
  if (std::holds_alternative<ps::ApplyDecision>(work) && std::exchange(reconnects_in_work_, false)) {
    environment_.scheduler.At(now() + takes / 2, this, [this] { Reconnect(); });
  }
  environment_.scheduler.At(now() + takes, this, [this] { EndWork(); });
}

void ServerProcess::EndWork() {
  if (ended_) return;
  const Work work = std::move(work_.front());
  work_.pop_front();
  // What it leads to comes behind what waits already.
  std::visit([this](const auto& w) { Finish(w); }, work);
  working_ = !work_.empty();
  if (working_) BeginWork();
}

void ServerProcess::Hold(const ps::Place& place, Version version, std::uint64_t fingerprint) {
  shard_ = Shard{place, version, fingerprint, fingerprint, {}};
  environment_.invariants.ServerHolds(index_, HeldNow());
  Perform(server_->OnConfigured(version, absl::OkStatus(), now()));
}

Invariants::Held ServerProcess::HeldNow() const {
  const Envelope envelope = server_->MakeEnvelope();
  return {.term = envelope.term,
          .generation = envelope.generation,
          .layout = envelope.layout,
          .place = shard_->place.server,
          .servers = shard_->place.layout->servers(),
          .version = shard_->version,
          .fingerprint = shard_->fingerprint};
}

void ServerProcess::Finish(const ps::Initialise& work) {
  Hold(work.place, work.version, InitialFingerprint(work.seed));
}

void ServerProcess::Finish(const ps::Restore& work) {
  const auto manifest = environment_.disk.manifests.find(work.checkpoint);
  if (manifest == environment_.disk.manifests.end() || manifest->second.parts.empty()) {
    return environment_.invariants.Break(
        absl::StrCat(machine(), " is to restore ", CheckpointName(work.checkpoint), ", which is not there"));
  }
  std::uint64_t fingerprint = 0;
  for (const PartInfo& part : manifest->second.parts) {
    const JobDisk::Part& stored =
        environment_.disk.parts.at(JobDisk::PathOf(CheckpointFolder(work.model_dir, work.checkpoint), part.file));
    if (&part != &manifest->second.parts.front() && stored.fingerprint != fingerprint) {
      environment_.invariants.Break(absl::StrCat("the parts of ", CheckpointName(work.checkpoint), " differ"));
    }
    fingerprint = stored.fingerprint;
  }
  Hold(work.place, work.version, fingerprint);
}

void ServerProcess::Finish(const ps::AllocateSlot& work) {
  if (shard_) {
    const std::size_t slot = work.slot.value();
    shard_->slots.resize(std::max(shard_->slots.size(), slot + 1));
    if (shard_->slots[slot].empty()) shard_->slots[slot].assign(shard_->place.layout->buckets().size(), 0);
  }
  Perform(server_->OnSlotReady(work.slot, absl::OkStatus(), now()));
}

// What was there, and who came to it in which order.
void ServerProcess::Finish(const ps::FoldBucket& work) {
  const auto bucket = static_cast<std::size_t>(work.step.bucket);
  for (const ps::StageSlot slot : work.slots) {
    const auto from = static_cast<std::size_t>(slot.value());
    if (!shard_ || from >= shard_->slots.size() || bucket >= shard_->slots[from].size()) continue;  // of a former place
    shard_->slots[0][bucket] = SumOf(shard_->slots[0][bucket], shard_->slots[from][bucket]);
  }
  Perform(server_->OnFolded(work.configuration, work.step, now()));
}

void ServerProcess::Finish(const ps::ComputeNorms& work) {
  const std::int64_t place = shard_ ? static_cast<std::int64_t>(shard_->place.server.value()) : 0;
  Perform(server_->OnNorms(work.set, work.attempt, {BlockNorm{place * 16, 1.0}}, now()));
}

void ServerProcess::CheckSlots(const ps::ApplyDecision& work, const char* when) {
  const std::vector<UpdateId> updates = UpdateIds(work.decision);
  if (!shard_) return;
  if (work.slots.size() != (work.folded ? 1 : updates.size())) {
    return environment_.invariants.Break(
        absl::StrCat(machine(), " adds up ", work.slots.size(), " slots for ", updates.size(), " updates"));
  }
  for (std::size_t bucket = 0; bucket < shard_->place.layout->buckets().size(); ++bucket) {
    if (!Owns(static_cast<int>(bucket))) continue;
    std::uint64_t expected = 0;
    for (std::size_t i = 0; i < updates.size(); ++i) {
      const std::uint64_t value = GradientValue(updates[i], static_cast<std::int32_t>(bucket));
      expected = i == 0 || !work.folded ? value : SumOf(expected, value);
      if (work.folded && i + 1 < updates.size()) continue;
      const auto slot = static_cast<std::size_t>(work.slots[work.folded ? 0 : i].value());
      const bool there = slot < shard_->slots.size() && !shard_->slots[slot].empty();
      if (there && shard_->slots[slot][bucket] == expected) continue;
      environment_.invariants.Break(
          absl::StrCat(machine(), ": slot ", slot, ", bucket ", bucket,
                       work.folded ? " does not hold the sum up to update " : " does not hold update ",
                       ToString(updates[i]), " ", when));
    }
  }
}

void ServerProcess::Finish(const ps::ApplyDecision& work) {
  // Work of a place that was given up meanwhile changes nothing.
  if (shard_ && work.decision.version.generation == shard_->version.generation) {
    CheckSlots(work, "as its sum ends");
    shard_->former = shard_->fingerprint;
    shard_->fingerprint = NextFingerprint(shard_->fingerprint, work.decision);
    shard_->version = work.decision.version;
    environment_.invariants.ServerApplied(index_, work.decision, shard_->fingerprint);
  }
  Perform(server_->OnApplied(work.decision.version, 0.001, SquaredSums(work.decision), now()));
}

// As of gradients whose noise scale is kNoiseScale samples: what a mean of so many would have on average.
std::vector<double> ServerProcess::SquaredSums(const Decision& decision) const {
  std::vector<double> sums;
  if (!shard_ || !shard_->place.measure_gradients) return sums;
  const auto of = [this](std::int64_t samples) {
    const auto count = static_cast<double>(samples);
    return count * (count + kNoiseScale) / shard_->place.layout->servers();
  };
  for (const CommittedUpdate& update : decision.updates) sums.push_back(of(TotalSize(update.positions)));
  sums.push_back(of(decision.samples));
  return sums;
}

void ServerProcess::Finish(const ps::StartSnapshot& work) {
  SnapshotDone done;
  done.version = work.snapshot.version;
  done.file = work.snapshot.file;
  done.bytes = 100;
  if (!shard_ || shard_->version != done.version) {
    if (shard_ && shard_->version.generation != done.version.generation) return;
    return environment_.invariants.Break(
        absl::StrCat(machine(), " is to keep ", ToString(done.version), " when it holds another version"));
  }
  if (failing_snapshots_ > 0) {
    --failing_snapshots_;
    done.error = kDiskError;
  }
  environment_.scheduler.At(
      now() + Vary(rng_, kSnapshotTime), this,
      [this, done, path = JobDisk::PathOf(work.snapshot.folder, work.snapshot.file),
       part = JobDisk::Part{done.version, shard_->fingerprint, shard_->place.server, shard_->place.layout->servers()}] {
        if (ended_) return;
        if (done.error.empty()) environment_.disk.parts[path] = part;
        Perform(server_->OnSnapshotWritten(done, now()));
      });
}

}  // namespace evenkeel::sim
