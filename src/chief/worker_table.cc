#include "chief/worker_table.h"

#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

void CountDown(std::map<std::int64_t, int>& counts, std::int64_t key) {
  auto it = counts.find(key);
  if (--it->second == 0) counts.erase(it);
}

// The first entry of an index with this key; several incarnations may have it for a moment.
template <class Key>
std::optional<Incarnation> First(const std::set<std::pair<Key, Incarnation>>& index, const Key& key) {
  auto it = index.lower_bound({key, Incarnation{}});
  if (it == index.end() || it->first != key) return std::nullopt;
  return it->second;
}

}  // namespace

const WorkerState& WorkerTable::Add(WorkerState worker) {
  const Incarnation incarnation = worker.incarnation;
  auto [it, fresh] = workers_.try_emplace(incarnation, std::move(worker));
  EK_CHECK(fresh);
  by_name_.emplace(it->second.name, incarnation);
  by_nonce_.emplace(it->second.nonce, incarnation);
  List(incarnation, RolesOf(it->second));
  if (RolesOf(it->second).TrainingRank()) ++training_changes_;
  return it->second;
}

WorkerState WorkerTable::Remove(Incarnation incarnation) {
  auto node = workers_.extract(incarnation);
  EK_CHECK(!node.empty());
  WorkerState worker = std::move(node.mapped());
  Unlist(incarnation, RolesOf(worker));
  if (RolesOf(worker).TrainingRank()) ++training_changes_;
  by_name_.erase({worker.name, incarnation});
  by_nonce_.erase({worker.nonce, incarnation});
  return worker;
}

const WorkerState* WorkerTable::Find(Incarnation incarnation) const {
  auto it = workers_.find(incarnation);
  return it == workers_.end() ? nullptr : &it->second;
}

const WorkerState* WorkerTable::BySession(SessionId session) const {
  const auto found = First(by_session_, session);
  return found ? &workers_.at(*found) : nullptr;
}

const WorkerState* WorkerTable::ByName(const std::string& name) const {
  const auto found = First(by_name_, name);
  return found ? &workers_.at(*found) : nullptr;
}

const WorkerState* WorkerTable::ByNonce(std::uint64_t nonce) const {
  const auto found = First(by_nonce_, nonce);
  return found ? &workers_.at(*found) : nullptr;
}

Rank WorkerTable::LowestFreeRank(Rank from) const {
  Rank rank = from;
  for (auto taken = by_rank_.lower_bound(rank); taken != by_rank_.end() && taken->first == rank; ++taken) {
    rank = rank.Next();
  }
  return rank;
}

std::int64_t WorkerTable::LeastClock() const { return clocks_.empty() ? 0 : clocks_.begin()->first; }

std::vector<const WorkerState*> WorkerTable::TrainingByRank() const {
  std::vector<const WorkerState*> training;
  training.reserve(by_rank_.size());
  for (const auto& [rank, incarnation] : by_rank_) {
    const WorkerState& worker = workers_.at(incarnation);
    if (!worker.leaving) training.push_back(&worker);
  }
  return training;
}

std::optional<std::int64_t> WorkerTable::LeastHeldClock() const {
  if (held_clocks_.empty()) return std::nullopt;
  return held_clocks_.begin()->first;
}

WorkerTable::Roles WorkerTable::RolesOf(const WorkerState& worker) {
  return Roles{worker.session,
               worker.rank,
               worker.clock,
               worker.ready,
               worker.leaving,
               worker.bound.has_value(),
               worker.provisional.has_value()};
}

void WorkerTable::List(Incarnation worker, const Roles& roles) {
  if (roles.session != SessionId{}) by_session_.emplace(roles.session, worker);
  if (roles.provisional) with_provisional_.insert(worker);
  if (!roles.rank) {
    if (roles.ready && !roles.leaving) ready_.insert(worker);
    return;
  }
  EK_CHECK(by_rank_.try_emplace(*roles.rank, worker).second);
  ++clocks_[roles.clock];
  if (roles.bound || !roles.leaving) ++held_clocks_[roles.clock];
  if (roles.leaving) return;
  ++training_;
  if (roles.bound) return;
  const IdleKey key{roles.clock, *roles.rank, worker};
  idle_.insert(key);
  if (roles.provisional) idle_with_provisional_.insert(key);
}

void WorkerTable::Unlist(Incarnation worker, const Roles& roles) {
  by_session_.erase({roles.session, worker});
  with_provisional_.erase(worker);
  ready_.erase(worker);
  if (!roles.rank) return;
  by_rank_.erase(*roles.rank);
  CountDown(clocks_, roles.clock);
  if (roles.bound || !roles.leaving) CountDown(held_clocks_, roles.clock);
  if (roles.leaving) return;
  --training_;
  const IdleKey key{roles.clock, *roles.rank, worker};
  idle_.erase(key);
  idle_with_provisional_.erase(key);
}

}  // namespace evenkeel
