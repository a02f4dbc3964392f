// What becomes of updates: sealed in sets, dropped, decided, applied in order, kept in snapshots.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "evenkeel/core/status.h"
#include "evenkeel/ps/server.h"

namespace evenkeel::ps {
namespace {

std::string Join(const std::vector<UpdateId>& updates) {
  return absl::StrJoin(updates, " ", [](std::string* out, const UpdateId& update) { *out += ToString(update); });
}

}  // namespace

void Server::OnSeal(const Seal& seal) {
  if (seal.updates.empty()) {
    RefuseChief(RefuseReason::kMalformed, absl::StrCat("Seal of set ", seal.set.value(), " lists no update"));
    return;
  }
  if (std::all_of(seal.updates.begin(), seal.updates.end(), [this](const UpdateId& u) { return IsFinished(u); })) {
    return;  // a late duplicate
  }
  if (seal.folded ? place_.stage_slots < 2 : SharesSlots() && seal.updates.size() > place_.stage_slots) {
    RefuseChief(RefuseReason::kMalformed,
                absl::StrCat("Seal of set ", seal.set.value(), " lists ", seal.updates.size(), " updates, ",
                             seal.folded ? "" : "not ", "folded; there is room for ", place_.stage_slots));
    return;
  }
  auto it = sets_.find(seal.set);
  if (it == sets_.end()) {
    if (SharesSlots() && !sets_.empty()) {
      Fail(absl::InternalError(absl::StrCat("[ps] set ", seal.set.value(), " was ordered while set ",
                                            sets_.begin()->first.value(), ", whose room it takes, is undecided")));
      return;
    }
    if (sets_.size() >= options_.max_sets) {
      RefuseChief(RefuseReason::kRetry, absl::StrCat("holds ", sets_.size(), " undecided sets already"));
      return;
    }
    it = sets_.try_emplace(seal.set).first;
  } else if (seal.attempt < it->second.attempt) {
    return;  // an old attempt
  } else if (seal.attempt == it->second.attempt) {
    if (seal.updates != it->second.updates || seal.folded != it->second.folded) {
      Fail(absl::InternalError(absl::StrCat("[ps] set ", seal.set.value(), ", attempt ", seal.attempt,
                                            " was ordered twice: ", Join(it->second.updates), " and ",
                                            Join(seal.updates))));
    } else if (it->second.state == SealSet::State::kAnswered) {
      AnswerSeal(seal.set, it->second);
    }
    return;
  }
  sets_of_.Remove(seal.set, it->second.updates);
  sets_of_.Add(seal.set, seal.updates);
  SealSet set{.attempt = seal.attempt, .updates = seal.updates, .folded = seal.folded};
  if (SharesSlots() && !seal.folded) set.slots = SharedSlots(seal.updates, it->second);
  it->second = std::move(set);
  if (SharesSlots()) {
    AllocateSharedSlots(SlotsFor(it->second));
    PlaceStagings(seal.set, it->second);
  }
  it->second.missing = static_cast<std::size_t>(std::count_if(
      seal.updates.begin(), seal.updates.end(), [this](const UpdateId& u) { return FindComplete(u) == nullptr; }));
  if (SharesSlots()) CompleteWhatHoldsNothing(seal.updates);
  CheckSet(seal.set, it->second);
}

// Answers, or has norms computed, once every update of the set is complete here.
void Server::CheckSet(SetNumber number, SealSet& set) {
  if (set.state != SealSet::State::kWaiting || set.missing > 0) return;
  for (const UpdateId& update : set.updates) {
    if (FindComplete(update) == nullptr) return;
  }
  if (set.folded && (folded_set_ != number || !fold_.Whole())) return;
  std::vector<StageSlot> slots = SlotsOf(set);
  if (place_.optimizer.clip_norm <= 0) {
    set.state = SealSet::State::kAnswered;
    AnswerSeal(number, set);
    return;
  }
  set.state = SealSet::State::kNorms;
  for (StageSlot slot : slots) ++slots_[slot.value()].readers;
  norms_in_flight_.push_back(NormsInFlight{number, set.attempt, slots});
  actions_.push_back(ComputeNorms{number, set.attempt, std::move(slots)});
}

// Where no part of any bucket lies here, no bytes will come after what was placed.
void Server::CompleteWhatHoldsNothing(const std::vector<UpdateId>& updates) {
  if (stripes_ > 0) return;
  for (const UpdateId& update : updates) {
    Worker* worker = Find(update.incarnation);
    if (worker != nullptr && worker->staging && worker->staging->update == update) TryComplete(*worker);
  }
}

std::vector<StageSlot> Server::SlotsOf(const SealSet& set) const {
  if (set.folded) return {StageSlot(0)};
  std::vector<StageSlot> slots;
  for (const UpdateId& update : set.updates) slots.push_back(FindComplete(update)->slot);
  return slots;
}

// Whoever had one in an earlier attempt keeps it: its update may lie there.
std::vector<StageSlot> Server::SharedSlots(const std::vector<UpdateId>& updates, const SealSet& former) {
  std::vector<std::optional<StageSlot>> kept(updates.size());
  std::set<StageSlot> taken;
  for (std::size_t i = 0; i < updates.size() && !former.slots.empty(); ++i) {
    const auto was = std::find(former.updates.begin(), former.updates.end(), updates[i]);
    if (was == former.updates.end()) continue;
    kept[i] = former.slots[static_cast<std::size_t>(was - former.updates.begin())];
    taken.insert(*kept[i]);
  }
  std::vector<StageSlot> slots;
  std::uint32_t next = 0;
  for (const std::optional<StageSlot>& slot : kept) {
    while (!slot && taken.contains(StageSlot(next))) ++next;
    slots.push_back(slot ? *slot : StageSlot(next++));
  }
  return slots;
}

// Shared ones, whoever is a member by now.
std::size_t Server::SlotsFor(const SealSet& set) const {
  if (set.folded) return std::min<std::size_t>(set.updates.size(), place_.stage_slots);
  return std::max_element(set.slots.begin(), set.slots.end())->value() + std::size_t{1};
}

void Server::PlaceStagings(SetNumber number, const SealSet& set) {
  if (set.folded) {
    if (!std::exchange(said_folds_, true)) {
      Say(LogLevel::kInfo, absl::StrCat("sums the updates of a step as they come: ", set.updates.size(),
                                        " workers, room for ", place_.stage_slots));
    }
    folded_set_ = number;
    // The sums of an earlier attempt hold what is to be left out.
    fold_.Begin(static_cast<std::int32_t>(set.updates.size()));
  }
  for (const UpdateId& update : set.updates) {
    Worker* worker = Find(update.incarnation);
    if (worker == nullptr || !worker->staging || worker->staging->update != update) continue;
    Staging& staging = *worker->staging;
    if (!set.folded && staging.placed) continue;
    FindPlace(staging);
    staging.received = 0;
    staging.complete = false;
    for (BucketState& bucket : staging.buckets) {
      if (bucket != BucketState::kMissing) bucket = BucketState::kOffered;
    }
  }
  AskForOffered();
}

void Server::AnswerSeal(SetNumber number, const SealSet& set) {
  ToChief(Sealed{.set = number, .attempt = set.attempt, .norms = set.norms});
}

void Server::OnDrop(const Drop& drop) {
  for (const UpdateId& update : drop.updates) {
    if (IsFinished(update)) continue;
    FinishUpdate(update, false);
    for (SetNumber number : sets_of_.Of(update)) {
      SealSet& set = sets_.at(number);
      set.state = SealSet::State::kWaiting;
      set.norms.clear();
    }
    MaybeReleaseSlot(update.incarnation);
  }
  EraseFinishedSets(drop.updates);
}

void Server::EraseFinishedSets(const std::vector<UpdateId>& finished) {
  for (const UpdateId& update : finished) {
    for (SetNumber number : sets_of_.Of(update)) {
      const std::vector<UpdateId>& updates = sets_.at(number).updates;
      if (!std::all_of(updates.begin(), updates.end(), [this](const UpdateId& u) { return IsFinished(u); })) continue;
      sets_of_.Remove(number, updates);
      if (sets_.at(number).folded && number == folded_set_) fold_.Begin(0);
      sets_.erase(number);
    }
  }
}

void Server::ClearSets() {
  sets_.clear();
  sets_of_.Clear();
  fold_.Begin(0);
}

void Server::OnDecision(const Decision& decision) {
  const CommitNumber commit = decision.version.commit;
  if (decision.version.generation != generation_) {
    RefuseChief(RefuseReason::kStaleGeneration,
                absl::StrCat("decision ", ToString(decision.version), " is not of generation ", generation_.value()));
    return;
  }
  if (commit <= decided_) {
    auto known = std::find_if(kept_.begin(), kept_.end(),
                              [&](const Decision& kept) { return kept.version == decision.version; });
    if (known != kept_.end() && known->hash != decision.hash) {
      Fail(absl::InternalError(absl::StrCat("[ps] decision ", ToString(decision.version), " has hash ", decision.hash,
                                            ", but the one obeyed before has ", known->hash)));
    } else if (commit <= published_.commit) {
      ToChief(Applied{.version = decision.version, .hash = decision.hash});
    }
    return;
  }
  if (commit != decided_.Next()) {
    if (future_.size() >= options_.max_future_decisions) {
      RefuseChief(RefuseReason::kRetry,
                  absl::StrCat("decision ", ToString(decision.version), " is too far ahead of ", decided_.value()));
    } else {
      future_.try_emplace(commit, decision);
    }
    return;
  }
  AcceptDecision(decision);
  while (!ended_ && !future_.empty() && future_.begin()->first <= decided_.Next()) {
    Decision next = std::move(future_.begin()->second);
    future_.erase(future_.begin());
    if (next.version.commit == decided_.Next()) AcceptDecision(next);
  }
}

std::string Server::DifferenceFromSealed(const Decision& decision) const {
  if (decision.updates.empty() || decision.samples <= 0) {
    return absl::StrCat("it covers ", decision.updates.size(), " updates and ", decision.samples, " samples");
  }
  if (HashDecision(decision) != decision.hash) return "its hash does not match its fields";
  if (chain_known_ && decision.previous_hash != decided_hash_) {
    return absl::StrCat("it follows hash ", decision.previous_hash, ", but the last decision here has ", decided_hash_);
  }
  auto it = sets_.find(decision.set);
  if (it == sets_.end()) return absl::StrCat("set ", decision.set.value(), " was never sealed here");
  const SealSet& set = it->second;
  if (set.attempt != decision.attempt) {
    return absl::StrCat("it decides attempt ", decision.attempt, ", sealed here is attempt ", set.attempt);
  }
  if (set.updates != UpdateIds(decision)) {
    return absl::StrCat("it decides ", Join(UpdateIds(decision)), ", sealed here is ", Join(set.updates));
  }
  for (const UpdateId& update : set.updates) {
    if (FindComplete(update) == nullptr) return absl::StrCat("update ", ToString(update), " is not complete here");
  }
  if (set.folded && folded_set_ != decision.set) {
    return absl::StrCat("the room of set ", decision.set.value(), " was given to set ", folded_set_.value());
  }
  if (set.state != SealSet::State::kAnswered) {
    return absl::StrCat("set ", decision.set.value(), " has not been reported sealed");
  }
  return "";
}

void Server::AcceptDecision(const Decision& decision) {
  if (std::string difference = DifferenceFromSealed(decision); !difference.empty()) {
    Fail(
        absl::InternalError(absl::StrCat("[ps] decision ", ToString(decision.version), " of set ", decision.set.value(),
                                         ", attempt ", decision.attempt, " cannot be applied: ", difference)));
    return;
  }
  decided_ = decision.version.commit;
  decided_hash_ = decision.hash;
  chain_known_ = true;
  kept_.push_back(decision);
  if (kept_.size() > options_.max_kept_decisions) kept_.pop_front();
  InFlight flight{.version = decision.version, .hash = decision.hash};
  const std::vector<UpdateId> updates = UpdateIds(decision);
  const auto set = sets_.find(decision.set);
  const bool folded = set->second.folded;
  flight.slots = SlotsOf(set->second);
  for (StageSlot slot : flight.slots) ++slots_[slot.value()].readers;
  for (const UpdateId& update : updates) FinishUpdate(update, true);
  sets_of_.Remove(decision.set, set->second.updates);
  sets_.erase(set);
  if (folded) fold_.Begin(0);
  EraseFinishedSets(updates);
  for (const UpdateId& update : updates) MaybeReleaseSlot(update.incarnation);
  actions_.push_back(ApplyDecision{decision, flight.slots, folded});
  applying_.push_back(std::move(flight));
  auto pending = future_snapshots_.find(decided_);
  if (pending != future_snapshots_.end()) {
    Snapshot snapshot = std::move(pending->second);
    future_snapshots_.erase(pending);
    OnSnapshot(snapshot);
  }
}

void Server::OnSnapshot(const Snapshot& snapshot) {
  auto fail = [&](std::string why) {
    Say(LogLevel::kError, absl::StrCat("no snapshot of ", ToString(snapshot.version), ": ", why));
    ToChief(SnapshotDone{.version = snapshot.version, .file = snapshot.file, .error = std::move(why)});
  };
  if (snapshotting_ == snapshot.version) return;
  const bool known = last_snapshot_ && last_snapshot_->version == snapshot.version;
  if (known && (last_snapshot_->error.empty() || snapshot.version.commit < decided_)) {
    ToChief(*last_snapshot_);
    return;
  }
  if (snapshot.version.generation != generation_ || snapshot.version.commit < decided_) {
    fail(absl::StrCat("this server has moved on to ", ToString(Version{generation_, decided_})));
    return;
  }
  if (snapshot.version.commit > decided_) {
    if (future_snapshots_.size() >= options_.max_future_decisions) {
      fail("too many snapshots of versions to come");
    } else {
      future_snapshots_.try_emplace(snapshot.version.commit, snapshot);
    }
    return;
  }
  if (snapshotting_) {
    fail(absl::StrCat("that of ", ToString(*snapshotting_), " is still being written"));
    return;
  }
  snapshotting_ = snapshot.version;
  actions_.push_back(StartSnapshot{snapshot});
}

}  // namespace evenkeel::ps
