// Leaving in good order, and joining again as a new incarnation after a fence.
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "worker/worker_impl.h"

namespace evenkeel::worker_internal {
namespace {

// Of a worker that is fenced again and again and commits nothing in between.
constexpr int kMaxFruitlessLives = 8;
constexpr Duration kFirstRejoinDelay = std::chrono::milliseconds(100);
constexpr Duration kLongestRejoinDelay = std::chrono::seconds(5);
// The share of membership.drain in which an update may be finished; the rest is for the goodbye.
constexpr double kFinishingShare = 0.75;

}  // namespace

// --- leaving --------------------------------------------------------------------------------------------------------

// The update in progress is finished where that fits the grace time; what would take longer is given back at once, so
// that nobody waits for it.
void Worker::BeginToLeave(const std::string& reason) {
  TimePoint give_back_at;
  {
    MutexLock lock(mutex_);
    if (stop_asked_) return;
    stop_asked_ = true;
    leave_reason_ = reason;
    const TimePoint now = clock_.Now();
    const double grace = ToSeconds(options_.experiment.membership.drain) * kFinishingShare;
    const double left = step_began_ == kNever ? 0 : step_seconds_ - ToSeconds(now - step_began_);
    give_back_at = leave_by_ = left > grace ? now : now + FromSeconds(grace);
    NotifyLoop();
  }
  departure_.Begin(give_back_at);
}

// The order's, else the stop's own.
std::string Worker::LeaveReason() {
  {
    MutexLock lock(mutex_);
    if (!leave_reason_.empty()) return leave_reason_;
  }
  return stop_.reason();
}

std::shared_ptr<MemberSession> Worker::Session() {
  MutexLock lock(mutex_);
  return session_;
}

void Worker::Announce() {
  const auto session = Session();
  if (session && session->Send(Leave{LeaveReason(), true})) return;
  MutexLock lock(mutex_);
  nothing_binds_ = true;  // without a stream; the next Welcome brings this up again
  NotifyLoop();
}

void Worker::GiveBack() {
  {
    MutexLock lock(mutex_);
    if (current_) {
      LogInfo(absl::StrCat("giving back ", ToString(*current_), ": it takes longer than the time to leave"));
    }
    Supersede();
    nothing_binds_ = true;
    NotifyLoop();
  }
  const Duration rest = FromSeconds(ToSeconds(options_.experiment.membership.drain) * (1 - kFinishingShare));
  if (auto session = Session()) session->Leave(LeaveReason(), rest);
}

absl::Status Worker::LeaveInOrder() {
  const std::string reason = LeaveReason();
  LogInfo(absl::StrCat("leaving: ", reason));
  DropComing();
  for (auto& link : links_)
    link->stream->Close();  // servers hear of the leave from the chief; their refusals say nothing new
  session_->Leave(reason, options_.experiment.membership.drain);
  const absl::Status status =
      WaitFor("the chief's goodbye", clock_.Now() + options_.experiment.membership.drain, [] { return false; });
  if (options_.on_left) options_.on_left();
  return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
}

// --- lives ----------------------------------------------------------------------------------------------------------

// From joining to the end of this incarnation.
absl::Status Worker::Live() {
  absl::Status status = Connect();
  if (status.ok()) status = Loop();
  if (!status.ok()) return status;
  {
    MutexLock lock(mutex_);
    if (end_) return *end_;
  }
  return LeaveInOrder();
}

// A fenced incarnation is over for good, whatever it still sends; the process joins again as a new one.
bool Worker::MayLiveAgain(const absl::Status& end) {
  if (!absl::IsFailedPrecondition(end)) return false;
  bool committed = false;
  {
    MutexLock lock(mutex_);
    if (stop_asked_) return false;
    committed = committed_;
  }
  fruitless_lives_ = committed ? 0 : fruitless_lives_ + 1;
  if (committed || !rejoin_backoff_) rejoin_backoff_.emplace(kFirstRejoinDelay, kLongestRejoinDelay, RandomNonce());
  return fruitless_lives_ <= kMaxFruitlessLives;
}

// Model, data and memory stay; nothing else of the old life does.
void Worker::BeginNewLife() {
  const Envelope last = session_->envelope();
  if (last.sender != Incarnation{}) former_ = last.sender;
  job_id_ = last.job_id;
  links_.clear();
  DropComing();
  std::shared_ptr<MemberSession> old;
  {
    MutexLock lock(mutex_);
    old = std::exchange(session_, nullptr);
  }
  old.reset();  // its last callback is over
  requested_.reset();
  MutexLock lock(mutex_);
  end_.reset();
  welcome_.reset();
  ready_due_ = renewed_ = committed_ = false;
  servers_moved_ = false;
  waits_for_.clear();
  bound_.reset();
  ahead_.reset();
  current_.reset();
  outcome_.reset();
  staging_ = Staging{};
  rest_in_doubt_ = true;  // another incarnation's
  missing_.clear();
  asked_ahead_.reset();
  for (auto* due : {&restage_at_, &pull_at_}) due->assign(due->size(), kNever);
  const TimePoint until = fruitless_lives_ <= 1 ? clock_.Now() : clock_.Now() + rejoin_backoff_->Next();
  while (!stop_asked_ && clock_.Now() < until) changed_.WaitUntil(mutex_, until);
}

absl::Status Worker::Run() {
  EK_RETURN_IF_ERROR(OpenModel());
  const int subscription = stop_.Subscribe([this] { BeginToLeave(""); });
  absl::Status status = Live();
  while (MayLiveAgain(status)) {
    LogWarning(absl::StrCat(status.message(), "; joining again as a new incarnation"));
    BeginNewLife();
    status = Live();
  }
  stop_.Unsubscribe(subscription);
  MutexLock lock(mutex_);
  // Fenced while it left: what it held went back all the same.
  return stop_asked_ && absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
}

}  // namespace evenkeel::worker_internal
