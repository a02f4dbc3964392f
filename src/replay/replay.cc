#include "evenkeel/replay/replay.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "replay/sources.h"
#include "replay/stretch.h"

namespace evenkeel {
namespace replay {
namespace {

class Replayer {
 public:
  Replayer(const ReplayOptions& options, const Storage& storage,
           const std::function<void(const ReplayProgress&)>& progress)
      : options_(options), storage_(storage), progress_(progress) {}

  absl::StatusOr<ReplayReport> Run();

 private:
  absl::StatusOr<const Experiment*> ExperimentOf(const std::string& spec_hash, Term term) const;
  void CheckLog(std::int64_t samples);
  absl::Status Recompute(Version start, std::span<const LineCommit> commits);
  void Find(Finding finding);
  void Done(const LineCommit& commit);
  void Conclude();

  const ReplayOptions& options_;
  const Storage& storage_;
  const std::function<void(const ReplayProgress&)>& progress_;
  Sources sources_;
  ReplayReport report_;
  std::vector<Finding> findings_;
  std::size_t recomputed_findings_ = 0;
  std::int64_t total_ = 0;
};

void Replayer::Find(Finding finding) {
  ++report_.differences_found;
  // They come in order: more than are told need not be kept.
  if (recomputed_findings_++ < kMaxReplayDifferences) findings_.push_back(std::move(finding));
}

absl::StatusOr<const Experiment*> Replayer::ExperimentOf(const std::string& spec_hash, Term term) const {
  const auto it = sources_.experiments.find(spec_hash);
  if (it != sources_.experiments.end()) return &it->second;
  const auto unreadable = sources_.unreadable.find(spec_hash);
  if (unreadable != sources_.unreadable.end()) return unreadable->second;
  return absl::NotFoundError(
      absl::StrCat("[replay] term ", term.value(), " ran the experiment with spec hash ", spec_hash.substr(0, 12),
                   ", which neither the log nor a checkpoint here carries; begin later with --from"));
}

void Replayer::CheckLog(std::int64_t samples) {
  const bool bsp = std::all_of(sources_.experiments.begin(), sources_.experiments.end(), [](const auto& entry) {
    return entry.second.train.sync.mode == SyncConfig::Mode::kBsp;
  });
  std::vector<Finding> found = CheckLine(sources_.history);
  PositionsChecked positions = CheckPositions(sources_.history, samples, bsp ? 1 : 2);
  std::move(positions.findings.begin(), positions.findings.end(), std::back_inserter(found));
  report_.epochs_complete = positions.epochs_complete;
  std::map<CommitNumber, std::int64_t> trained;
  std::int64_t sum = 0;
  for (const LineCommit& commit : sources_.history.line) {
    trained[commit.decision.version.commit] = sum += commit.decision.samples;
  }
  if (sources_.history.base.commit == CommitNumber(0)) {
    for (const auto& [version, manifest] : sources_.checkpoints) {
      const auto it = trained.find(version.commit);
      const std::int64_t logged = it == trained.end() ? 0 : it->second;
      if (manifest.samples_trained == logged) continue;
      found.push_back({version.commit, absl::StrCat("checkpoint ", CheckpointName(version), " counts ",
                                                    manifest.samples_trained, " samples, the log ", logged)});
    }
  }
  report_.differences_found += static_cast<std::int64_t>(found.size());
  std::move(found.begin(), found.end(), std::back_inserter(findings_));
}

void Replayer::Done(const LineCommit& commit) {
  const Decision& decision = commit.decision;
  ++report_.commits;
  report_.updates += static_cast<std::int64_t>(decision.updates.size());
  report_.samples += decision.samples;
  report_.to = decision.version;
  if (progress_) progress_(ReplayProgress{report_.commits, total_, decision.version});
}

absl::Status Replayer::Recompute(Version start, std::span<const LineCommit> commits) {
  const History& history = sources_.history;
  Context context{options_, storage_, sources_, [this](Finding finding) { Find(std::move(finding)); },
                  {},       report_,  true};
  context.done = [&](const LineCommit& commit) {
    if (context.exact) ++report_.commits_bit_for_bit;
    Done(commit);
  };
  std::unique_ptr<Stretch> stretch;
  do {
    const auto end = std::find_if(commits.begin(), commits.end(),
                                  [&](const LineCommit& commit) { return commit.spec != commits.front().spec; });
    const auto count = static_cast<std::size_t>(end - commits.begin());
    const Experiment* experiment = nullptr;
    if (count == 0) {
      EK_ASSIGN_OR_RETURN(experiment, ExperimentOf(sources_.checkpoints.begin()->second.spec_hash, Term()));
    } else {
      EK_ASSIGN_OR_RETURN(experiment, ExperimentOf(history.spec_hashes[commits.front().spec], commits.front().term));
    }
    EK_ASSIGN_OR_RETURN(std::unique_ptr<Stretch> next, Stretch::Open(context, *experiment));
    if (stretch) {
      EK_RETURN_IF_ERROR(next->GoOnFrom(*stretch));
    } else {
      CheckLog(next->samples());
      if (start.commit == CommitNumber(0)) {
        next->Initialise(start);
      } else {
        EK_RETURN_IF_ERROR(next->Restore(start));
      }
      // What cannot be recomputed ends it.
      CommitNumber blocked = history.last().Next();
      for (const Finding& finding : findings_) {
        if (finding.blocks && finding.commit > start.commit) blocked = std::min(blocked, finding.commit);
      }
      if (blocked <= history.last()) {
        report_.notes.push_back(absl::StrCat("commits from ", blocked.value(), " on cannot be recomputed"));
        commits = commits.first(blocked.value() - start.commit.value() - 1);
        total_ = static_cast<std::int64_t>(commits.size());
      }
    }
    stretch = std::move(next);
    const std::span<const LineCommit> own = commits.first(std::min(count, commits.size()));
    EK_RETURN_IF_ERROR(stretch->Run(own));
    commits = commits.subspan(own.size());
  } while (!commits.empty());
  return absl::OkStatus();
}

void Replayer::Conclude() {
  report_.commits_after_last_checkpoint = report_.commits;
  for (const auto& [version, manifest] : sources_.checkpoints) {
    if (version.commit > report_.to.commit || version.commit < report_.from.commit) continue;
    report_.commits_after_last_checkpoint =
        static_cast<std::int64_t>(report_.to.commit.value() - version.commit.value());
  }
  if (!report_.agrees() && report_.commits_bit_for_bit < report_.commits) {
    report_.notes.push_back(
        "where bits cannot be had, rounding alone can grow beyond any tolerance between two checkpoints that lie far "
        "apart; checkpoints after fewer commits (checkpoint.every_commits), or a machine that computes as the workers "
        "did, decide it");
  }
  std::stable_sort(findings_.begin(), findings_.end(),
                   [](const Finding& a, const Finding& b) { return a.commit < b.commit; });
  for (const Finding& finding : findings_) {
    if (report_.differences.size() == kMaxReplayDifferences) break;
    report_.differences.push_back(absl::StrCat("commit ", finding.commit.value(), ": ", finding.text));
  }
}

absl::StatusOr<ReplayReport> Replayer::Run() {
  EK_ASSIGN_OR_RETURN(sources_, ReadSources(options_, storage_));
  EK_ASSIGN_OR_RETURN(const Version start, FindStart(options_, sources_));
  const History& history = sources_.history;
  report_.job_id = history.job_id;
  report_.status = history.status;
  report_.rolled_back_commits = history.rolled_back;
  report_.tolerance = options_.tolerance;
  report_.from = report_.to = start;
  if (start == Version{} && !history.line.empty()) {
    report_.from.generation = history.line.front().decision.version.generation;
  }
  report_.notes = sources_.notes;
  const std::span<const LineCommit> commits =
      std::span(history.line).subspan(start.commit.value() - history.base.commit.value());
  total_ = static_cast<std::int64_t>(commits.size());
  EK_RETURN_IF_ERROR(Recompute(start, commits));
  Conclude();
  return std::move(report_);
}

}  // namespace
}  // namespace replay

absl::StatusOr<ReplayReport> Replay(const ReplayOptions& options, const Storage& storage,
                                    const std::function<void(const ReplayProgress&)>& progress) {
  return replay::Replayer(options, storage, progress).Run();
}

}  // namespace evenkeel
