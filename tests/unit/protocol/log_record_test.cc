#include "evenkeel/protocol/log_record.h"

#include <catch2/catch.hpp>

#include "evenkeel/core/digest.h"
#include "unit/protocol/sample_messages.h"

namespace evenkeel {
namespace {

std::vector<LogRecord> SampleRecords() {
  return {
      TermRecord{.term = Term(1),
                 .job_id = "j",
                 .spec_hash = "s",
                 .unix_ms = 2,
                 .resumed_from = SampleVersion(3),
                 .experiment_json = "{}"},
      AdmissionRecord{.incarnation = Incarnation(1),
                      .name = "worker:0",
                      .rank = Rank(2),
                      .epoch = MembershipEpoch(3),
                      .nonce = 4,
                      .compute_fingerprint = "c"},
      FenceRecord{.incarnation = Incarnation(1), .epoch = MembershipEpoch(2), .reason = "lease"},
      LayoutRecord{.layout = LayoutNumber(1), .generation = Generation(2), .servers = {{"a:1", Incarnation(3)}}},
      RollbackRecord{.generation = Generation(1), .checkpoint = SampleVersion(2)},
      CommitRecord{.decision = SampleDecision(), .training_seconds = 1.5},
      CheckpointRecord{.version = SampleVersion(1)},
      EndRecord{.status = "finished", .message = "m"},
      SegmentRecord{.version = SampleVersion(1),
                    .job_id = "j",
                    .last_generation = Generation(2),
                    .last_incarnation = Incarnation(3),
                    .samples_committed = 4,
                    .generation = Generation(5),
                    .rollbacks = {{Generation(6), SampleVersion(7)}},
                    .layout = {LayoutNumber(8), Generation(9), {{"a:1", Incarnation(10)}}},
                    .membership_epoch = MembershipEpoch(11),
                    .members = {{Incarnation(12), "worker:0", Rank(13), MembershipEpoch(14), 15, "c"}},
                    .clocks = {16},
                    .training_seconds = 17.5},
  };
}

std::string SampleLog() {
  std::string log;
  for (const LogRecord& record : SampleRecords()) log += EncodeLogRecord(record);
  return log;
}

TEST_CASE("every record survives the log with all its fields", "[protocol]") {
  std::vector<LogRecord> records = SampleRecords();
  REQUIRE(records.size() == std::variant_size_v<LogRecord>);
  std::string bytes = SampleLog();
  absl::StatusOr<DecodedLog> log = DecodeLog(AsBytes(bytes));
  REQUIRE(log.status().ToString() == "OK");
  CHECK(log->valid_bytes == bytes.size());
  CHECK(log->records == records);
}

TEST_CASE("an empty log has no records", "[protocol]") {
  absl::StatusOr<DecodedLog> log = DecodeLog({});
  REQUIRE(log.ok());
  CHECK(log->records.empty());
  CHECK(log->valid_bytes == 0);
}

TEST_CASE("a log cut anywhere keeps its whole records", "[protocol]") {
  std::string bytes = SampleLog();
  std::vector<std::size_t> ends{0};
  for (const LogRecord& record : SampleRecords()) ends.push_back(ends.back() + EncodeLogRecord(record).size());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    std::string cut = bytes.substr(0, length);
    absl::StatusOr<DecodedLog> log = DecodeLog(AsBytes(cut));
    REQUIRE(log.ok());
    std::size_t whole = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), length) - ends.begin()) - 1;
    CHECK(log->records.size() == whole);
    CHECK(log->valid_bytes == ends[whole]);
  }
}

TEST_CASE("a torn tail of zeros or garbage is cut", "[protocol]") {
  for (const std::string& tail : {std::string(100, '\0'), std::string("\x05\x00\x00\x00garbage!", 12)}) {
    std::string bytes = SampleLog();
    std::size_t valid = bytes.size();
    bytes += tail;
    absl::StatusOr<DecodedLog> log = DecodeLog(AsBytes(bytes));
    REQUIRE(log.ok());
    CHECK(log->valid_bytes == valid);
  }
}

TEST_CASE("any damaged byte before the last record is data loss and gives the record's offset", "[protocol]") {
  std::string bytes = SampleLog();
  std::vector<LogRecord> records = SampleRecords();
  std::size_t begin = EncodeLogRecord(records[0]).size();
  std::size_t length = EncodeLogRecord(records[1]).size();
  for (std::size_t at = begin; at < begin + length; ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    absl::StatusOr<DecodedLog> log = DecodeLog(AsBytes(damaged));
    REQUIRE(log.status().code() == absl::StatusCode::kDataLoss);
    CHECK_THAT(std::string(log.status().message()), Catch::Contains("byte " + std::to_string(begin) + " "));
  }
}

TEST_CASE("a damaged last record is a torn tail", "[protocol]") {
  std::string bytes = SampleLog();
  std::size_t last = EncodeLogRecord(SampleRecords().back()).size();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  absl::StatusOr<DecodedLog> log = DecodeLog(AsBytes(bytes));
  REQUIRE(log.ok());
  CHECK(log->valid_bytes == bytes.size() - last);
}

TEST_CASE("a whole frame around no record is data loss", "[protocol]") {
  std::string body = "\xFA\x06\x01x";
  std::uint32_t crc = Crc32c(AsBytes(body));
  std::string frame = std::string("\x04\x00\x00\x00", 4);
  for (int shift = 0; shift < 32; shift += 8) frame.push_back(static_cast<char>(crc >> shift));
  frame += body;
  CHECK(DecodeLog(AsBytes(frame)).status().code() == absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace evenkeel
