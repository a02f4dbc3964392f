#include "evenkeel/core/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
constexpr std::int64_t kMaxBytes = std::int64_t{256} << 20;
constexpr Duration kFlushInterval = std::chrono::seconds(1);

absl::Status FileError(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("[timeline] ", path, ": ", std::strerror(errno)));
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return escaped;
}

// Whole lines in one call, so that processes that append to one file do not cut each other's.
bool Append(int file, std::string_view text) {
  return write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Never destroyed: threads may write while the process exits.
class Timeline {
 public:
  static Timeline& Global() {
    static Timeline* global = new Timeline();
    return *global;
  }

  bool on() const { return on_.load(std::memory_order_relaxed); }

  absl::Status Start(const std::string& path, std::string_view process) {
    bool fresh = true;
    int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0 && errno == EEXIST) {
      fresh = false;
      file = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    }
    if (file < 0) return FileError(path);
    MutexLock lock(mutex_);
    EK_CHECK(file_ < 0);
    file_ = file;
    path_ = path;
    // By the name, so that a process that was started again goes on where it was.
    number_ = static_cast<std::uint32_t>(HashName(process)) & 0x7fffffff;
    const Clock& clock = Clock::Real();
    begin_ = last_flush_ = clock.Now();
    begin_us_ = std::chrono::duration<double, std::micro>(clock.WallNow().time_since_epoch()).count();
    if (fresh) buffer_ = "[\n";
    absl::StrAppendFormat(&buffer_, R"({"name":"process_name","ph":"M","pid":%d,"args":{"name":"%s"}},%s)", number_,
                          Escaped(process), "\n");
    Flush();
    on_ = true;
    return absl::OkStatus();
  }

  void End() {
    MutexLock lock(mutex_);
    on_ = false;
    if (file_ < 0) return;
    Flush();
    close(file_);
    file_ = -1;
  }

  void Add(std::string_view track, std::string_view name, TimePoint begin, const std::string& rest) {
    MutexLock lock(mutex_);
    if (file_ < 0) return;
    auto known = tracks_.find(track);
    if (known == tracks_.end()) {
      known = tracks_.emplace(std::string(track), static_cast<int>(tracks_.size()) + 1).first;
      absl::StrAppendFormat(&buffer_, R"({"name":"thread_name","ph":"M","pid":%d,"tid":%d,"args":{"name":"%s"}},%s)",
                            number_, known->second, Escaped(track), "\n");
    }
    absl::StrAppendFormat(&buffer_, R"({"name":"%s","pid":%d,"tid":%d,"ts":%.3f,%s},%s)", Escaped(name), number_,
                          known->second, begin_us_ + Microseconds(begin - begin_), rest, "\n");
    const TimePoint now = Clock::Real().Now();
    if (buffer_.size() >= kBufferBytes || now - last_flush_ >= kFlushInterval) {
      last_flush_ = now;
      Flush();
    }
  }

  static double Microseconds(Duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

 private:
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    written_ += static_cast<std::int64_t>(buffer_.size());
    const bool wrote = Append(file_, buffer_);
    buffer_.clear();
    if (wrote && written_ < kMaxBytes) return;
    LogWarning(wrote ? absl::StrCat("the timeline ends here: this process has written ", written_, " bytes to ", path_)
                     : absl::StrCat("the timeline ends here: ", FileError(path_).message()));
    on_ = false;
    close(file_);
    file_ = -1;
  }

  std::atomic<bool> on_ = false;
  Mutex mutex_;
  int file_ ABSL_GUARDED_BY(mutex_) = -1;
  std::string path_ ABSL_GUARDED_BY(mutex_);
  std::uint32_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  TimePoint begin_ ABSL_GUARDED_BY(mutex_), last_flush_ ABSL_GUARDED_BY(mutex_);
  double begin_us_ ABSL_GUARDED_BY(mutex_) = 0;  // the wall's time then
  std::map<std::string, int, std::less<>> tracks_ ABSL_GUARDED_BY(mutex_);
  std::string buffer_ ABSL_GUARDED_BY(mutex_);
  std::int64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

absl::Status StartTimeline(const std::string& path, std::string_view process) {
  return Timeline::Global().Start(path, process);
}

void EndTimeline() { Timeline::Global().End(); }

bool TimelineOn() { return Timeline::Global().on(); }

void TimelineSpan(std::string_view track, std::string_view name, TimePoint begin, TimePoint end) {
  if (!TimelineOn()) return;
  Timeline::Global().Add(track, name, begin,
                         absl::StrFormat(R"("ph":"X","dur":%.3f)", Timeline::Microseconds(end - begin)));
}

void TimelineMark(std::string_view track, std::string_view name, TimePoint at) {
  if (TimelineOn()) Timeline::Global().Add(track, name, at, R"("ph":"i","s":"t")");
}

absl::Status BeginTimelineFile(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return FileError(path);
  const bool wrote = Append(file, "[\n");
  close(file);
  return wrote ? absl::OkStatus() : FileError(path);
}

absl::Status EndTimelineFile(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file < 0) return FileError(path);
  const bool wrote = Append(file, R"({"name":"end","ph":"M","pid":0,"args":{}}]
)");
  close(file);
  return wrote ? absl::OkStatus() : FileError(path);
}

}  // namespace evenkeel
