// Files behind an interface, so that the simulator can tear and lose writes. Paths are absolute or relative to the
// process's directory; '/' separates.
//
// Threading: thread-safe; two writers of one path are the caller's fault.
// Errors: kNotFound, kAlreadyExists, kPermissionDenied, kResourceExhausted (disk full), kInternal; each names the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace evenkeel {

// An open file for writing at its end. Closes on destruction, without sync.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(std::span<const std::byte> bytes) = 0;
  // Returns once everything appended is durable.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;

  // Whole contents; kResourceExhausted above max_bytes.
  virtual absl::StatusOr<std::string> Read(const std::string& path,
                                           std::uint64_t max_bytes = std::uint64_t{1} << 40) const = 0;
  // `length` bytes from `offset` into out; kOutOfRange when the file is shorter.
  virtual absl::Status ReadAt(const std::string& path, std::uint64_t offset, std::span<std::byte> out) const = 0;
  virtual absl::StatusOr<std::uint64_t> Size(const std::string& path) const = 0;
  virtual bool Exists(const std::string& path) const = 0;
  // Names (not paths) in a folder, sorted. kNotFound when there is none.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) const = 0;

  enum class Create { kTruncate, kAppend, kExclusive };  // kExclusive: kAlreadyExists when the file is there
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Open(const std::string& path, Create mode) = 0;
  // Writes to a temporary name, syncs, renames over `path`, syncs the folder: all or nothing.
  virtual absl::Status WriteAtomic(const std::string& path, std::span<const std::byte> bytes) = 0;
  // Renames within one file system, then syncs the folder.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Truncate(const std::string& path, std::uint64_t size) = 0;
  // Makes the folder and its parents. Ok when it exists.
  virtual absl::Status MakeFolder(const std::string& folder) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  virtual absl::Status RemoveFolder(const std::string& folder) = 0;  // with its contents
  virtual absl::Status SyncFolder(const std::string& folder) = 0;

  // The machine's file systems.
  static Storage& Posix();
};

// In memory; for tests.
std::unique_ptr<Storage> MakeMemoryStorage();

// "folder/name"; `name` alone when it is absolute or there is no folder.
std::string JoinPath(std::string_view folder, std::string_view name);

}  // namespace evenkeel
