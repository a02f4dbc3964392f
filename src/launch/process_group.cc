#include "evenkeel/launch/process_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "evenkeel/core/status.h"

extern char** environ;

namespace evenkeel {
namespace {

constexpr std::streamoff kTailBytes = 16 << 10;

// Everything a child needs, made before the fork: between fork and exec of a threaded parent only system calls are
// safe.
struct Launch {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  int log = -1;
  int pass = -1;
  int report = -1;  // errno of what failed goes here; closes on exec
  pid_t parent = 0;
};

[[noreturn]] void RunChild(const Launch& launch) {
  auto fail = [&launch] {
    const int error = errno;
    (void)!write(launch.report, &error, sizeof error);
    _exit(127);
  };
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGINT, SIGTERM, SIGPIPE, SIGHUP, SIGCHLD}) std::signal(signal, SIG_DFL);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail();
  if (getppid() != launch.parent) _exit(127);  // it died before the line above
  setpgid(0, 0);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0) fail();
  if (launch.log >= 0 && (dup2(launch.log, STDOUT_FILENO) < 0 || dup2(launch.log, STDERR_FILENO) < 0)) fail();
  if (launch.pass == kChildDescriptor) {
    if (fcntl(launch.pass, F_SETFD, 0) != 0) fail();
  } else if (launch.pass >= 0 && dup2(launch.pass, kChildDescriptor) < 0) {
    fail();
  }
  execve(launch.arguments[0], launch.arguments.data(), launch.environment.data());
  fail();
  _exit(127);
}

std::vector<std::string> MergedEnvironment(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const absl::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(changes.begin(), changes.end(), [&](const auto& c) { return c.first == name; });
    if (!replaced) merged.emplace_back(text);
  }
  for (const auto& [name, value] : changes) merged.push_back(absl::StrCat(name, "=", value));
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status FileError(int error, absl::string_view what) {
  return absl::Status(absl::ErrnoToStatus(error, "").code(), absl::StrCat(what, ": ", strerror(error)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// One that does not take the place that a child gives to another.
int Above(int fd) {
  if (fd < 0 || fd > kChildDescriptor) return fd;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, kChildDescriptor + 1);
  close(fd);
  return moved;
}

}  // namespace

std::string ProcessExit::ToString() const {
  if (!signalled) return absl::StrCat("exit code ", value);
  const char* name = strsignal(value);
  return absl::StrCat("signal ", value, " (", name != nullptr ? name : "unknown", ")");
}

absl::StatusOr<ProcessGroup> ProcessGroup::Create() {
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return FileError(errno, "eventfd");
  return ProcessGroup(wake);
}

ProcessGroup::ProcessGroup(ProcessGroup&& other) noexcept
    : entries_(std::move(other.entries_)),
      descriptors_(std::move(other.descriptors_)),
      unreported_(std::move(other.unreported_)),
      wake_(std::exchange(other.wake_, -1)) {
  other.entries_.clear();
  other.descriptors_.clear();
}

ProcessGroup::~ProcessGroup() {
  Kill();
  if (wake_ >= 0) close(wake_);
}

absl::StatusOr<ProcessGroup::Started> ProcessGroup::Launched(const ProcessSpec& spec) {
  std::vector<std::string> command = spec.command;
  std::vector<std::string> environment = MergedEnvironment(spec.environment);
  if (command.empty()) return absl::InvalidArgumentError(absl::StrCat(spec.name, ": no program to start"));
  Descriptor log(
      spec.log_file.empty() ? -1 : Above(open(spec.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)));
  if (!spec.log_file.empty() && log.get() < 0) return FileError(errno, spec.log_file);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return FileError(errno, "pipe");
  Descriptor report_in(ends[0]), report_out(Above(ends[1]));

  Launch launch;
  launch.arguments = Pointers(command);
  launch.environment = Pointers(environment);
  launch.log = log.get();
  launch.pass = spec.pass_descriptor;
  launch.report = report_out.get();
  launch.parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return FileError(errno, absl::StrCat("cannot start ", spec.name));
  if (pid == 0) RunChild(launch);
  report_out.Close();
  int error = 0;
  ssize_t got;
  do {
    got = read(report_in.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error) {
    waitpid(pid, nullptr, 0);
    return FileError(error, absl::StrCat("cannot start ", spec.name, " (", command[0], ")"));
  }
  const int watch = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (watch < 0) {
    const int no_watch = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return FileError(no_watch, "pidfd_open");
  }
  fcntl(watch, F_SETFD, FD_CLOEXEC);
  return Started{Entry{spec.name, spec.log_file, pid, std::nullopt}, watch};
}

absl::StatusOr<int> ProcessGroup::Start(const ProcessSpec& spec) {
  EK_ASSIGN_OR_RETURN(Started started, Launched(spec));
  entries_.push_back(std::move(started.entry));
  descriptors_.push_back(started.descriptor);
  return static_cast<int>(entries_.size()) - 1;
}

absl::Status ProcessGroup::StartAgain(int process, const ProcessSpec& spec) {
  EK_CHECK(!running(process));
  EK_ASSIGN_OR_RETURN(Started started, Launched(spec));
  const auto place = static_cast<std::size_t>(process);
  entries_[place] = std::move(started.entry);
  descriptors_[place] = started.descriptor;
  return absl::OkStatus();
}

int ProcessGroup::running_count() const {
  return static_cast<int>(
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& e) { return !e.exit.has_value(); }));
}

bool ProcessGroup::Reap(std::size_t process) {
  const pid_t pid = entries_[process].pid;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return false;
  kill(-pid, SIGKILL);  // what it left behind; until it is reaped the number is still its own
  waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
  const bool signalled = info.si_code != CLD_EXITED;
  entries_[process].exit = ProcessExit{signalled, info.si_status};
  close(std::exchange(descriptors_[process], -1));
  unreported_.push_back(static_cast<int>(process));
  return true;
}

std::vector<int> ProcessGroup::Wait(TimePoint deadline) {
  for (;;) {
    if (!unreported_.empty()) return std::exchange(unreported_, {});
    std::vector<pollfd> watched{{wake_, POLLIN, 0}};
    std::vector<std::size_t> processes{0};
    for (std::size_t i = 0; i < descriptors_.size(); ++i) {
      if (descriptors_[i] < 0) continue;
      watched.push_back({descriptors_[i], POLLIN, 0});
      processes.push_back(i);
    }
    int timeout_ms = -1;
    if (deadline != kNever) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now()).count();
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
    }
    const int ready = poll(watched.data(), watched.size(), timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    for (std::size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents != 0) Reap(processes[i]);
    }
    if (!unreported_.empty()) continue;
    if (watched[0].revents != 0) {
      std::uint64_t count;
      (void)!read(wake_, &count, sizeof count);
      return {};
    }
    if (ready <= 0) return {};
  }
}

void ProcessGroup::Wake() {
  const std::uint64_t one = 1;
  (void)!write(wake_, &one, sizeof one);
}

void ProcessGroup::Signal(int process, int signal) {
  const Entry& entry = entries_[static_cast<std::size_t>(process)];
  if (!entry.exit) kill(entry.pid, signal);  // not reaped: the number is still this process's
}

void ProcessGroup::KillTree(int process) {
  const Entry& entry = entries_[static_cast<std::size_t>(process)];
  if (entry.exit) return;
  kill(-entry.pid, SIGKILL);
  kill(entry.pid, SIGKILL);
}

std::vector<int> ProcessGroup::Stop(Duration grace) {
  const TimePoint until = Clock::Real().Now() + grace;
  for (std::size_t i = 0; i < entries_.size(); ++i) Signal(static_cast<int>(i), SIGTERM);
  std::vector<int> ended = std::exchange(unreported_, {});
  while (running_count() > 0 && Clock::Real().Now() < until) {
    const std::vector<int> now = Wait(until);
    ended.insert(ended.end(), now.begin(), now.end());
  }
  std::vector<int> killed;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].exit) killed.push_back(static_cast<int>(i));
  }
  Kill();
  unreported_.insert(unreported_.begin(), ended.begin(), ended.end());
  return killed;
}

void ProcessGroup::Kill() {
  for (std::size_t i = 0; i < entries_.size(); ++i) KillTree(static_cast<int>(i));
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    while (!entries_[i].exit) {
      pollfd watched{descriptors_[i], POLLIN, 0};
      (void)poll(&watched, 1, -1);
      Reap(i);
    }
  }
}

namespace {

// The last line that says " E " after its date and time, as logs of ours do.
std::string LastError(const std::string& text) {
  constexpr std::size_t kTimeBytes = 23;
  std::string found;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.size() > kTimeBytes && absl::StartsWith(line.substr(kTimeBytes), " E ")) found = std::string(line);
  }
  return found;
}

}  // namespace

std::string LastLines(const std::string& path, int lines, std::int64_t from) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || lines < 1) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff begin = std::max<std::streamoff>(std::min<std::streamoff>(from, size), size - kTailBytes);
  std::string text(static_cast<std::size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), size - begin);
  text.resize(static_cast<std::size_t>(file.gcount()));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::size_t at = text.size();
  for (int i = 0; i < lines && at != std::string::npos && at > 0; ++i) at = text.rfind('\n', at - 1);
  if (at == 0 || at == std::string::npos) return text;
  const std::string tail = text.substr(at + 1);
  const std::string error = LastError(text);
  return error.empty() || absl::StrContains(tail, error) ? tail : absl::StrCat(error, "\n", tail);
}

}  // namespace evenkeel
