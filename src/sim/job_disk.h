// The job's model_dir: logs, manifests, parts. It outlives processes; a crash loses what was not synced.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evenkeel/chief/chief.h"
#include "evenkeel/protocol/log_record.h"
#include "sim/invariants.h"

namespace evenkeel::sim {

class JobDisk {
 public:
  using Part = Invariants::Part;
  static std::string PathOf(const std::string& folder, const std::string& file) { return folder + "/" + file; }

  // Claims the next term: its log's name is durable at once, its records are not.
  Term ClaimTerm();
  void Append(LogRecord record);
  void Sync() { Sync(logs_.back().records.size()); }
  // The first `records` of the newest log.
  void Sync(std::size_t records);
  std::size_t appended() const { return logs_.back().records.size(); }
  // The machine stops: the last `share` of the records that were not synced are lost, and the first of those is torn
  // where `torn_bytes`, counted modulo its length, says.
  // Errors: kDataLoss, when what is left cannot be read.
  absl::Status Crash(double share, std::uint64_t torn_bytes);

  // A checkpoint is there: of the newest log's commits that it covers only version and number of samples are kept.
  void Thin(Version checkpoint);

  std::vector<LogRecord> Records() const;
  // What the log says from the segment on that was begun for the newest checkpoint that survives; that checkpoint.
  std::pair<LogHistory, std::optional<Manifest>> History() const;
  Term last_term() const { return logs_.empty() ? Term() : logs_.back().term; }

  std::map<Version, Manifest> manifests;
  std::map<std::string, Part> parts;  // by path

 private:
  struct TermLog {
    Term term;
    std::vector<LogRecord> records;
    std::size_t synced = 0;
    std::size_t thinned = 0;
  };
  std::vector<TermLog> logs_;
};

}  // namespace evenkeel::sim
