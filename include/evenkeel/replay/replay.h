// Recomputes a job from its commit log in one process: the same samples, on the same versions, summed and applied in
// the same order; then compares parameters and optimizer slots with every checkpoint that is still there. It is the
// proof that the cluster did what its log says.
//
// Bit for bit while every update was computed by a backend that this machine has alike (equal compute fingerprints);
// from the first other update on within a tolerance, and after each checkpoint the next stretch starts from the
// recorded state, so that each is judged by itself. Training amplifies rounding: over hundreds of commits between two
// checkpoints that may be more than any tolerance, and only a machine that has the fingerprints can decide.
//
// It also checks what the log must satisfy by itself: the chain of hashes, that each epoch's samples count once, sums
// of samples and losses, versions that survive, SSP's bound.
//
// The job may be over, stopped, killed or running; nothing in the model_dir is changed.
// Threading: blocks; computes on threads of its own.
// Memory: the surviving commits of the log; the data set; a copy of parameters and gradients for each update computed
//         ahead and each older version that a later update was computed on (at most one a worker and server); of a job
//         that has not ended, which removes older checkpoints meanwhile, a copy of the newest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/core/storage.h"

namespace evenkeel {

struct ReplayOptions {
  std::string model_dir;
  std::string data_folder;  // as WorkerOptions
  // A checkpoint to begin at: its commit's number, or its name as g1-c42. Empty: where the log begins.
  std::string from;
  // Where bits cannot be had: the largest |recomputed - recorded| / |recorded| (Euclidean norms) of the parameters and
  // the statistics; a hundred times that of a slot; a commit's mean loss may differ by 10 * tolerance * (1 + loss). The
  // default is what clusters of different sizes are held to among one another, for the same reason: sums in another
  // order.
  double tolerance = 1e-3;
  // Updates computed at the same time; 0: as many as the cores hold, each with the threads of its worker.
  int jobs = 0;
};

struct ReplayProgress {
  std::int64_t done = 0;  // commits
  std::int64_t total = 0;
  Version version;
};

struct ReplayedFingerprint {
  std::string recorded;
  std::string here;  // what this process has in its place
  std::int64_t updates = 0;
  bool reproducible() const { return recorded == here; }
};

struct ArrayComparison {
  std::string name;  // "parameters", "statistics", "slot.m"
  bool same_bits = false;
  double max_absolute = 0;
  double relative = 0;  // |recomputed - recorded| / |recorded|
};

struct CheckpointComparison {
  Version version;
  bool bits_expected = false;
  bool agrees = false;
  std::vector<ArrayComparison> arrays;
};

struct ReplayReport {
  std::string job_id;
  std::string status;  // finished, stopped, failed; empty: the log has no end
  Version from, to;
  std::int64_t commits = 0;  // recomputed
  std::int64_t updates = 0;
  std::int64_t samples = 0;
  std::int64_t rolled_back_commits = 0;
  std::int64_t epochs_complete = 0;
  std::int64_t commits_after_last_checkpoint =
      0;  // recomputed, losses compared, but nothing to compare parameters with
  double tolerance = 0;
  // Commits up to here were to agree bit for bit; the others within the tolerance.
  std::int64_t commits_bit_for_bit = 0;
  std::vector<ReplayedFingerprint> fingerprints;
  std::vector<CheckpointComparison> checkpoints;  // compared, ascending
  std::vector<std::string> notes;                 // a sentence each: what was left out
  // A sentence each, in the order of commits, at most kMaxReplayDifferences of them; none: the log and the checkpoints
  // agree with what was recomputed.
  std::vector<std::string> differences;
  std::int64_t differences_found = 0;
  bool agrees() const { return differences_found == 0; }
};

constexpr std::size_t kMaxReplayDifferences = 20;

// `progress` is called once a commit, on the caller's thread.
// Errors: kNotFound when there is no log, no checkpoint or no data; kDataLoss when a log or a checkpoint is damaged;
// kInvalidArgument when the data differ from those that the job read, or for an unknown `from`.
absl::StatusOr<ReplayReport> Replay(const ReplayOptions& options, const Storage& storage,
                                    const std::function<void(const ReplayProgress&)>& progress);

}  // namespace evenkeel
