// A whole job in virtual time: the real Chief and ps::Server among virtual workers, a virtual network and a virtual
// disk, under faults. Everything follows from a seed: the same scenario gives the same trace.
//
// Threading: thread-safe for distinct scenarios; a simulation runs on its caller's thread and waits for nothing.
// Limits:    Scenario::max_events events; beyond them the job counts as hung.
// Errors:    a broken invariant is a result, not an error; errors are wrong input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace evenkeel::sim {

constexpr std::int64_t kMaxEvents = 4'000'000;
constexpr std::uint32_t kMostServers = 64;  // names of them, ps:0 and on

// What befalls a job. Machines are "chief", "ps:0", "worker:3". A fault whose machine has no process at that moment
// does nothing, so that any part of a list of faults is a list of faults.
enum class FaultKind : std::uint8_t {
  kKill,       // node: its connections break at once; a worker is started again after `for_ms`, unless that is 0;
               // a server that is looked after, not before that
  kVanish,     // node: as a lost machine: only keepalive tells its peers; else as kKill
  kPause,      // node stands still for `for_ms` (SIGSTOP); a chief with share 1 then ticks before it reads
  kLeave,      // node, a worker or a server, has a SIGTERM and leaves in order
  kJoin,       // node, a worker's name: a process starts, also beside a living one of the same name; a server's: a
               // process starts where none lives, and is looked after from then on
  kBreak,      // the connections between node and peer; undelivered messages of either direction may be lost
  kPartition,  // nothing from node reaches peer for `for_ms`; no connection is seen to break
  kSlow,       // messages from node to peer take up to `for_ms` longer each, for ten times as long
  kReconnect,  // node opens a second stream to the chief, while the first one is open; a server with share 1 does
               // so in the middle of its next decision
  kManifestFailure,  // the chief cannot write its next manifest
  kSnapshotFailure,  // node, a server, cannot write its next snapshot
  kStop,             // SIGTERM to the chief; the job is started again later
  kCrashChief,       // the chief alone dies and is started again after `for_ms`; `share` of its unsynced log is lost
  kCrashAll,         // every process dies; the chief's disk as above
  kDrain,            // `evenkeel drain node`
  kScale,            // `evenkeel scale --ps count`; servers that lack for it are started after `for_ms`
};
const char* ToString(FaultKind kind);

struct Fault {
  std::int64_t at_ms = 0;  // since the start
  FaultKind kind = FaultKind::kKill;
  std::string node, peer;
  std::int64_t for_ms = 0;
  double share = 0;  // [0, 1]
  std::int64_t count = 0;
  friend bool operator==(const Fault&, const Fault&) = default;
};
std::string ToString(const Fault& fault);

struct Scenario {
  std::uint64_t seed = 1;
  std::vector<std::string> overrides;  // of the experiment, as --set
  std::uint32_t servers = 1;
  std::uint32_t workers = 1;  // listed ones
  std::int64_t samples = 0;
  std::vector<std::int64_t> tensor_floats;
  std::vector<std::int64_t> sample_us;  // what a sample costs each worker
  std::int64_t step_us = 0;             // what a step costs beside that
  std::int64_t stage_bytes = 8 << 20;   // as ChiefOptions'
  std::int64_t delay_us = 0;            // usual delay of a message
  double slow_stages = 0;               // share of stages whose payload is still being copied for a while
  std::int64_t work_us = 800;           // what each piece of a server's work takes
  std::int64_t move_us = 0;             // what a piece of a server's state takes to another, and to adopt all of it
  std::vector<Fault> faults;            // ascending by time
  bool keeps_workers = true;            // workers_min processes at least, as somebody who wants the job to end would
  std::int64_t ends_at_ms = 0;          // SIGTERM to the chief, for good; 0: the job trains to its end
  std::int64_t halts_at_commits = 0;    // the simulation breaks off, and roles are weighed; 0: never
  std::int64_t max_events = kMaxEvents;
};
// A job of any kind and dozens of faults.
Scenario MakeScenario(std::uint64_t seed);

std::string FaultsToJson(const std::vector<Fault>& faults);
// Errors: kInvalidArgument names the entry and the field.
absl::StatusOr<std::vector<Fault>> FaultsFromJson(std::string_view json, std::string_view origin);

struct Verdict {
  absl::Status invalid;          // the scenario's experiment is none: nothing was simulated
  std::uint64_t trace_hash = 0;  // of every delivery, in order
  std::string broken;            // the first broken invariant; empty: none
  std::int64_t at_ms = 0;        // virtual time at the end
  std::int64_t events = 0;
  std::int64_t commits = 0;  // decided, surviving or not
  std::int64_t dropped = 0;  // updates
  std::int64_t starts = 0;   // of the chief
  std::int64_t fenced = 0;   // workers
  std::int64_t moves = 0;    // to another layout, between two commits
  std::vector<Fault> idle;   // faults that did nothing: no such process lived, the chief refused, the job had ended

  // Samples of the commits that survive, and all whose gradient a worker computed: a sample counts as computed when its
  // update's computing ended, whatever became of the update; one whose worker was killed, left, or was told of the
  // job's end meanwhile counts by the share of the update's computing time that had passed.
  std::int64_t samples_surviving = 0;
  double samples_computed = 0;
  double node_seconds = 0;       // of all workers' processes, from start to end
  double computing_seconds = 0;  // of them
  std::int64_t joins = 0;        // admissions
  std::int64_t leaves = 0;       // in order
  std::int64_t kills = 0;        // of workers
  std::int64_t members_most = 0;
  double below_min_seconds = 0;    // fewer members than workers_min, after the first commit
  double longest_gap_seconds = 0;  // between two commits
  std::int64_t most_events_queued = 0;
  std::int64_t most_messages_queued = 0;  // under way in one direction of one stream
  // Heap that is freed with the Chief, and with all ps::Servers; where the C library does not tell: -1.
  std::int64_t chief_bytes = -1, server_bytes = -1;
  double Goodput() const {
    return samples_computed > 0 ? static_cast<double>(samples_surviving) / samples_computed : 1;
  }
};
Verdict Simulate(const Scenario& scenario);

// Fewer faults that still break an invariant, by delta debugging within `max_runs` simulations.
std::vector<Fault> ShrinkFaults(const Scenario& scenario, int max_runs);

}  // namespace evenkeel::sim
