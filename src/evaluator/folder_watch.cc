#include "evaluator/folder_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "evenkeel/core/status.h"

namespace evenkeel {

FolderWatch::FolderWatch()
    : inotify_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  EK_CHECK_MSG(wake_ >= 0, "eventfd: no file descriptors left");
}

FolderWatch::~FolderWatch() {
  if (inotify_ >= 0) ::close(inotify_);
  ::close(wake_);
}

void FolderWatch::Add(const std::string& folder) {
  // Failure is no loss: the caller looks round anyway.
  if (inotify_ >= 0) ::inotify_add_watch(inotify_, folder.c_str(), IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
}

void FolderWatch::Wait(Duration limit) {
  std::array<pollfd, 2> files = {pollfd{wake_, POLLIN, 0}, pollfd{inotify_, POLLIN, 0}};
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  ::poll(files.data(), files.size(), static_cast<int>(std::clamp<std::int64_t>(milliseconds, 0, 60'000)));
  std::array<char, 4096> events;
  while (inotify_ >= 0 && ::read(inotify_, events.data(), events.size()) > 0) {
  }
  std::uint64_t count = 0;
  while (::read(wake_, &count, sizeof(count)) > 0) {
  }
}

void FolderWatch::Wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));  // fails only where it is set already
}

}  // namespace evenkeel
