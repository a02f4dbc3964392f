// What a commit log says: the one line of commits that leads to its end, without what was rolled back.
//
// Threading: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/commit_log.h"

namespace evenkeel::replay {

// Something that should not be, at the commit where it shows.
struct Finding {
  CommitNumber commit;
  std::string text;
  bool blocks = false;  // what the commit did cannot be recomputed
};

struct LineCommit {
  Decision decision;
  Term term;
  std::size_t spec = 0;                   // into History::spec_hashes
  std::vector<std::size_t> fingerprints;  // an update's, into History::fingerprints
  std::size_t servers = 0;                // of the layout in force; 0: the log does not say
  // Clocks that an update's worker was ahead of the slowest when its ticket was bound, at least; the most of all
  // updates.
  std::int64_t lead = 0;
};

struct History {
  std::string job_id;
  std::vector<std::string> spec_hashes;
  std::map<std::string, std::string> experiments;  // canonical JSON by spec hash; terms of older logs do not say
  std::vector<std::string> fingerprints;
  Version base;                  // where the line begins; commit 0 but for a log whose beginning is not there
  std::vector<LineCommit> line;  // commits base.commit + 1, ...
  std::map<Generation, CommitNumber> generation_starts;  // of the generations on the line
  std::int64_t rolled_back = 0;                          // commits
  std::string status;                                    // of the newest term's end; empty: none

  CommitNumber last() const { return CommitNumber(base.commit.value() + line.size()); }
  const LineCommit& at(CommitNumber commit) const { return line[commit.value() - base.commit.value() - 1]; }
  // Whether the version is a state of the line: made by one of its commits, or what a generation began with.
  bool Holds(Version version) const;
};

// Errors: kNotFound without any log; kDataLoss names the file whose bytes are damaged or whose records make no line.
absl::StatusOr<History> ReadHistory(const Storage& storage, const std::string& model_dir);

// What must hold for the line by itself: chained hashes, sums of samples, versions that survive, layouts.
std::vector<Finding> CheckLine(const History& history);

struct PositionsChecked {
  std::int64_t epochs_complete = 0;
  std::vector<Finding> findings;
};
// Every position of [0, samples) once an epoch. `open_epochs`: so many may be in progress at a time.
PositionsChecked CheckPositions(const History& history, std::int64_t samples, std::int64_t open_epochs);

}  // namespace evenkeel::replay
