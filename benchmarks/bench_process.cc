#include "bench_process.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"

namespace evenkeel::bench {
namespace {

constexpr std::uint32_t kLargestMessage = 64 << 20;
constexpr Duration kLeaveTime = std::chrono::seconds(5);
// A message's first byte, from a process to its starter.
constexpr char kAnswer = '+';
constexpr char kError = '-';

TimePoint Now() { return Clock::Real().Now(); }

// The starter's ends of all lines: a new process must not hold those of the others, whose end they would not see.
std::set<int>& StarterEnds() {
  static std::set<int> ends;
  return ends;
}

}  // namespace

Line::~Line() { close(fd_); }

absl::Status Line::Await(short events, TimePoint deadline) const {
  for (;;) {
    int wait_ms = -1;
    if (deadline != kNever) {
      const Duration left = deadline - Now();
      if (left <= Duration::zero()) return absl::DeadlineExceededError(absl::StrCat(peer_, " did not answer in time"));
      wait_ms = static_cast<int>(
          std::min<std::int64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1, 3'600'000));
    }
    pollfd waiting{.fd = fd_, .events = events, .revents = 0};
    const int ready = poll(&waiting, 1, wait_ms);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::UnavailableError(absl::StrCat(peer_, ": ", std::strerror(errno)));
  }
}

absl::Status Line::Send(std::string_view message, TimePoint deadline) {
  const auto length = static_cast<std::uint32_t>(message.size());
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += message;
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    EK_RETURN_IF_ERROR(Await(POLLOUT, deadline));
    const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return absl::UnavailableError(absl::StrCat(peer_, " is gone"));
    if (n > 0) sent += static_cast<std::size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status Line::ReadAll(char* out, std::size_t bytes, TimePoint deadline) {
  while (bytes > 0) {
    EK_RETURN_IF_ERROR(Await(POLLIN, deadline));
    const ssize_t n = recv(fd_, out, bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      return absl::UnavailableError(absl::StrCat(peer_, " is gone"));
    }
    if (n < 0) continue;
    out += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Line::Receive(TimePoint deadline) {
  std::uint32_t length = 0;
  EK_RETURN_IF_ERROR(ReadAll(reinterpret_cast<char*>(&length), sizeof(length), deadline));
  if (length > kLargestMessage) return absl::DataLossError(absl::StrCat(peer_, " announces ", length, " bytes"));
  std::string message(length, '\0');
  EK_RETURN_IF_ERROR(ReadAll(message.data(), message.size(), deadline));
  return message;
}

void Line::StopReceiving() { shutdown(fd_, SHUT_RD); }

Process::Process(std::string name, pid_t pid, std::unique_ptr<Line> line)
    : name_(std::move(name)), pid_(pid), line_(std::move(line)) {}

absl::StatusOr<std::unique_ptr<Process>> Process::Start(std::string name, std::function<absl::Status(Line&)> body) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::InternalError(absl::StrCat("no line for ", name, ": ", std::strerror(errno)));
  }
  std::fflush(nullptr);
  const pid_t starter = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    close(ends[0]);
    close(ends[1]);
    return absl::InternalError(absl::StrCat("cannot start ", name, ": ", std::strerror(errno)));
  }
  if (pid > 0) {
    close(ends[1]);
    StarterEnds().insert(ends[0]);
    return std::unique_ptr<Process>(new Process(name, pid, std::make_unique<Line>(ends[0], name)));
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != starter) _exit(1);
  close(ends[0]);
  for (int other : StarterEnds()) close(other);
  InitLog(name, LogLevel::kWarning);
  int code = 0;
  {
    Line line(ends[1], "the benchmark");
    const absl::Status status = body(line);
    if (!status.ok()) {
      code = static_cast<int>(ExitCodeFor(status));
      (void)line.Send(kError + std::string(status.message()), Now() + kLeaveTime);
    }
  }
  std::fflush(nullptr);
  _exit(code);  // what the starter would do at its exit is not ours to do
}

Process::~Process() {
  StarterEnds().erase(line_->fd());
  line_.reset();
  const TimePoint deadline = Now() + kLeaveTime;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (Now() > deadline) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      return;
    }
    poll(nullptr, 0, 1);
  }
}

absl::StatusOr<std::string> Process::Receive(TimePoint deadline) {
  const absl::StatusOr<std::string> message = line_->Receive(deadline);
  if (!message.ok()) return message.status();
  if (!message->empty() && message->front() == kAnswer) return message->substr(1);
  return absl::InternalError(absl::StrCat(name_, ": ", message->empty() ? "sent nothing" : message->substr(1)));
}

absl::Status ServeBursts(Line& line, Duration timeout,
                         const std::function<absl::StatusOr<std::vector<double>>(const Burst&)>& run) {
  EK_RETURN_IF_ERROR(line.Send(std::string(1, kAnswer), Now() + timeout));  // it is ready
  for (;;) {
    const absl::StatusOr<std::string> order = line.Receive(kNever);  // the starter's death ends this process
    if (!order.ok()) return absl::OkStatus();
    Burst burst;
    EK_CHECK(order->size() == sizeof(burst));
    std::memcpy(&burst, order->data(), sizeof(burst));
    EK_ASSIGN_OR_RETURN(const std::vector<double> times, run(burst));
    std::string answer(1, kAnswer);
    answer.append(reinterpret_cast<const char*>(times.data()), times.size() * sizeof(double));
    EK_RETURN_IF_ERROR(line.Send(answer, Now() + timeout));
  }
}

absl::StatusOr<std::vector<double>> RunBurst(const std::vector<std::unique_ptr<Process>>& workers, const Burst& burst,
                                             Duration timeout) {
  const TimePoint deadline = Now() + timeout;
  const std::string_view order(reinterpret_cast<const char*>(&burst), sizeof(burst));
  for (const auto& worker : workers) EK_RETURN_IF_ERROR(worker->Send(order, deadline));
  std::vector<double> longest(burst.rounds, 0.0);
  for (const auto& worker : workers) {
    EK_ASSIGN_OR_RETURN(const std::string answer, worker->Receive(deadline));
    std::vector<double> times(answer.size() / sizeof(double));
    std::memcpy(times.data(), answer.data(), times.size() * sizeof(double));
    EK_CHECK(times.size() == longest.size());
    for (std::size_t i = 0; i < times.size(); ++i) longest[i] = std::max(longest[i], times[i]);
  }
  return longest;
}

}  // namespace evenkeel::bench
