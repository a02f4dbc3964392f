#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"

namespace evenkeel {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EISDIR:
    case ESPIPE:
    case ENAMETOOLONG:
      return absl::StatusCode::kInvalidArgument;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status Failed(const char* operation, const std::string& path, int error) {
  std::string reason = std::error_code(error, std::generic_category()).message();
  return absl::Status(CodeOf(error), absl::StrCat("[", operation, "] ", path, ": ", reason));
}

// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  // Closes and reports what close() says. Linux frees the descriptor also on EINTR.
  int Close() { return ::close(std::exchange(fd_, -1)) != 0 && errno != EINTR ? errno : 0; }

 private:
  int fd_;
};

absl::StatusOr<Descriptor> OpenAt(const char* operation, const std::string& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return Failed(operation, path, errno);
  return Descriptor(fd);
}

absl::Status SyncDescriptor(const char* operation, const std::string& path, int fd) {
  while (::fsync(fd) != 0) {
    if (errno != EINTR) return Failed(operation, path, errno);
  }
  return absl::OkStatus();
}

absl::Status WriteAll(const char* operation, const std::string& path, int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return Failed(operation, path, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return absl::OkStatus();
}

// Reads until `out` is full or the file ends; the number of bytes read.
absl::StatusOr<std::size_t> ReadFull(const std::string& path, int fd, std::uint64_t offset, std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    ssize_t got = ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      return Failed("read", path, errno);
    }
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

absl::StatusOr<std::uint64_t> RegularFileSize(const char* operation, const std::string& path, int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return Failed(operation, path, errno);
  if (S_ISDIR(info.st_mode)) return Failed(operation, path, EISDIR);
  return static_cast<std::uint64_t>(info.st_size);
}

std::string ParentOf(const std::string& path) {
  std::size_t end = path.find_last_not_of('/');
  std::size_t slash = end == std::string::npos ? std::string::npos : path.rfind('/', end);
  if (slash == std::string::npos) return path.starts_with('/') ? "/" : ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, Descriptor descriptor)
      : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  absl::Status Append(std::span<const std::byte> bytes) override {
    return WriteAll("append", path_, descriptor_.get(), bytes);
  }

  absl::Status Sync() override { return SyncDescriptor("sync", path_, descriptor_.get()); }

  absl::Status Close() override {
    if (descriptor_.get() < 0) return absl::OkStatus();
    int error = descriptor_.Close();
    return error == 0 ? absl::OkStatus() : Failed("close", path_, error);
  }

 private:
  const std::string path_;
  Descriptor descriptor_;
};

class PosixStorage final : public Storage {
 public:
  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max_bytes) const override {
    EK_ASSIGN_OR_RETURN(Descriptor descriptor, OpenAt("read", path, O_RDONLY));
    EK_ASSIGN_OR_RETURN(std::uint64_t size, RegularFileSize("read", path, descriptor.get()));
    std::string contents;
    // One byte more than expected shows the end of the file; files of /proc say that they are empty.
    std::uint64_t room = size + 1;
    for (;;) {
      if (contents.size() > max_bytes || room - 1 > max_bytes) return TooLarge(path, max_bytes);
      std::size_t before = contents.size();
      contents.resize(room);
      EK_ASSIGN_OR_RETURN(std::size_t got, ReadFull(path, descriptor.get(), before,
                                                    std::as_writable_bytes(std::span<char>(contents).subspan(before))));
      contents.resize(before + got);
      if (contents.size() > max_bytes) return TooLarge(path, max_bytes);
      if (contents.size() < room) return contents;
      room = std::min(room * 2, std::max(max_bytes, room) + 1);
    }
  }

  absl::Status ReadAt(const std::string& path, std::uint64_t offset, std::span<std::byte> out) const override {
    EK_ASSIGN_OR_RETURN(Descriptor descriptor, OpenAt("read", path, O_RDONLY));
    EK_ASSIGN_OR_RETURN(std::size_t got, ReadFull(path, descriptor.get(), offset, out));
    if (got < out.size()) {
      return absl::OutOfRangeError(absl::StrCat("[read] ", path, ": ends at byte ", offset + got, ", wanted bytes ",
                                                offset, " to ", offset + out.size()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::uint64_t> Size(const std::string& path) const override {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return Failed("size", path, errno);
    return static_cast<std::uint64_t>(info.st_size);
  }

  bool Exists(const std::string& path) const override {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0;
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) const override {
    std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
    if (stream == nullptr) return Failed("list", folder, errno);
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(stream.get());
      if (entry == nullptr) break;
      std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) return Failed("list", folder, errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Open(const std::string& path, Create mode) override {
    int flags = O_WRONLY | O_CREAT | O_APPEND;
    if (mode == Create::kTruncate) flags |= O_TRUNC;
    if (mode == Create::kExclusive) flags |= O_EXCL;
    EK_ASSIGN_OR_RETURN(Descriptor descriptor, OpenAt("open", path, flags));
    return std::make_unique<PosixWritableFile>(path, std::move(descriptor));
  }

  absl::Status WriteAtomic(const std::string& path, std::span<const std::byte> bytes) override {
    // Unique within the machine, so that two processes never share a half-written file.
    static std::atomic<std::uint64_t> count{0};
    const std::string temporary = absl::StrCat(path, ".tmp.", ::getpid(), ".", count.fetch_add(1));
    absl::Status status = WriteNew(temporary, bytes);
    if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = Failed("rename", path, errno);
    if (!status.ok()) {
      ::unlink(temporary.c_str());
      return status;
    }
    return SyncFolder(ParentOf(path));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return Failed("rename", absl::StrCat(from, " to ", to), errno);
    EK_RETURN_IF_ERROR(SyncFolder(ParentOf(to)));
    return ParentOf(from) == ParentOf(to) ? absl::OkStatus() : SyncFolder(ParentOf(from));
  }

  absl::Status Truncate(const std::string& path, std::uint64_t size) override {
    if (::truncate(path.c_str(), static_cast<off_t>(size)) != 0) return Failed("truncate", path, errno);
    return absl::OkStatus();
  }

  absl::Status MakeFolder(const std::string& folder) override {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return Failed("make folder", folder, error.value());
    if (!std::filesystem::is_directory(folder, error)) return Failed("make folder", folder, ENOTDIR);
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return Failed("remove", path, errno);
    return absl::OkStatus();
  }

  absl::Status RemoveFolder(const std::string& folder) override {
    std::error_code error;
    std::filesystem::file_status type = std::filesystem::symlink_status(folder, error);
    if (!std::filesystem::exists(type)) return Failed("remove folder", folder, error ? error.value() : ENOENT);
    if (!std::filesystem::is_directory(type)) return Failed("remove folder", folder, ENOTDIR);
    std::filesystem::remove_all(folder, error);
    if (error) return Failed("remove folder", folder, error.value());
    return absl::OkStatus();
  }

  absl::Status SyncFolder(const std::string& folder) override {
    EK_ASSIGN_OR_RETURN(Descriptor descriptor, OpenAt("sync folder", folder, O_RDONLY | O_DIRECTORY));
    absl::Status status = SyncDescriptor("sync folder", folder, descriptor.get());
    // Some network file systems cannot sync a folder; their renames are as durable as they get.
    return errno == EINVAL && !status.ok() ? absl::OkStatus() : status;
  }

 private:
  static absl::Status TooLarge(const std::string& path, std::uint64_t max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("[read] ", path, ": larger than ", max_bytes, " bytes"));
  }

  static absl::Status WriteNew(const std::string& path, std::span<const std::byte> bytes) {
    EK_ASSIGN_OR_RETURN(Descriptor descriptor, OpenAt("write", path, O_WRONLY | O_CREAT | O_EXCL));
    EK_RETURN_IF_ERROR(WriteAll("write", path, descriptor.get(), bytes));
    EK_RETURN_IF_ERROR(SyncDescriptor("sync", path, descriptor.get()));
    int error = descriptor.Close();
    return error == 0 ? absl::OkStatus() : Failed("close", path, error);
  }
};

}  // namespace

Storage& Storage::Posix() {
  static PosixStorage storage;
  return storage;
}

}  // namespace evenkeel
