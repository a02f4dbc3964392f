#include "runtime/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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
    return absl::AlreadyExistsError(absl::StrCat(
        "model_dir ", model_dir, " is in use by another job's chief; give each job a model_dir of its own"));
  }
  return absl::InternalError(absl::StrCat("cannot lock ", path, ": ", strerror(error)));
}

ModelDirLock::~ModelDirLock() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<JobFolder> ReadJobFolder(Storage& storage, const std::string& model_dir) {
  JobFolder folder;
  EK_ASSIGN_OR_RETURN(const std::vector<LogFile> logs, ListLogFiles(storage, model_dir));
  std::vector<LogRecord> records;
  EK_RETURN_IF_ERROR(ReadLog(storage, model_dir, [&](const LogFile&, LogRecord record) {
    records.push_back(std::move(record));
    return absl::OkStatus();
  }));
  folder.history = SummarizeLog(records);
  if (!logs.empty()) folder.history.last_term = std::max(folder.history.last_term, logs.back().term);

  auto list = ListCheckpoints(storage, model_dir);
  if (absl::IsNotFound(list.status())) return folder;
  if (!list.ok()) return list.status();
  if (!list->damaged.empty()) {
    return absl::DataLossError(
        absl::StrCat(list->damaged.front(), "; remove that checkpoint's folder to resume from an earlier one"));
  }
  if (list->versions.empty()) return folder;
  auto reader = CheckpointReader::Open(storage, model_dir, list->versions.back());
  if (!reader.ok()) {
    return absl::Status(
        reader.status().code(),
        absl::StrCat(reader.status().message(), "; remove that checkpoint's folder to resume from an earlier one"));
  }
  folder.newest = reader->manifest();
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
