#include "sim/job_disk.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "evenkeel/core/status.h"

namespace evenkeel::sim {

Term JobDisk::ClaimTerm() {
  logs_.push_back(TermLog{last_term().Next(), {}, 0, 0});
  return logs_.back().term;
}

void JobDisk::Append(LogRecord record) { logs_.back().records.push_back(std::move(record)); }

void JobDisk::Sync(std::size_t records) { logs_.back().synced = std::max(logs_.back().synced, records); }

absl::Status JobDisk::Crash(double share, std::uint64_t torn_bytes) {
  if (logs_.empty()) return absl::OkStatus();
  TermLog& log = logs_.back();
  const auto unsynced = static_cast<double>(log.records.size() - log.synced);
  const std::size_t kept = log.records.size() - static_cast<std::size_t>(share * unsynced);
  std::string bytes;
  for (std::size_t i = 0; i < kept; ++i) bytes += EncodeLogRecord(log.records[i]);
  if (kept < log.records.size()) {
    const std::string torn = EncodeLogRecord(log.records[kept]);
    bytes += torn.substr(0, torn_bytes % torn.size());
  }
  EK_ASSIGN_OR_RETURN(DecodedLog decoded, DecodeLog(std::as_bytes(std::span(bytes))));
  if (decoded.records.size() != kept) {
    return absl::DataLossError("a torn tail took whole records with it, or came back as one");
  }
  log.records = std::move(decoded.records);
  log.synced = kept;
  log.thinned = std::min(log.thinned, kept);
  return absl::OkStatus();
}

void JobDisk::Thin(Version checkpoint) {
  TermLog& log = logs_.back();
  for (; log.thinned < log.synced; ++log.thinned) {
    auto* commit = std::get_if<CommitRecord>(&log.records[log.thinned]);
    if (commit == nullptr) continue;
    if (commit->decision.version > checkpoint) return;
    commit->decision.updates = {};
  }
}

std::vector<LogRecord> JobDisk::Records() const {
  std::vector<LogRecord> all;
  for (const TermLog& log : logs_) all.insert(all.end(), log.records.begin(), log.records.end());
  return all;
}

std::pair<LogHistory, std::optional<Manifest>> JobDisk::History() const {
  const std::vector<LogRecord> records = Records();
  for (auto manifest = manifests.rbegin(); manifest != manifests.rend(); ++manifest) {
    std::size_t begin = records.size();
    while (begin > 0) {
      const auto* segment = std::get_if<SegmentRecord>(&records[--begin]);
      if (segment != nullptr && segment->version == manifest->first) break;
    }
    LogHistory history;
    for (std::size_t i = begin; i < records.size(); ++i) history.Add(records[i]);
    if (history.Survives(manifest->first)) return {std::move(history), manifest->second};
  }
  LogHistory history;
  for (const LogRecord& record : records) history.Add(record);
  return {std::move(history), std::nullopt};
}

}  // namespace evenkeel::sim
