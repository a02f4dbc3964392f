#include "evenkeel/protocol/question.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

constexpr Duration kFirstDelay = std::chrono::milliseconds(50);
constexpr Duration kLongestDelay = std::chrono::seconds(2);
constexpr Duration kLongestTry = std::chrono::seconds(5);
constexpr char kParameterServerMethod[] = "here is /evenkeel.v1.ParameterServer/";

// Outlives the call where the transport still holds it.
struct Exchange : StreamHandler {
  void OnMessage(Stream&, Message message, const PayloadIn&) override {
    MutexLock lock(mutex);
    if (!answer) answer = std::move(message.body);
    changed.NotifyAll();
  }
  void OnClosed(Stream&, const absl::Status& status) override {
    MutexLock lock(mutex);
    closed = status;
    changed.NotifyAll();
  }
  void Stop() {
    MutexLock lock(mutex);
    stopped = true;
    changed.NotifyAll();
  }
  Mutex mutex;
  CondVar changed;
  std::optional<Body> answer ABSL_GUARDED_BY(mutex);
  std::optional<absl::Status> closed ABSL_GUARDED_BY(mutex);
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

absl::Status Stopped(StopSource& stop) { return absl::CancelledError(stop.reason()); }

// Until `until`, or a stop.
void Pause(const Clock& clock, StopSource& stop, TimePoint until) {
  Exchange pause;
  const int subscription = stop.Subscribe([&pause] { pause.Stop(); });
  {
    MutexLock lock(pause.mutex);
    while (!pause.stopped && clock.Now() < until) pause.changed.WaitUntil(pause.mutex, until);
  }
  stop.Unsubscribe(subscription);
}

}  // namespace

absl::Status NoAnswer(const std::string& address, const absl::Status& closed) {
  if (!absl::IsUnimplemented(closed)) {
    return absl::UnavailableError(
        absl::StrCat("the chief at ", address, " does not answer", closed.ok() ? "" : ": ", closed.message()));
  }
  // A listener of ours that is no chief says what it is.
  const bool server = closed.message().find(kParameterServerMethod) != absl::string_view::npos;
  return absl::InvalidArgumentError(absl::StrCat(address, " is ",
                                                 server ? "a parameter server (evenkeel-ps)" : "another program",
                                                 ", not a chief: give the address at which evenkeel-chief listens"));
}

namespace {

// One question; `cause` says why nobody answered, without naming the chief.
absl::StatusOr<Body> Try(const Body& question, const std::string& address, Transport& transport, const Clock& clock,
                         StopSource& stop, Duration timeout, std::string& cause) {
  const TimePoint deadline = clock.Now() + timeout;
  auto exchange = std::make_shared<Exchange>();
  const std::shared_ptr<Stream> stream = transport.Connect(Service::kChief, address, exchange, timeout);
  const int subscription = stop.Subscribe([&exchange] { exchange->Stop(); });
  (void)stream->Send(Message{{}, question});  // a stream that fails ends in OnClosed
  std::optional<Body> answer;
  std::optional<absl::Status> closed;
  bool stopped = false;
  {
    MutexLock lock(exchange->mutex);
    while (!exchange->answer && !exchange->closed && !exchange->stopped && clock.Now() < deadline) {
      exchange->changed.WaitUntil(exchange->mutex, deadline);
    }
    answer = std::move(exchange->answer);
    closed = exchange->closed;
    stopped = exchange->stopped;
  }
  stop.Unsubscribe(subscription);
  stream->Close();
  if (answer) {
    const auto* refuse = std::get_if<Refuse>(&*answer);
    if (refuse == nullptr) return *std::move(answer);
    return absl::PermissionDeniedError(
        absl::StrCat("the chief at ", address, " refused (", ToString(refuse->reason), "): ", refuse->message));
  }
  if (stopped) return Stopped(stop);
  if (closed) {
    cause = closed->ok() ? "it closed the stream" : std::string(closed->message());
    return NoAnswer(address, *closed);
  }
  cause = absl::StrFormat("nobody answered within %.1f s", ToSeconds(timeout));
  return absl::DeadlineExceededError(
      absl::StrFormat("waited %.1f s for the chief at %s to answer", ToSeconds(timeout), address));
}

}  // namespace

absl::StatusOr<Body> Ask(const Body& question, const std::string& address, Transport& transport, const Clock& clock,
                         StopSource& stop, Duration timeout) {
  std::string cause;
  return Try(question, address, transport, clock, stop, timeout, cause);
}

absl::StatusOr<Body> AskUntilAnswered(const Body& question, const std::string& address, Transport& transport,
                                      const Clock& clock, StopSource& stop, Duration timeout) {
  const TimePoint deadline = clock.Now() + timeout;
  Backoff backoff(kFirstDelay, kLongestDelay, RandomNonce());
  std::string why;
  for (bool said = false;; said = true) {
    const Duration left = deadline - clock.Now();
    if (left <= Duration::zero() && !why.empty()) {
      return absl::DeadlineExceededError(
          absl::StrFormat("waited %.1f s for the chief at %s to answer: %s", ToSeconds(timeout), address, why));
    }
    std::string cause;
    absl::StatusOr<Body> answer =
        Try(question, address, transport, clock, stop, std::clamp<Duration>(left, Milliseconds(1), kLongestTry), cause);
    if (!absl::IsUnavailable(answer.status()) && !absl::IsDeadlineExceeded(answer.status())) return answer;
    // The last attempt may have too little time to tell why.
    if (why.empty() || left >= kLongestTry) why = std::move(cause);
    if (!said) {
      LogInfo(absl::StrFormat("waiting for the chief at %s, at most %.1f s (%s)", address, ToSeconds(timeout), why));
    }
    Pause(clock, stop, std::min(deadline, clock.Now() + backoff.Next()));
    if (stop.requested()) return Stopped(stop);
  }
}

}  // namespace evenkeel
