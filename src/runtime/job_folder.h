// What a model_dir says about its job, and the claim on it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/chief/chief.h"
#include "evenkeel/core/storage.h"

namespace evenkeel {

// An advisory lock on MODEL_DIR/chief.lock; the kernel lets go when the process ends, however it ends.
class ModelDirLock {
 public:
  // Errors: kFailedPrecondition when another process holds it.
  static absl::StatusOr<ModelDirLock> Take(const std::string& model_dir);
  ModelDirLock(ModelDirLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ModelDirLock& operator=(ModelDirLock&&) = delete;
  ~ModelDirLock();

 private:
  explicit ModelDirLock(int fd) : fd_(fd) {}
  int fd_;
};

struct JobFolder {
  LogHistory history;              // from the segment on that was begun for `newest`
  std::optional<Manifest> newest;  // the newest checkpoint, checked to the last byte
};
// Errors: kDataLoss names the damaged log or checkpoint and what to do.
absl::StatusOr<JobFolder> ReadJobFolder(Storage& storage, const std::string& model_dir);

struct ClaimedTerm {
  Term term;
  std::unique_ptr<WritableFile> log;
};
// Creates chief.wal.TERM exclusively for the lowest term above `last`.
absl::StatusOr<ClaimedTerm> ClaimTerm(Storage& storage, const std::string& model_dir, Term last);

}  // namespace evenkeel
