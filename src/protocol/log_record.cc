#include "evenkeel/protocol/log_record.h"

#include <google/protobuf/stubs/logging.h>

#include "absl/strings/str_cat.h"
#include "commit_log.pb.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"
#include "protocol/field_map.h"

namespace evenkeel {

namespace pb_log = ::evenkeel::log::v1;

namespace wire {

template <class D>
void Map(D& d, In<D, TermRecord> m, Out<D, pb_log::TermRecord> p) {
  EK_VALUE(term);
  EK_VALUE(job_id);
  EK_VALUE(spec_hash);
  EK_VALUE(unix_ms);
  EK_MESSAGE(resumed_from);
  EK_VALUE(experiment_json);
}
template <class D>
void Map(D& d, In<D, AdmissionRecord> m, Out<D, pb_log::AdmissionRecord> p) {
  EK_VALUE(incarnation);
  EK_VALUE(name);
  EK_VALUE(rank);
  EK_VALUE(epoch);
  EK_VALUE(nonce);
  EK_VALUE(compute_fingerprint);
}
template <class D>
void Map(D& d, In<D, FenceRecord> m, Out<D, pb_log::FenceRecord> p) {
  EK_VALUE(incarnation);
  EK_VALUE(epoch);
  EK_VALUE(reason);
}
template <class D>
void Map(D& d, In<D, LayoutRecord> m, Out<D, pb_log::LayoutRecord> p) {
  EK_VALUE(layout);
  EK_VALUE(generation);
  EK_LIST(servers);
}
template <class D>
void Map(D& d, In<D, RollbackRecord> m, Out<D, pb_log::RollbackRecord> p) {
  EK_VALUE(generation);
  EK_MESSAGE(checkpoint);
}
template <class D>
void Map(D& d, In<D, CommitRecord> m, Out<D, pb_log::CommitRecord> p) {
  EK_MESSAGE(decision);
  EK_VALUE(training_seconds);
}
template <class D>
void Map(D& d, In<D, CheckpointRecord> m, Out<D, pb_log::CheckpointRecord> p) {
  EK_MESSAGE(version);
}
template <class D>
void Map(D& d, In<D, EndRecord> m, Out<D, pb_log::EndRecord> p) {
  EK_VALUE(status);
  EK_VALUE(message);
}

template <class D>
void Map(D& d, In<D, SegmentRecord> m, Out<D, pb_log::SegmentRecord> p) {
  EK_MESSAGE(version);
  EK_VALUE(job_id);
  EK_VALUE(last_generation);
  EK_VALUE(last_incarnation);
  EK_VALUE(samples_committed);
  EK_VALUE(generation);
  EK_LIST(rollbacks);
  EK_MESSAGE(layout);
  EK_VALUE(membership_epoch);
  EK_LIST(members);
  EK_VALUES(clocks);
  EK_VALUE(training_seconds);
  if constexpr (!D::kEncode) {
    if (m.clocks.size() != m.members.size()) {
      d.Fail("clocks", absl::StrCat("has ", m.clocks.size(), " entries for ", m.members.size(), " members"));
    }
  }
}

}  // namespace wire

namespace {

constexpr std::size_t kFrameBytes = 8;
constexpr std::uint32_t kMaxRecordBytes = 1u << 28;

#define EK_FOR_EACH_RECORD(X)                 \
  X(TermRecord, term, Term)                   \
  X(AdmissionRecord, admission, Admission)    \
  X(FenceRecord, fence, Fence)                \
  X(LayoutRecord, layout, Layout)             \
  X(RollbackRecord, rollback, Rollback)       \
  X(CommitRecord, commit, Commit)             \
  X(CheckpointRecord, checkpoint, Checkpoint) \
  X(EndRecord, end, End)                      \
  X(SegmentRecord, segment, Segment)

void AppendLittleEndian(std::uint32_t value, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

std::uint32_t LittleEndian(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(bytes[static_cast<std::size_t>(i)]) << (8 * i);
  return value;
}

// The record of the frame at `at`: empty if there is no whole, undamaged one.
std::span<const std::byte> WholeRecord(std::span<const std::byte> bytes, std::size_t at) {
  if (bytes.size() - at < kFrameBytes) return {};
  std::uint32_t length = LittleEndian(bytes.subspan(at));
  if (length == 0 || length > kMaxRecordBytes || length > bytes.size() - at - kFrameBytes) return {};
  std::span<const std::byte> record = bytes.subspan(at + kFrameBytes, length);
  if (Crc32c(record) != LittleEndian(bytes.subspan(at + 4))) return {};
  return record;
}

// Whether a whole frame begins anywhere after `at`. A damaged length hides where, so every offset is tried; a chance
// match of length and CRC is one in four billion.
bool WholeRecordAfter(std::span<const std::byte> bytes, std::size_t at) {
  for (std::size_t next = at + 1; next + kFrameBytes < bytes.size(); ++next) {
    if (!WholeRecord(bytes, next).empty()) return true;
  }
  return false;
}

absl::StatusOr<LogRecord> DecodeRecord(std::span<const std::byte> bytes) {
  pb_log::LogRecord packet;
  google::protobuf::LogSilencer silencer;
  if (!packet.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("is no evenkeel.log.v1.LogRecord");
  }
  LogRecord record;
  wire::Decoder decoder;
  switch (packet.record_case()) {
#define EK_DECODE(type, field, name)                            \
  case pb_log::LogRecord::k##name:                              \
    wire::Map(decoder, record.emplace<type>(), packet.field()); \
    break;
    EK_FOR_EACH_RECORD(EK_DECODE)
#undef EK_DECODE
    case pb_log::LogRecord::RECORD_NOT_SET:
      return absl::DataLossError("is of an unknown kind");
  }
  if (!decoder.ok()) return absl::DataLossError(decoder.status().message());
  return record;
}

}  // namespace

std::string EncodeLogRecord(const LogRecord& record) {
  pb_log::LogRecord packet;
  wire::Encoder encoder;
#define EK_ENCODE(type, field, name) \
  if (const auto* value = std::get_if<type>(&record)) wire::Map(encoder, *value, *packet.mutable_##field());
  EK_FOR_EACH_RECORD(EK_ENCODE)
#undef EK_ENCODE
  std::string body = packet.SerializeAsString();
  EK_CHECK(body.size() <= kMaxRecordBytes);
  std::string frame;
  frame.reserve(kFrameBytes + body.size());
  AppendLittleEndian(static_cast<std::uint32_t>(body.size()), frame);
  AppendLittleEndian(Crc32c(AsBytes(body)), frame);
  frame += body;
  return frame;
}

absl::StatusOr<LogRecord> DecodeFirstRecord(std::span<const std::byte> bytes) {
  std::span<const std::byte> record = WholeRecord(bytes, 0);
  if (record.empty()) return absl::DataLossError("[commit log] no whole record at its beginning");
  return DecodeRecord(record);
}

absl::StatusOr<DecodedLog> DecodeLog(std::span<const std::byte> bytes) {
  DecodedLog log;
  while (log.valid_bytes < bytes.size()) {
    std::span<const std::byte> record = WholeRecord(bytes, log.valid_bytes);
    if (record.empty()) {
      if (!WholeRecordAfter(bytes, log.valid_bytes)) break;
      return absl::DataLossError(absl::StrCat("[commit log] record at byte ", log.valid_bytes,
                                              " is damaged but whole ones follow: not a torn tail"));
    }
    absl::StatusOr<LogRecord> decoded = DecodeRecord(record);
    if (!decoded.ok()) {
      return absl::DataLossError(
          absl::StrCat("[commit log] record at byte ", log.valid_bytes, " ", decoded.status().message()));
    }
    log.records.push_back(*std::move(decoded));
    log.valid_bytes += kFrameBytes + record.size();
  }
  return log;
}

}  // namespace evenkeel
