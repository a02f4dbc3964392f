#include "notice_file.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"

namespace evenkeel::apps {
namespace {

// Where inotify is not to be had.
constexpr int kLookAgainMs = 1000;
// For a writer that has opened the file and not written its line yet.
constexpr int kWritingMs = 200;
constexpr std::size_t kLongestLine = 200;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line.substr(0, kLongestLine);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NoticeFile>> NoticeFile::Start(const std::string& path,
                                                              std::function<void(const std::string&)> on_notice) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  const std::string folder = absolute.parent_path().string();
  if (error || access(folder.c_str(), R_OK | X_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--notice-file ", path, ": the folder ", folder,
                                                   " cannot be read: ", error ? error.message() : strerror(errno)));
  }
  std::unique_ptr<NoticeFile> file(new NoticeFile(absolute.string(), std::move(on_notice)));
  file->stop_ = eventfd(0, EFD_CLOEXEC);
  if (file->stop_ < 0) return absl::InternalError(absl::StrCat("[notice] eventfd: ", strerror(errno)));
  file->watch_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (file->watch_ >= 0 &&
      inotify_add_watch(file->watch_, folder.c_str(), IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
    close(std::exchange(file->watch_, -1));
  }
  if (file->watch_ < 0) {
    LogInfo(absl::StrCat("inotify is not to be had for ", folder, ": the notice file is looked for every ",
                         kLookAgainMs, " ms"));
  }
  file->thread_ = std::thread([f = file.get()] { f->Run(); });
  return file;
}

NoticeFile::NoticeFile(std::string path, std::function<void(const std::string&)> on_notice)
    : path_(std::move(path)), on_notice_(std::move(on_notice)) {}

NoticeFile::~NoticeFile() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    if (write(stop_, &one, sizeof one) != sizeof one) LogWarning("[notice] the watch cannot be ended");
    thread_.join();
  }
  for (int descriptor : {watch_, stop_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

// False once this object is to end.
bool NoticeFile::AwaitChange(int timeout_ms) {
  pollfd waits[] = {{stop_, POLLIN, 0}, {watch_, POLLIN, 0}};  // a negative descriptor is ignored
  if (poll(waits, 2, timeout_ms) < 0 && errno != EINTR) return false;
  if (waits[0].revents != 0) return false;
  if (waits[1].revents != 0) {
    char events[4096];
    while (read(watch_, events, sizeof events) > 0) {
    }
  }
  return true;
}

void NoticeFile::Run() {
  while (!Exists(path_)) {
    if (!AwaitChange(watch_ >= 0 ? -1 : kLookAgainMs)) return;
  }
  std::string line = FirstLine(path_);
  if (line.empty()) {
    if (!AwaitChange(kWritingMs)) return;
    line = FirstLine(path_);
  }
  on_notice_(absl::StrCat("notice file ", path_, " appeared", line.empty() ? "" : ": ", line));
}

}  // namespace evenkeel::apps
