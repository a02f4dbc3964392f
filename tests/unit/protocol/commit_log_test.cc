#include "evenkeel/protocol/commit_log.h"

#include <catch2/catch.hpp>

#include "evenkeel/core/digest.h"
#include "unit/protocol/sample_messages.h"

namespace evenkeel {
namespace {

void Write(Storage& storage, const std::string& name, const std::string& bytes) {
  REQUIRE(storage.WriteAtomic(JoinPath("m", name), AsBytes(bytes)).ok());
}

std::string Record(std::uint64_t commit) {
  CommitRecord record{SampleDecision()};
  record.decision.version.commit = CommitNumber(commit);
  return EncodeLogRecord(record);
}

std::vector<std::uint64_t> Commits(const Storage& storage) {
  std::vector<std::uint64_t> commits;
  const absl::Status status = ReadLog(storage, "m", [&](const LogFile&, const LogRecord& record) {
    commits.push_back(std::get<CommitRecord>(record).decision.version.commit.value());
    return absl::OkStatus();
  });
  INFO(status);
  REQUIRE(status.ok());
  return commits;
}

TEST_CASE("log files come by term, then by segment, as numbers", "[protocol]") {
  const std::unique_ptr<Storage> storage = MakeMemoryStorage();
  REQUIRE(storage->MakeFolder("m").ok());
  Write(*storage, "chief.wal.10", Record(6));
  Write(*storage, "chief.wal.2.10", Record(5));
  Write(*storage, "chief.wal.2.9", Record(4));
  Write(*storage, "chief.wal.2", Record(2) + Record(3));
  Write(*storage, "chief.wal.1", Record(1));
  Write(*storage, "chief.wal.old", "no log");
  Write(*storage, "chief.wal.3.x", "no log");
  CHECK(Commits(*storage) == std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6});
  const auto files = ListLogFiles(*storage, "m");
  REQUIRE(files.ok());
  CHECK(files->front() == LogFile{Term(1), 0, LogFileName(Term(1))});
  CHECK(files->at(3) == LogFile{Term(2), 10, "chief.wal.2.10"});
}

TEST_CASE("each file's torn tail is cut; damage is told with its file", "[protocol]") {
  const std::unique_ptr<Storage> storage = MakeMemoryStorage();
  REQUIRE(storage->MakeFolder("m").ok());
  Write(*storage, "chief.wal.1", Record(1) + Record(2).substr(0, 11));
  Write(*storage, "chief.wal.2", Record(2));
  CHECK(Commits(*storage) == std::vector<std::uint64_t>{1, 2});
  std::string damaged = Record(1) + Record(2);
  damaged[9] = static_cast<char>(damaged[9] ^ 1);
  Write(*storage, "chief.wal.2", damaged);
  const absl::Status status = ReadLog(*storage, "m", [](const LogFile&, const LogRecord&) { return absl::OkStatus(); });
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(status.message()), Catch::Contains("chief.wal.2"));
}

}  // namespace
}  // namespace evenkeel
