#include "runtime/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/commit_log.h"

namespace evenkeel {
namespace {

constexpr int kClaimAttempts = 64;

}  // namespace

absl::StatusOr<ModelDirLock> ModelDirLock::Take(const std::string& model_dir) {
  const std::string path = JoinPath(model_dir, "chief.lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::InvalidArgumentError(absl::StrCat("model_dir: cannot write ", path, ": ", strerror(errno)));
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return ModelDirLock(fd);
  const int error = errno;
  close(fd);
  if (error == EWOULDBLOCK) {
    return absl::FailedPreconditionError(absl::StrCat("model_dir ", model_dir,
                                                      " is in use by a chief that runs (it holds ", path,
                                                      "); give each job a model_dir of its own"));
  }
  return absl::InternalError(absl::StrCat("cannot lock ", path, ": ", strerror(error)));
}

ModelDirLock::~ModelDirLock() {
  if (fd_ >= 0) close(fd_);
}

namespace {

// Where the segment of this checkpoint begins; 0 where there is none: all are to be read.
std::size_t FindSegment(const Storage& storage, const std::string& model_dir, const std::vector<LogFile>& logs,
                        const Version& version) {
  for (std::size_t i = logs.size(); i-- > 0;) {
    if (logs[i].segment == 0) continue;
    auto first = ReadFirstRecord(storage, model_dir, logs[i]);
    if (!first.ok()) continue;  // a torn one; what is damaged is found when all of it is read
    const auto* segment = std::get_if<SegmentRecord>(&*first);
    if (segment != nullptr && segment->version == version) return i;
  }
  return 0;
}

absl::StatusOr<LogHistory> ReadHistory(const Storage& storage, const std::string& model_dir,
                                       const std::vector<LogFile>& logs, std::size_t begin) {
  LogHistory history;
  EK_RETURN_IF_ERROR(ReadLogFiles(storage, model_dir, std::span(logs).subspan(begin),
                                  [&history](const LogFile&, const LogRecord& record) {
                                    history.Add(record);
                                    return absl::OkStatus();
                                  }));
  if (!logs.empty()) history.last_term = std::max(history.last_term, logs.back().term);
  return history;
}

}  // namespace

absl::StatusOr<JobFolder> ReadJobFolder(Storage& storage, const std::string& model_dir) {
  EK_ASSIGN_OR_RETURN(const std::vector<LogFile> logs, ListLogFiles(storage, model_dir));
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
    const std::size_t begin = FindSegment(storage, model_dir, logs, *version);
    EK_ASSIGN_OR_RETURN(folder.history, ReadHistory(storage, model_dir, logs, begin));
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
  EK_ASSIGN_OR_RETURN(folder.history, ReadHistory(storage, model_dir, logs, 0));
  return folder;
}

absl::StatusOr<ClaimedTerm> ClaimTerm(Storage& storage, const std::string& model_dir, Term last) {
  Term term = last.Next();
  for (int attempt = 0; attempt < kClaimAttempts; ++attempt, term = term.Next()) {
    auto log = storage.Open(JoinPath(model_dir, LogFileName(term)), Storage::Create::kExclusive);
    if (log.ok()) return ClaimedTerm{term, *std::move(log)};
    if (!absl::IsAlreadyExists(log.status())) return log.status();
  }
  return absl::AbortedError(absl::StrCat("could not claim a term in ", model_dir, " in ", kClaimAttempts,
                                         " attempts: other chiefs keep starting there"));
}

}  // namespace evenkeel
