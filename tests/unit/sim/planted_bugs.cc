#include "unit/sim/planted_bugs.h"

#include <variant>

namespace evenkeel::sim {

// --- a range is forgotten -------------------------------------------------------------------------------------------

RangeList ForgetsRange::WithoutForgotten(Epoch epoch, const RangeList& positions) const {
  RangeList left;
  const auto forgotten = forgotten_.find(epoch);
  for (const PositionRange& range : positions) {
    for (std::int64_t at = range.begin; at < range.end; ++at) {
      if (forgotten != forgotten_.end() && forgotten->second.contains(at)) continue;
      if (!left.empty() && left.back().end == at) {
        ++left.back().end;
      } else {
        left.push_back({at, at + 1});
      }
    }
  }
  return left;
}

void ForgetsRange::AfterChief(ChiefActions& actions) {
  for (ChiefAction& action : actions) {
    if (auto* send = std::get_if<SendAction>(&action)) {
      if (auto* ticket = std::get_if<Ticket>(&send->message.body)) {
        const RangeList left = WithoutForgotten(ticket->epoch, ticket->positions);
        if (left.empty()) continue;  // a ticket for nothing is no ticket
        missing_[ticket->update] = TotalSize(ticket->positions) - TotalSize(left);
        ticket->positions = left;
        tickets_[ticket->update] = {ticket->epoch, left};
      } else if (const auto* drop = std::get_if<Drop>(&send->message.body)) {
        for (const UpdateId& update : drop->updates) {
          const auto& [epoch, positions] = tickets_[update];
          for (const PositionRange& range : positions) {
            for (std::int64_t at = range.begin; at < range.end; ++at) forgotten_[epoch].insert(at);
          }
        }
      }
    } else if (auto* append = std::get_if<AppendLogAction>(&action)) {
      if (std::holds_alternative<RollbackRecord>(append->record)) forgotten_.clear();
      auto* commit = std::get_if<CommitRecord>(&append->record);
      if (commit == nullptr) continue;
      for (CommittedUpdate& update : commit->decision.updates) {
        if (missing_[update.update] > 0) update.positions = tickets_[update.update].second;
      }
    }
  }
}

void ForgetsRange::BeforeChief(std::vector<std::pair<SessionId, Message>>& messages) {
  for (auto& [session, message] : messages) {
    if (auto* staged = std::get_if<Staged>(&message.body)) staged->samples += missing_[staged->update];
  }
}

// --- arrivals are counted -------------------------------------------------------------------------------------------

void CountsArrivals::BeforeChief(std::vector<std::pair<SessionId, Message>>& messages) {
  const auto [session, message] = messages.front();
  if (const auto* join = std::get_if<Join>(&message.body)) {
    if (join->role == Role::kPs) servers_[join->name].session = session;
    return;
  }
  for (auto& [name, server] : servers_) {
    if (server.session != session) continue;
    server.envelope = message.envelope;
    std::tuple<int, std::uint64_t, std::uint64_t, std::uint64_t> report;
    if (const auto* staged = std::get_if<Staged>(&message.body)) {
      report = {0, staged->update.term.value(), staged->update.incarnation.value(), staged->update.sequence};
    } else if (const auto* sealed = std::get_if<Sealed>(&message.body)) {
      report = {1, message.envelope.term.value(), sealed->set.value(), sealed->attempt};
    } else {
      return;
    }
    if (server.reports.insert(report).second) return;
    for (auto& [other_name, other] : servers_) {
      if (other.envelope.sender == Incarnation{} || !other.reports.insert(report).second) continue;
      messages.emplace_back(other.session, Message{other.envelope, message.body});
      return;
    }
    return;
  }
}

}  // namespace evenkeel::sim
