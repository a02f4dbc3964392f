// What must hold of servers.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sim/invariants.h"

namespace evenkeel::sim {

Invariants::Server& Invariants::StateOf(std::uint32_t server) {
  if (server >= servers_.size()) {
    servers_.resize(server + 1);
    sealed_.resize(server + 1);
  }
  return servers_[server];
}

void Invariants::ServerStarts(std::uint32_t server) { StateOf(server) = Server{}; }

void Invariants::ServerSends(std::uint32_t server, const Message& message) {
  Server& state = servers_[server];
  const Envelope& envelope = message.envelope;
  if (envelope.term < state.term || envelope.generation < state.generation) {
    Break(absl::StrCat(Name(server), " goes back from term ", state.term.value(), ", generation ",
                       state.generation.value(), " to ", envelope.term.value(), ", ", envelope.generation.value()));
  }
  state.term = envelope.term;
  state.generation = envelope.generation;
  if (const auto* sealed = std::get_if<Sealed>(&message.body)) {
    if (envelope.term == term_ && decided_sets_.Contains(sealed->set.value())) return;  // said once more
    sealed_[server].insert({envelope.term, sealed->set, sealed->attempt});
  } else if (const auto* ack = std::get_if<MembersAck>(&message.body)) {
    state.acknowledged = std::max(state.acknowledged, std::pair(envelope.term, ack->epoch));
  } else if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
    // What is stale is of a chief that another has followed; anything else was no order for this server.
    const bool stale = refuse->reason != RefuseReason::kRetry && refuse->reason != RefuseReason::kMalformed;
    if (!stale) Break(absl::StrCat("the chief orders what cannot be done: ", refuse->message));
  }
}

void Invariants::ServerTakes(std::uint32_t server, UpdateId update) {
  const auto fence = fenced_in_.find(update.incarnation);
  if (fence == fenced_in_.end() || servers_[server].acknowledged < std::pair(term_, fence->second)) return;
  if (servers_[server].generation != generation_) return;  // nothing is decided there any more
  Break(absl::StrCat(Name(server), " takes a part of update ", ToString(update),
                     ", whose worker it has acknowledged to be fenced"));
}

void Invariants::ServerHolds(std::uint32_t server, const Held& held) {
  Server& state = servers_[server];
  if (state.holds && std::pair(held.term, held.version) < std::pair(state.held_in, state.version)) {
    Break(absl::StrCat(Name(server), " goes back from ", ToString(state.version), " to ", ToString(held.version)));
  }
  state.held_in = held.term;
  state.version = held.version;
  state.fingerprint = held.fingerprint;
  state.holds = true;
  if (!IsCurrent(state)) return;  // of a chief that has died meanwhile
  if (held.version.commit != start_->commit || held.fingerprint != start_->fingerprint) {
    Break(absl::StrCat(Name(server), " starts from ", ToString(held.version), " with other parameters than the job's"));
  }
  CheckPlace(server, held);
}

void Invariants::ServerAdopts(std::uint32_t server, const Held& held) {
  Server& state = servers_[server];
  const std::string name =
      absl::StrCat(Name(server), " adopts ", ToString(held.version), " in layout ", held.layout.value());
  // It goes on in the line in which the servers that it fetched from are; who was held up may do so when that is gone.
  const Term known = LineTerm(held.version.generation, held.term);
  const Term line_term = known == Term{} ? held.term : known;
  if (state.holds && std::pair(line_term, held.version) < std::pair(state.held_in, state.version)) {
    Break(absl::StrCat(name, ", after ", ToString(state.version)));
  }
  state.held_in = line_term;
  state.version = held.version;
  state.fingerprint = held.fingerprint;
  state.holds = true;
  const std::optional<std::uint64_t> expected = FingerprintAt(held.term, held.version);
  if (expected && held.fingerprint != *expected) {
    Break(absl::StrCat(name, ", but what it fetched is not that version's parameters"));
  }
  if (!IsCurrent(state) || held.term != term_) return;
  const CommitNumber commit = held.version.commit;
  if (!expected) Break(absl::StrCat(name, ", which the log does not have"));
  if (layout_ && layout_->number == held.layout && layout_->since && *layout_->since != commit) {
    Break(absl::StrCat(name, "; the layout begins at commit ", layout_->since->value()));
  }
  CheckPlace(server, held);
}

std::optional<std::uint64_t> Invariants::FingerprintAt(Term term, const Version& version) const {
  const auto found = lines_.find({LineTerm(version.generation, term), version.generation});
  if (found == lines_.end()) return std::nullopt;
  const Line& line = found->second;
  if (version.commit < line.base->commit || version.commit.value() > line.size()) return std::nullopt;
  return version.commit == line.base->commit ? line.base->fingerprint : line.At(version.commit).fingerprint;
}

void Invariants::CheckPlace(std::uint32_t server, const Held& held) {
  if (held.term != term_ || held.generation != held.version.generation) return;
  const std::string name = absl::StrCat(Name(server), " takes place ", held.place.value(), " of ", held.servers,
                                        " in layout ", held.layout.value());
  if (!layout_) return Break(absl::StrCat(name, ", which is not logged"));
  if (held.layout < layout_->number) return;  // and is told of the newer one
  const bool fits = held.layout == layout_->number && held.servers == layout_->servers.size() &&
                    held.place.value() < layout_->servers.size() && layout_->servers[held.place.value()] == server;
  if (!fits) Break(absl::StrCat(name, "; the log says otherwise of layout ", layout_->number.value()));
}

void Invariants::ServerReleased(std::uint32_t server, Term term, Incarnation incarnation) {
  if (term != term_ || !layout_) return;
  const BasePtr& kept = line().last_checkpoint;
  if (kept && kept->commit.value() == decided_) return;  // nothing is lost that was decided
  for (std::size_t i = 0; i < layout_->servers.size(); ++i) {
    if (layout_->servers[i] != server || layout_->incarnations[i] != incarnation) continue;
    Break(absl::StrCat(Name(server), " is let go, but layout ", layout_->number.value(), " counts on it"));
  }
}

void Invariants::ServerApplied(std::uint32_t server, const Decision& decision, std::uint64_t fingerprint) {
  Server& state = servers_[server];
  const std::string name = absl::StrCat(Name(server), " applies ", ToString(decision.version));
  if (decision.version != Version{state.version.generation, state.version.commit.Next()}) {
    return Break(absl::StrCat(name, " after ", ToString(state.version)));
  }
  state.version = decision.version;
  state.fingerprint = fingerprint;
  if (!IsCurrent(state)) return;
  const CommitNumber commit = decision.version.commit;
  // Where a crash has taken the log's end, the servers may be ahead of it; the next chief has to adopt what they have.
  if (commit <= line().base->commit || commit.value() > line().size() || line().At(commit).decision != decision) {
    return Break(absl::StrCat(name, ", which the log does not have"));
  }
  if (fingerprint != line().At(commit).fingerprint) {
    Break(absl::StrCat(name, ", and its parameters are not what the log makes of them: an update is there twice, ",
                       "not at all, or out of order"));
  }
  CheckSpread();
}

void Invariants::CheckSpread() {
  if (!layout_) return;
  for (std::uint32_t server : layout_->servers) {
    const Server& state = servers_[server];
    if (!IsCurrent(state)) continue;
    if (state.version.commit.value() + kMaxVersionsApart < decided_) {
      Break(absl::StrCat(Name(server), " is ", decided_ - state.version.commit.value(), " commits behind; at most ",
                         kMaxVersionsApart, " may be in flight"));
    }
  }
}

void Invariants::ServerEnded(std::uint32_t server, const absl::Status& status) {
  if (absl::IsInternal(status) || absl::IsInvalidArgument(status)) {
    Break(absl::StrCat(Name(server), " stops: ", status.message()));
  }
}

}  // namespace evenkeel::sim
