// Ids are types: two ids of different kinds neither compare nor convert.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

namespace evenkeel {

template <class Tag, class Rep = std::uint64_t>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr StrongId Next() const { return StrongId(static_cast<Rep>(value_ + 1)); }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value_; }
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_{};
};

// A chief's reign; each start of a chief claims a higher one. 0: none yet.
using Term = StrongId<struct TermTag>;
// Raised by each rollback to a checkpoint.
using Generation = StrongId<struct GenerationTag>;
// Number of a committed update within a generation's history. 0 is the initial state.
using CommitNumber = StrongId<struct CommitNumberTag>;
// Number of a division of the parameters among servers.
using LayoutNumber = StrongId<struct LayoutNumberTag>;
// One life of one process, numbered by the chief in order of admission, across all roles. 0: none yet.
using Incarnation = StrongId<struct IncarnationTag>;
// Raised by each change of the worker set. It only informs.
using MembershipEpoch = StrongId<struct MembershipEpochTag>;
// A worker's place in the order of summation; the lowest free one on admission.
using Rank = StrongId<struct RankTag, std::uint32_t>;
// A server's place in the layout.
using ServerIndex = StrongId<struct ServerIndexTag, std::uint32_t>;
// A pass over the training data, from 0.
using Epoch = StrongId<struct EpochTag>;
// A set of updates that commits together, numbered by the chief within a term.
using SetNumber = StrongId<struct SetNumberTag>;
// One live stream between two processes, local to the process that holds it.
using SessionId = StrongId<struct SessionIdTag>;

// What a server publishes and a checkpoint holds: the parameters after `commit` in `generation`.
struct Version {
  Generation generation;
  CommitNumber commit;
  friend constexpr auto operator<=>(const Version&, const Version&) = default;
};

// Names an update for all time: the chief's term that granted it, who computes it, and a count within both.
struct UpdateId {
  Term term;
  Incarnation incarnation;
  std::uint64_t sequence = 0;
  friend constexpr auto operator<=>(const UpdateId&, const UpdateId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const UpdateId& id) {
    return H::combine(std::move(h), id.term, id.incarnation, id.sequence);
  }
};

std::string ToString(const Version& version);     // "g1.c42"
std::string ToString(const UpdateId& update_id);  // "t1.i3.s17"

}  // namespace evenkeel

template <class Tag, class Rep>
struct std::hash<evenkeel::StrongId<Tag, Rep>> {
  std::size_t operator()(evenkeel::StrongId<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value()); }
};
