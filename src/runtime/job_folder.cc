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
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr absl::string_view kLogPrefix = "chief.wal.";
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
  std::vector<std::pair<std::uint64_t, std::string>> logs;
  EK_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(model_dir));
  for (const std::string& name : names) {
    absl::string_view term = name;
    std::uint64_t number = 0;
    if (absl::ConsumePrefix(&term, kLogPrefix) && absl::SimpleAtoi(term, &number)) logs.emplace_back(number, name);
  }
  std::sort(logs.begin(), logs.end());
  std::vector<LogRecord> records;
  for (const auto& [term, name] : logs) {
    const std::string path = JoinPath(model_dir, name);
    EK_ASSIGN_OR_RETURN(const std::string bytes, storage.Read(path));
    auto decoded = DecodeLog(AsBytes(bytes));
    if (!decoded.ok()) return Annotate(decoded.status(), path);
    if (decoded->valid_bytes < bytes.size()) {
      LogInfo(absl::StrCat(path, ": cut a torn record of ", bytes.size() - decoded->valid_bytes, " bytes at its end"));
    }
    std::move(decoded->records.begin(), decoded->records.end(), std::back_inserter(records));
  }
  folder.history = SummarizeLog(records);
  if (!logs.empty()) folder.history.last_term = std::max(folder.history.last_term, Term(logs.back().first));

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
    auto log = storage.Open(JoinPath(model_dir, absl::StrCat(kLogPrefix, term.value())), Storage::Create::kExclusive);
    if (log.ok()) return ClaimedTerm{term, *std::move(log)};
    if (!absl::IsAlreadyExists(log.status())) return log.status();
  }
  return absl::AbortedError(absl::StrCat("could not claim a term in ", model_dir, " in ", kClaimAttempts,
                                         " attempts: other chiefs keep starting there"));
}

}  // namespace evenkeel
