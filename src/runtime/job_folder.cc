#include "runtime/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr absl::string_view kLogPrefix = "chief.wal.";
constexpr int kClaimAttempts = 64;
constexpr std::uint64_t kMaxSegmentHead = 1 << 22;  // of a segment's first record

}  // namespace

absl::StatusOr<ModelDirLock> ModelDirLock::Take(const std::string& model_dir) {
  const std::string path = JoinPath(model_dir, "chief.lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::InvalidArgumentError(absl::StrCat("model_dir: cannot write ", path, ": ", strerror(errno)));
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return ModelDirLock(fd);
  const int error = errno;
  close(fd);
  if (error == EWOULDBLOCK) {
    return absl::AlreadyExistsError(absl::StrCat(
        "model_dir ", model_dir, " is in use by another job's chief; give each job a model_dir of its own"));
  }
  return absl::InternalError(absl::StrCat("cannot lock ", path, ": ", strerror(error)));
}

ModelDirLock::~ModelDirLock() {
  if (fd_ >= 0) close(fd_);
}

std::string LogFileName(Term term, std::uint64_t segment) {
  const std::string name = absl::StrCat(kLogPrefix, term.value());
  return segment == 0 ? name : absl::StrCat(name, ".", segment);
}

namespace {

struct LogFile {
  Term term;
  std::uint64_t segment = 0;
  std::string path;
};

// Oldest first.
absl::StatusOr<std::vector<LogFile>> ListLogs(Storage& storage, const std::string& model_dir) {
  std::vector<LogFile> logs;
  EK_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(model_dir));
  for (const std::string& name : names) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, kLogPrefix)) continue;
    const std::vector<std::string> numbers = absl::StrSplit(rest, '.');
    std::uint64_t term = 0, segment = 0;
    if (numbers.size() > 2 || !absl::SimpleAtoi(numbers[0], &term)) continue;
    if (numbers.size() == 2 && !absl::SimpleAtoi(numbers[1], &segment)) continue;
    logs.push_back({Term(term), segment, JoinPath(model_dir, name)});
  }
  std::sort(logs.begin(), logs.end(), [](const LogFile& a, const LogFile& b) {
    return std::pair(a.term, a.segment) < std::pair(b.term, b.segment);
  });
  return logs;
}

// Where the segment of this checkpoint begins; 0 where there is none: all are to be read.
absl::StatusOr<std::size_t> FindSegment(Storage& storage, const std::vector<LogFile>& logs, const Version& version) {
  for (std::size_t i = logs.size(); i-- > 0;) {
    if (logs[i].segment == 0) continue;
    EK_ASSIGN_OR_RETURN(const std::uint64_t size, storage.Size(logs[i].path));
    std::string head(static_cast<std::size_t>(std::min(size, kMaxSegmentHead)), '\0');
    EK_RETURN_IF_ERROR(storage.ReadAt(logs[i].path, 0, std::as_writable_bytes(std::span(head))));
    auto first = DecodeFirstRecord(AsBytes(head));
    if (!first.ok()) continue;  // a torn one
    const auto* segment = std::get_if<SegmentRecord>(&*first);
    if (segment != nullptr && segment->version == version) return i;
  }
  return std::size_t{0};
}

absl::StatusOr<LogHistory> ReadHistory(Storage& storage, const std::vector<LogFile>& logs, std::size_t begin) {
  LogHistory history;
  for (std::size_t i = begin; i < logs.size(); ++i) {
    EK_ASSIGN_OR_RETURN(const std::string bytes, storage.Read(logs[i].path));
    auto decoded = DecodeLog(AsBytes(bytes));
    if (!decoded.ok()) return Annotate(decoded.status(), logs[i].path);
    if (decoded->valid_bytes < bytes.size()) {
      LogInfo(absl::StrCat(logs[i].path, ": cut a torn record of ", bytes.size() - decoded->valid_bytes,
                           " bytes at its end"));
    }
    for (const LogRecord& record : decoded->records) history.Add(record);
  }
  if (!logs.empty()) history.last_term = std::max(history.last_term, logs.back().term);
  return history;
}

}  // namespace

absl::StatusOr<JobFolder> ReadJobFolder(Storage& storage, const std::string& model_dir) {
  EK_ASSIGN_OR_RETURN(const std::vector<LogFile> logs, ListLogs(storage, model_dir));
  JobFolder folder;
  CheckpointList list;
  auto listed = ListCheckpoints(storage, model_dir);
  if (listed.ok()) {
    list = *std::move(listed);
  } else if (!absl::IsNotFound(listed.status())) {
    return listed.status();
  }
  if (!list.damaged.empty()) {
    return absl::DataLossError(
        absl::StrCat(list.damaged.front(), "; remove that checkpoint's folder to resume from an earlier one"));
  }
  for (auto version = list.versions.rbegin(); version != list.versions.rend(); ++version) {
    EK_ASSIGN_OR_RETURN(const std::size_t begin, FindSegment(storage, logs, *version));
    EK_ASSIGN_OR_RETURN(folder.history, ReadHistory(storage, logs, begin));
    // A rollback may have left it behind while it was still being written; without a log there is nothing else.
    if (!logs.empty() && !folder.history.Survives(*version)) continue;
    auto reader = CheckpointReader::Open(storage, model_dir, *version);
    if (!reader.ok()) {
      return absl::Status(
          reader.status().code(),
          absl::StrCat(reader.status().message(), "; remove that checkpoint's folder to resume from an earlier one"));
    }
    folder.newest = reader->manifest();
    return folder;
  }
  EK_ASSIGN_OR_RETURN(folder.history, ReadHistory(storage, logs, 0));
  return folder;
}

absl::StatusOr<ClaimedTerm> ClaimTerm(Storage& storage, const std::string& model_dir, Term last) {
  Term term = last.Next();
  for (int attempt = 0; attempt < kClaimAttempts; ++attempt, term = term.Next()) {
    auto log = storage.Open(JoinPath(model_dir, absl::StrCat(kLogPrefix, term.value())), Storage::Create::kExclusive);
    if (log.ok()) return ClaimedTerm{term, *std::move(log)};
    if (!absl::IsAlreadyExists(log.status())) return log.status();
  }
  return absl::AbortedError(absl::StrCat("could not claim a term in ", model_dir, " in ", kClaimAttempts,
                                         " attempts: other chiefs keep starting there"));
}

}  // namespace evenkeel
