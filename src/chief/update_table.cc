#include "chief/update_table.h"

#include <algorithm>
#include <utility>

#include "evenkeel/core/status.h"

namespace evenkeel {

const UpdateState* UpdateTable::Find(const UpdateId& id) const {
  auto it = updates_.find(id);
  return it == updates_.end() ? nullptr : &it->second;
}

void UpdateTable::Bind(UpdateState update) {
  const UpdateId id = update.share.update;
  SetState& set = sets_[update.set];
  set.updates.push_back(id);
  if (!update.staged_everywhere()) ++set.incomplete;
  deadlines_.Set(id, set.folded ? kNever : update.deadline);
  EK_CHECK(updates_.try_emplace(id, std::move(update)).second);
}

void UpdateTable::Stage(const UpdateId& id, std::size_t server, Staged staged) {
  UpdateState& update = updates_.at(id);
  std::optional<Staged>& place = update.staged.at(server);
  const bool fresh = !place.has_value();
  place = std::move(staged);
  if (!fresh) return;
  ++update.staged_count;
  if (!update.staged_everywhere()) return;
  --sets_.at(update.set).incomplete;
  deadlines_.Set(id, kNever);
}

void UpdateTable::Fence(const UpdateId& id, MembershipEpoch epoch) {
  UpdateState& update = updates_.at(id);
  update.fenced_in = epoch;
  update.deadline = kNever;
  deadlines_.Set(id, kNever);
  fenced_.insert(id);
}

UpdateState UpdateTable::Erase(const UpdateId& id) {
  auto node = updates_.extract(id);
  EK_CHECK(!node.empty());
  deadlines_.Erase(id);
  fenced_.erase(id);
  return std::move(node.mapped());
}

UpdateState UpdateTable::Drop(const UpdateId& id) {
  UpdateState update = Erase(id);
  auto set = sets_.find(update.set);
  std::erase(set->second.updates, id);
  if (!update.staged_everywhere()) --set->second.incomplete;
  if (set->second.updates.empty()) {
    sealed_.erase(set->first);
    sets_.erase(set);
  }
  return update;
}

void UpdateTable::Clear() {
  updates_.clear();
  sets_.clear();
  deadlines_.Clear();
  fenced_.clear();
  sealed_.clear();
}

void UpdateTable::BeginSeal(SetNumber number, std::size_t servers) {
  SetState& set = sets_.at(number);
  if (std::exchange(set.seal_sent, true)) ++set.attempt;
  if (set.folded && set.attempt > 0) {
    for (const UpdateId& id : set.updates) {
      UpdateState& update = updates_.at(id);
      update.staged.assign(servers, std::nullopt);
      update.staged_count = 0;
      deadlines_.Set(id, kNever);
    }
    set.incomplete = set.updates.size();
    set.next = 0;
  }
  set.sealed.assign(servers, false);
  set.sealed_count = 0;
  set.norms.assign(servers, {});
  sealed_.erase(number);
}

const UpdateState* UpdateTable::NextToCome(SetNumber number) {
  SetState& set = sets_.at(number);
  if (!set.folded) return nullptr;
  const auto awaited = [this](const UpdateId& id) {
    const UpdateState& update = updates_.at(id);
    return !update.staged_everywhere() && !update.fenced_in;
  };
  while (set.next < set.updates.size() && !awaited(set.updates[set.next])) ++set.next;
  if (set.next == set.updates.size() || deadlines_.Of(set.updates[set.next]) != kNever) return nullptr;
  return &updates_.at(set.updates[set.next]);
}

void UpdateTable::Seal(SetNumber number, std::size_t server, std::vector<BlockNorm> norms) {
  SetState& set = sets_.at(number);
  if (!set.sealed.at(server)) {
    set.sealed[server] = true;
    ++set.sealed_count;
  }
  set.norms.at(server) = std::move(norms);
  if (set.sealed_everywhere()) sealed_.insert(number);
}

std::pair<SetState, std::vector<UpdateState>> UpdateTable::Take(SetNumber number) {
  auto node = sets_.extract(number);
  EK_CHECK(!node.empty());
  sealed_.erase(number);
  std::vector<UpdateState> updates;
  updates.reserve(node.mapped().updates.size());
  for (const UpdateId& id : node.mapped().updates) updates.push_back(Erase(id));
  return {std::move(node.mapped()), std::move(updates)};
}

std::optional<SetNumber> UpdateTable::FirstComplete() const {
  const auto complete = std::find_if(sealed_.begin(), sealed_.end(),
                                     [this](SetNumber number) { return sets_.at(number).incomplete == 0; });
  if (complete == sealed_.end()) return std::nullopt;
  return *complete;
}

void UpdateTable::Shift(Duration by) {
  deadlines_.ShiftAll(by);
  for (auto& [id, update] : updates_) {
    if (update.deadline != kNever) update.deadline += by;
    update.timing.bound_since += by;
    if (update.timing.staged_since) *update.timing.staged_since += by;
  }
}

}  // namespace evenkeel
