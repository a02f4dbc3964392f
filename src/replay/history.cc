#include "replay/history.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel::replay {
namespace {

std::size_t IndexOf(std::vector<std::string>& names, const std::string& name) {
  const auto it = std::find(names.begin(), names.end(), name);
  if (it != names.end()) return static_cast<std::size_t>(it - names.begin());
  names.push_back(name);
  return names.size() - 1;
}

// Clocks as the chief kept them, as far as the log tells.
class ClockWatch {
 public:
  void Admit(Incarnation incarnation) {
    clocks_.try_emplace(incarnation, Least());
    Note();
  }
  void Fence(Incarnation incarnation) {
    clocks_.erase(incarnation);
    Note();
  }
  void RollBack(CommitNumber commit) {
    ceilings_.erase(ceilings_.lower_bound(commit), ceilings_.end());
    newest_ = commit;
    Note();
  }
  // How far the update's worker was ahead when it was bound: no less than that. The chief may have bound it at any
  // moment between that commit and the next, so the highest "slowest" of that time counts.
  std::int64_t Lead(const CommittedUpdate& update) const {
    const auto ceiling = ceilings_.find(update.bound_at);
    // A worker that was gone when its update committed has no clock any more.
    if (update.clock == 0 || ceiling == ceilings_.end()) return 0;
    return update.clock - 1 - ceiling->second;
  }
  void Commit(const Decision& decision) {
    for (const CommittedUpdate& update : decision.updates) {
      if (update.clock > 0) clocks_[update.update.incarnation] = update.clock;
    }
    newest_ = decision.version.commit;
    Note();
  }

 private:
  std::int64_t Least() const {
    std::int64_t least = 0;
    for (auto it = clocks_.begin(); it != clocks_.end(); ++it) {
      least = it == clocks_.begin() ? it->second : std::min(least, it->second);
    }
    return least;
  }
  void Note() {
    if (clocks_.empty()) return;
    auto [it, fresh] = ceilings_.try_emplace(newest_, Least());
    if (!fresh) it->second = std::max(it->second, Least());
  }

  std::map<Incarnation, std::int64_t> clocks_;  // of the admitted
  std::map<CommitNumber, std::int64_t> ceilings_;
  CommitNumber newest_;
};

class LineBuilder {
 public:
  absl::Status Add(const LogFile& file, const LogRecord& record) {
    file_ = &file;
    if (const auto* commit = std::get_if<CommitRecord>(&record)) return Append(commit->decision);
    if (const auto* term = std::get_if<TermRecord>(&record)) {
      history_.job_id = term->job_id;
      history_.status.clear();
      spec_ = IndexOf(history_.spec_hashes, term->spec_hash);
      if (!term->experiment_json.empty()) history_.experiments[term->spec_hash] = term->experiment_json;
    } else if (const auto* admission = std::get_if<AdmissionRecord>(&record)) {
      fingerprints_[admission->incarnation] = IndexOf(history_.fingerprints, admission->compute_fingerprint);
      clocks_.Admit(admission->incarnation);
    } else if (const auto* fence = std::get_if<FenceRecord>(&record)) {
      clocks_.Fence(fence->incarnation);
    } else if (const auto* layout = std::get_if<LayoutRecord>(&record)) {
      servers_ = layout->servers.size();
    } else if (const auto* rollback = std::get_if<RollbackRecord>(&record)) {
      RollBack(*rollback);
    } else if (const auto* end = std::get_if<EndRecord>(&record)) {
      history_.status = end->status;
    }
    return absl::OkStatus();
  }
  History Take() { return std::move(history_); }

 private:
  void CutAfter(CommitNumber commit) {
    const auto keep = static_cast<std::ptrdiff_t>(commit.value() - history_.base.commit.value());
    history_.rolled_back += static_cast<std::int64_t>(history_.line.size()) - keep;
    history_.line.erase(history_.line.begin() + keep, history_.line.end());
    std::erase_if(history_.generation_starts, [commit](const auto& start) { return start.second > commit; });
  }

  void RollBack(const RollbackRecord& rollback) {
    if (rollback.checkpoint == Version{} && history_.base.commit == CommitNumber(0)) {
      CutAfter(CommitNumber(0));
    } else if (history_.Holds(rollback.checkpoint)) {
      CutAfter(rollback.checkpoint.commit);
    } else {
      // What led there is in no log here.
      history_.rolled_back += static_cast<std::int64_t>(history_.line.size());
      history_.line.clear();
      history_.generation_starts.clear();
      history_.base = rollback.checkpoint;
    }
    history_.generation_starts[rollback.generation] = rollback.checkpoint.commit;
    clocks_.RollBack(rollback.checkpoint.commit);
  }

  // The line's end, as the decision sees it: a commit of a newer term or generation may follow an earlier one than the
  // last, whose successors an older chief had logged in vain.
  absl::StatusOr<bool> MakeRoom(const Decision& decision) {
    const CommitNumber commit = decision.version.commit, last = history_.last();
    const bool within = commit > history_.base.commit && commit <= last;
    if (within && history_.at(commit).decision == decision) return false;
    const bool newer =
        !history_.line.empty() && (file_->term > history_.line.back().term || decision.version.generation > Newest());
    if (within && newer && decision.previous_hash == HashAt(CommitNumber(commit.value() - 1))) {
      CutAfter(CommitNumber(commit.value() - 1));
    }
    if (commit == history_.last().Next() && decision.version.generation >= Newest()) return true;
    return absl::DataLossError(absl::StrCat("[commit log] ", file_->name, ": commit ", ToString(decision.version),
                                            " cannot follow ", ToString(Version{Newest(), history_.last()})));
  }

  absl::Status Append(const Decision& decision) {
    EK_ASSIGN_OR_RETURN(const bool fresh, MakeRoom(decision));
    if (!fresh) return absl::OkStatus();
    history_.generation_starts.try_emplace(decision.version.generation, history_.last());
    LineCommit commit{decision, file_->term, spec_, {}, servers_, 0};
    for (const CommittedUpdate& update : decision.updates) {
      const auto known = fingerprints_.find(update.update.incarnation);
      commit.fingerprints.push_back(known != fingerprints_.end() ? known->second : IndexOf(history_.fingerprints, ""));
      commit.lead = std::max(commit.lead, clocks_.Lead(update));
      if (update.computed_on.empty()) {
        return absl::DataLossError(absl::StrCat("[commit log] ", file_->name, ": commit ", ToString(decision.version),
                                                " does not say what its updates were computed on"));
      }
    }
    if (decision.updates.empty() || decision.samples <= 0 || history_.spec_hashes.empty()) {
      return absl::DataLossError(absl::StrCat("[commit log] ", file_->name, ": commit ", ToString(decision.version),
                                              " has ", decision.updates.size(), " updates and ", decision.samples,
                                              " samples, after ", history_.spec_hashes.size(), " terms"));
    }
    clocks_.Commit(decision);
    history_.line.push_back(std::move(commit));
    return absl::OkStatus();
  }

  Generation Newest() const {
    const auto& starts = history_.generation_starts;
    return starts.empty() ? history_.base.generation : starts.rbegin()->first;
  }
  std::uint64_t HashAt(CommitNumber commit) const {
    return commit == history_.base.commit ? 0 : history_.at(commit).decision.hash;
  }

  History history_;
  const LogFile* file_ = nullptr;
  std::size_t spec_ = 0;
  std::size_t servers_ = 0;
  std::map<Incarnation, std::size_t> fingerprints_;
  ClockWatch clocks_;
};

void CheckUpdates(const History& history, const LineCommit& commit, std::vector<Finding>& findings) {
  const Decision& decision = commit.decision;
  const auto find = [&](std::string text) { findings.push_back({decision.version.commit, std::move(text)}); };
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < decision.updates.size(); ++i) {
    const CommittedUpdate& update = decision.updates[i];
    const std::string name = ToString(update.update);
    samples += TotalSize(update.positions);
    if (i > 0 && !(decision.updates[i - 1].rank < update.rank)) {
      find(absl::StrCat("update ", name, " of rank ", update.rank.value(), " follows one of rank ",
                        decision.updates[i - 1].rank.value()));
    }
    if (commit.servers != 0 && update.computed_on.size() != commit.servers) {
      find(absl::StrCat("update ", name, " was computed on the versions of ", update.computed_on.size(),
                        " servers; the layout has ", commit.servers));
    }
    for (const Version& version : update.computed_on) {
      if (version.commit >= decision.version.commit || !history.Holds(version)) {
        findings.push_back({decision.version.commit,
                            absl::StrCat("update ", name, " was computed on ", ToString(version),
                                         ", which is no earlier state of the surviving history"),
                            true});
      }
    }
  }
  if (samples != decision.samples) {
    find(absl::StrCat("it counts ", decision.samples, " samples, its updates have ", samples));
  }
}

}  // namespace

bool History::Holds(Version version) const {
  if (version.commit == CommitNumber(0) && base.commit == CommitNumber(0)) return true;  // what the seed gives
  if (version == base) return true;
  const auto start = generation_starts.find(version.generation);
  if (start != generation_starts.end() && start->second == version.commit) return true;
  return version.commit > base.commit && version.commit <= last() && at(version.commit).decision.version == version;
}

absl::StatusOr<History> ReadHistory(const Storage& storage, const std::string& model_dir) {
  LineBuilder builder;
  bool any = false;
  EK_RETURN_IF_ERROR(ReadLog(storage, model_dir, [&](const LogFile& file, const LogRecord& record) {
    any = true;
    return builder.Add(file, record);
  }));
  if (!any) {
    return absl::NotFoundError(absl::StrCat("[replay] ", model_dir, " holds no commit log (chief.wal.1)"));
  }
  return builder.Take();
}

std::vector<Finding> CheckLine(const History& history) {
  std::vector<Finding> findings;
  const Decision* before = nullptr;
  for (const LineCommit& commit : history.line) {
    const Decision& decision = commit.decision;
    const auto find = [&](std::string text) { findings.push_back({decision.version.commit, std::move(text)}); };
    if (HashDecision(decision) != decision.hash) find("its hash does not match its fields");
    const bool known = before != nullptr || history.base.commit == CommitNumber(0);
    const std::uint64_t previous = before == nullptr ? 0 : before->hash;
    if (known && decision.previous_hash != previous) {
      find(absl::StrCat("it is chained to hash ", decision.previous_hash, ", the commit before has ", previous));
    }
    CheckUpdates(history, commit, findings);
    before = &decision;
  }
  return findings;
}

PositionsChecked CheckPositions(const History& history, std::int64_t samples, std::int64_t open_epochs) {
  struct Range {
    PositionRange range;
    CommitNumber commit;
  };
  PositionsChecked checked;
  std::map<Epoch, std::vector<Range>> epochs;
  for (const LineCommit& commit : history.line) {
    for (const CommittedUpdate& update : commit.decision.updates) {
      for (const PositionRange& range : update.positions) {
        epochs[update.epoch].push_back({range, commit.decision.version.commit});
      }
    }
  }
  for (auto& [epoch, ranges] : epochs) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.range < b.range; });
    const auto name = [](const PositionRange& range) { return ToString(RangeList{range}); };
    std::int64_t next = 0, missing = 0;
    CommitNumber reached_by;  // whose range ends at `next`
    for (const auto& [range, commit] : ranges) {
      if (range.begin < 0 || range.end > samples || range.begin >= range.end) {
        checked.findings.push_back({commit,
                                    absl::StrCat("positions ", name(range), " of epoch ", epoch.value(),
                                                 " are none of its ", samples, " samples"),
                                    true});
        continue;
      }
      if (range.begin < next) {
        checked.findings.push_back(
            {std::max(commit, reached_by),
             absl::StrCat("positions ", name(range), " of epoch ", epoch.value(), " count twice, here and in commit ",
                          std::min(commit, reached_by).value())});
      }
      missing += std::max<std::int64_t>(0, range.begin - next);
      if (range.end > next) reached_by = commit;
      next = std::max(next, range.end);
    }
    missing += samples - next;
    if (missing == 0) ++checked.epochs_complete;
    // What a log without its beginning lacks is not known.
    const bool over = epoch.value() + static_cast<std::uint64_t>(open_epochs) <= epochs.rbegin()->first.value();
    if (missing > 0 && over && history.base.commit == CommitNumber(0)) {
      checked.findings.push_back({history.last(), absl::StrCat("epoch ", epoch.value(), " is over, but ", missing,
                                                               " of its samples never counted")});
    }
  }
  return checked;
}

}  // namespace evenkeel::replay
