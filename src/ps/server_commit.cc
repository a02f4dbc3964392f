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
  auto it = sets_.find(seal.set);
  if (it == sets_.end()) {
    if (sets_.size() >= options_.max_sets) {
      RefuseChief(RefuseReason::kRetry, absl::StrCat("holds ", sets_.size(), " undecided sets already"));
      return;
    }
    it = sets_.try_emplace(seal.set).first;
  } else if (seal.attempt < it->second.attempt) {
    return;  // an old attempt
  } else if (seal.attempt == it->second.attempt) {
    if (seal.updates != it->second.updates) {
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
  it->second = SealSet{.attempt = seal.attempt, .updates = seal.updates};
  it->second.missing = static_cast<std::size_t>(std::count_if(
      seal.updates.begin(), seal.updates.end(), [this](const UpdateId& u) { return FindComplete(u) == nullptr; }));
  CheckSet(seal.set, it->second);
}

// Answers, or has norms computed, once every update of the set is complete here.
void Server::CheckSet(SetNumber number, SealSet& set) {
  if (set.state != SealSet::State::kWaiting || set.missing > 0) return;
  std::vector<StageSlot> slots;
  for (const UpdateId& update : set.updates) {
    if (FindComplete(update) == nullptr) return;
    slots.push_back(*workers_.at(update.incarnation).slot);
  }
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
      sets_.erase(number);
    }
  }
}

void Server::ClearSets() {
  sets_.clear();
  sets_of_.Clear();
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
  for (const UpdateId& update : updates) {
    StageSlot slot = *workers_.at(update.incarnation).slot;
    ++slots_[slot.value()].readers;
    flight.slots.push_back(slot);
    FinishUpdate(update, true);
  }
  if (auto set = sets_.find(decision.set); set != sets_.end()) {
    sets_of_.Remove(decision.set, set->second.updates);
    sets_.erase(set);
  }
  EraseFinishedSets(updates);
  actions_.push_back(ApplyDecision{decision, flight.slots});
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
