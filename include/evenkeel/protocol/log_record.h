// Records of the commit log, chief.wal.TERM and its segments: length and CRC-32C (4 bytes each, little endian), then
// the record's protobuf (proto/commit_log.proto). A torn tail is cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/protocol/messages.h"

namespace evenkeel {

struct TermRecord {
  Term term;
  std::string job_id;
  std::string spec_hash;
  std::int64_t unix_ms = 0;
  Version resumed_from;         // the checkpoint this term started from
  std::string experiment_json;  // canonical, that spec_hash is of; "" in logs of before
  friend bool operator==(const TermRecord&, const TermRecord&) = default;
};
struct AdmissionRecord {
  Incarnation incarnation;
  std::string name;
  Rank rank;
  MembershipEpoch epoch;
  std::uint64_t nonce = 0;
  std::string compute_fingerprint;
  friend bool operator==(const AdmissionRecord&, const AdmissionRecord&) = default;
};
struct FenceRecord {
  Incarnation incarnation;
  MembershipEpoch epoch;
  std::string reason;
  friend bool operator==(const FenceRecord&, const FenceRecord&) = default;
};
struct LayoutRecord {
  LayoutNumber layout;
  Generation generation;
  std::vector<ServerAddress> servers;
  friend bool operator==(const LayoutRecord&, const LayoutRecord&) = default;
};
struct RollbackRecord {
  Generation generation;  // the new one
  Version checkpoint;
  friend bool operator==(const RollbackRecord&, const RollbackRecord&) = default;
};
struct CommitRecord {
  Decision decision;
  double training_seconds = 0;  // of the job so far; 0: not known
  friend bool operator==(const CommitRecord&, const CommitRecord&) = default;
};
struct CheckpointRecord {
  Version version;
  friend bool operator==(const CheckpointRecord&, const CheckpointRecord&) = default;
};
struct EndRecord {
  std::string status;
  std::string message;
  friend bool operator==(const EndRecord&, const EndRecord&) = default;
};
// First in every segment but a term's first: all that a chief must know of the segments before it.
struct SegmentRecord {
  Version version;  // newest commit; that of the checkpoint that the segment was begun for
  std::string job_id;
  Generation last_generation;
  Incarnation last_incarnation;
  std::int64_t samples_committed = 0;  // surviving or not
  Generation generation;
  std::vector<RollbackRecord> rollbacks;  // oldest first
  LayoutRecord layout;
  MembershipEpoch membership_epoch;
  std::vector<AdmissionRecord> members;
  std::vector<std::int64_t> clocks;  // of the members
  // From each chief's first ticket to its last commit, summed; the time without a chief is not in it.
  double training_seconds = 0;
  friend bool operator==(const SegmentRecord&, const SegmentRecord&) = default;
};
using LogRecord = std::variant<TermRecord, AdmissionRecord, FenceRecord, LayoutRecord, RollbackRecord, CommitRecord,
                               CheckpointRecord, EndRecord, SegmentRecord>;

// Frame and record, ready to append.
std::string EncodeLogRecord(const LogRecord& record);

struct DecodedLog {
  std::vector<LogRecord> records;
  std::size_t valid_bytes = 0;  // up to the end of the last whole record; the rest is a torn tail
  friend bool operator==(const DecodedLog&, const DecodedLog&) = default;
};
// Errors: kDataLoss when a damaged record is followed by whole ones (not a torn tail), with its offset.
absl::StatusOr<DecodedLog> DecodeLog(std::span<const std::byte> bytes);

// The record that `bytes`, a log's beginning, begin with. Errors: kDataLoss when no whole one is there.
absl::StatusOr<LogRecord> DecodeFirstRecord(std::span<const std::byte> bytes);

}  // namespace evenkeel
