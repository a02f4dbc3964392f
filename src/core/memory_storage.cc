#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"

namespace evenkeel {
namespace {

// Shared between the table and an open file: the file may outlive its name.
struct Contents {
  Mutex mutex;
  std::string bytes ABSL_GUARDED_BY(mutex);
};
using ContentsPtr = std::shared_ptr<Contents>;

absl::Status NotFound(const char* operation, const std::string& path) {
  return absl::NotFoundError(absl::StrCat("[", operation, "] ", path, ": no such file or folder"));
}

// Without doubled and closing slashes and "." parts, so that one file has one name.
std::string Normal(const std::string& path) {
  std::string normal = path.starts_with('/') ? "/" : "";
  std::size_t begin = 0;
  while (begin < path.size()) {
    std::size_t end = std::min(path.find('/', begin), path.size());
    std::string_view part = std::string_view(path).substr(begin, end - begin);
    if (!part.empty() && part != ".") {
      if (!normal.empty() && normal != "/") normal += '/';
      normal += part;
    }
    begin = end + 1;
  }
  return normal;
}

std::string ParentOf(const std::string& normal) {
  std::size_t slash = normal.rfind('/');
  if (slash == std::string::npos) return "";
  return slash == 0 ? "/" : normal.substr(0, slash);
}

bool IsRoot(const std::string& normal) { return normal.empty() || normal == "/"; }

bool IsInside(const std::string& normal, const std::string& folder) {
  if (folder.empty()) return !normal.starts_with('/');
  if (folder == "/") return normal.size() > 1 && normal.starts_with('/');
  return normal.size() > folder.size() && normal.starts_with(folder) && normal[folder.size()] == '/';
}

class MemoryWritableFile final : public WritableFile {
 public:
  explicit MemoryWritableFile(ContentsPtr contents) : contents_(std::move(contents)) {}

  absl::Status Append(std::span<const std::byte> bytes) override {
    MutexLock lock(contents_->mutex);
    contents_->bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  const ContentsPtr contents_;
};

class MemoryStorage final : public Storage {
 public:
  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max_bytes) const override {
    EK_ASSIGN_OR_RETURN(ContentsPtr contents, Find("read", path));
    MutexLock lock(contents->mutex);
    if (contents->bytes.size() > max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("[read] ", path, ": larger than ", max_bytes, " bytes"));
    }
    return contents->bytes;
  }

  absl::Status ReadAt(const std::string& path, std::uint64_t offset, std::span<std::byte> out) const override {
    EK_ASSIGN_OR_RETURN(ContentsPtr contents, Find("read", path));
    MutexLock lock(contents->mutex);
    const std::uint64_t size = contents->bytes.size();
    if (offset > size || out.size() > size - offset) {
      return absl::OutOfRangeError(absl::StrCat("[read] ", path, ": ends at byte ", size, ", wanted bytes ", offset,
                                                " to ", offset + out.size()));
    }
    if (!out.empty()) std::memcpy(out.data(), contents->bytes.data() + offset, out.size());
    return absl::OkStatus();
  }

  absl::StatusOr<std::uint64_t> Size(const std::string& path) const override {
    EK_ASSIGN_OR_RETURN(ContentsPtr contents, Find("size", path));
    MutexLock lock(contents->mutex);
    return contents->bytes.size();
  }

  bool Exists(const std::string& path) const override {
    const std::string normal = Normal(path);
    MutexLock lock(mutex_);
    return files_.contains(normal) || IsFolder(normal);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) const override {
    const std::string normal = Normal(folder);
    MutexLock lock(mutex_);
    if (!IsFolder(normal)) return NotFound("list", folder);
    std::set<std::string> names;
    auto add = [&](const std::string& path) {
      if (!IsRoot(path) && IsInside(path, normal) && ParentOf(path) == normal) {
        names.insert(path.substr(path.rfind('/') + 1));
      }
    };
    for (const auto& [path, contents] : files_) add(path);
    for (const std::string& path : folders_) add(path);
    return std::vector<std::string>(names.begin(), names.end());
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Open(const std::string& path, Create mode) override {
    const std::string normal = Normal(path);
    MutexLock lock(mutex_);
    EK_RETURN_IF_ERROR(CheckPlace("open", path, normal));
    ContentsPtr& contents = files_[normal];
    if (contents != nullptr && mode == Create::kExclusive) {
      return absl::AlreadyExistsError(absl::StrCat("[open] ", path, ": file exists"));
    }
    if (contents == nullptr) contents = std::make_shared<Contents>();
    if (mode == Create::kTruncate) {
      MutexLock contents_lock(contents->mutex);
      contents->bytes.clear();
    }
    return std::make_unique<MemoryWritableFile>(contents);
  }

  absl::Status WriteAtomic(const std::string& path, std::span<const std::byte> bytes) override {
    auto contents = std::make_shared<Contents>();
    {
      MutexLock contents_lock(contents->mutex);
      contents->bytes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    const std::string normal = Normal(path);
    MutexLock lock(mutex_);
    EK_RETURN_IF_ERROR(CheckPlace("write", path, normal));
    files_[normal] = std::move(contents);
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    const std::string source = Normal(from);
    const std::string target = Normal(to);
    MutexLock lock(mutex_);
    if (source == target) return absl::OkStatus();
    EK_RETURN_IF_ERROR(CheckParent("rename", to, target));
    if (auto file = files_.find(source); file != files_.end()) {
      EK_RETURN_IF_ERROR(CheckPlace("rename", to, target));
      ContentsPtr contents = std::move(file->second);
      files_.erase(file);
      files_[target] = std::move(contents);
      return absl::OkStatus();
    }
    if (!folders_.contains(source)) return NotFound("rename", from);
    return RenameFolder(source, target, to);
  }

  absl::Status Truncate(const std::string& path, std::uint64_t size) override {
    EK_ASSIGN_OR_RETURN(ContentsPtr contents, Find("truncate", path));
    MutexLock lock(contents->mutex);
    contents->bytes.resize(size);
    return absl::OkStatus();
  }

  absl::Status MakeFolder(const std::string& folder) override {
    MutexLock lock(mutex_);
    std::vector<std::string> missing;
    for (std::string path = Normal(folder); !IsRoot(path); path = ParentOf(path)) {
      if (files_.contains(path)) {
        return absl::AlreadyExistsError(absl::StrCat("[make folder] ", folder, ": ", path, " is a file"));
      }
      missing.push_back(path);
    }
    folders_.insert(missing.begin(), missing.end());
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    MutexLock lock(mutex_);
    if (files_.erase(Normal(path)) == 0) return NotFound("remove", path);
    return absl::OkStatus();
  }

  absl::Status RemoveFolder(const std::string& folder) override {
    const std::string normal = Normal(folder);
    MutexLock lock(mutex_);
    if (!folders_.contains(normal)) return NotFound("remove folder", folder);
    std::erase_if(files_, [&](const auto& file) { return IsInside(file.first, normal); });
    std::erase_if(folders_, [&](const std::string& path) { return path == normal || IsInside(path, normal); });
    return absl::OkStatus();
  }

  absl::Status SyncFolder(const std::string& folder) override {
    MutexLock lock(mutex_);
    return IsFolder(Normal(folder)) ? absl::OkStatus() : NotFound("sync folder", folder);
  }

 private:
  bool IsFolder(const std::string& normal) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return IsRoot(normal) || folders_.contains(normal);
  }

  absl::StatusOr<ContentsPtr> Find(const char* operation, const std::string& path) const {
    MutexLock lock(mutex_);
    auto file = files_.find(Normal(path));
    if (file == files_.end()) return NotFound(operation, path);
    return file->second;
  }

  absl::Status CheckParent(const char* operation, const std::string& path, const std::string& normal) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return IsFolder(ParentOf(normal)) ? absl::OkStatus() : NotFound(operation, path);
  }

  // A file may stand at `normal`.
  absl::Status CheckPlace(const char* operation, const std::string& path, const std::string& normal) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    EK_RETURN_IF_ERROR(CheckParent(operation, path, normal));
    if (IsFolder(normal)) return absl::InternalError(absl::StrCat("[", operation, "] ", path, ": is a folder"));
    return absl::OkStatus();
  }

  absl::Status RenameFolder(const std::string& source, const std::string& target, const std::string& to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto inside_target = [&](const auto& path) { return IsInside(path, target); };
    if (files_.contains(target) || std::any_of(folders_.begin(), folders_.end(), inside_target) ||
        std::any_of(files_.begin(), files_.end(), [&](const auto& file) { return inside_target(file.first); })) {
      return absl::AlreadyExistsError(absl::StrCat("[rename] ", to, ": exists and is not an empty folder"));
    }
    if (IsInside(target, source)) return absl::InternalError(absl::StrCat("[rename] ", to, ": is inside the source"));
    auto moved = [&](const std::string& path) { return target + path.substr(source.size()); };
    std::map<std::string, ContentsPtr> files;
    for (auto& [path, contents] : files_) {
      files.emplace(IsInside(path, source) ? moved(path) : path, std::move(contents));
    }
    std::set<std::string> folders;
    for (const std::string& path : folders_) {
      folders.insert(path == source || IsInside(path, source) ? moved(path) : path);
    }
    files_ = std::move(files);
    folders_ = std::move(folders);
    return absl::OkStatus();
  }

  mutable Mutex mutex_;
  std::map<std::string, ContentsPtr> files_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> folders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Storage> MakeMemoryStorage() { return std::make_unique<MemoryStorage>(); }

}  // namespace evenkeel
