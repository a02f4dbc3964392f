#include "evenkeel/protocol/member_session.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/protocol/question.h"
#include "evenkeel/protocol/renewal.h"

namespace evenkeel {
namespace {

constexpr Duration kFirstDelay = std::chrono::milliseconds(50);
constexpr Duration kLongestDelay = std::chrono::seconds(2);

}  // namespace

struct MemberSession::State : std::enable_shared_from_this<State> {
  State(MemberSessionOptions o, Transport& t, const Clock& c, Callbacks cb)
      : options(std::move(o)),
        transport(t),
        clock(c),
        callbacks(std::move(cb)),
        backoff(kFirstDelay, kLongestDelay, options.join.nonce) {
    envelope.spec_hash = options.spec_hash;
    envelope.job_id = options.job_id;
  }

  // One attempt at a stream; late calls of an older one are ignored by its number.
  struct Handler : StreamHandler {
    Handler(std::weak_ptr<State> s, std::uint64_t a) : state(std::move(s)), attempt(a) {}
    void OnMessage(Stream&, Message message, const PayloadIn&) override {
      if (auto held = state.lock()) held->OnMessage(attempt, std::move(message));
    }
    void OnClosed(Stream&, const absl::Status& status) override {
      if (auto held = state.lock()) held->OnClosed(attempt, status);
    }
    std::weak_ptr<State> state;
    std::uint64_t attempt;
  };

  void Run();
  void Connect();
  void OnMessage(std::uint64_t from, Message message);
  void OnClosed(std::uint64_t from, const absl::Status& status);
  void OnSilence();
  void Lost(TimePoint since, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void End(const absl::Status& status);
  TimePoint NextWake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  Renew RenewNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Constant after construction.
  const MemberSessionOptions options;
  Transport& transport;
  const Clock& clock;
  const Callbacks callbacks;

  // Keeps callbacks one at a time, also across streams.
  Mutex callback_mutex;

  mutable Mutex mutex;
  CondVar changed;
  Backoff backoff ABSL_GUARDED_BY(mutex);
  Envelope envelope ABSL_GUARDED_BY(mutex);
  std::shared_ptr<Stream> stream ABSL_GUARDED_BY(mutex);
  std::uint64_t attempt ABSL_GUARDED_BY(mutex) = 0;
  bool welcomed ABSL_GUARDED_BY(mutex) = false;  // on this stream
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool leaving ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  std::optional<absl::Status> end_with ABSL_GUARDED_BY(mutex);
  Renewal renewal ABSL_GUARDED_BY(mutex);
  TimePoint next_attempt ABSL_GUARDED_BY(mutex) = kNever;
  TimePoint lost_since ABSL_GUARDED_BY(mutex) = kNever;
  TimePoint leave_deadline ABSL_GUARDED_BY(mutex) = kNever;
  bool said_waiting ABSL_GUARDED_BY(mutex) = false;
  std::string last_error ABSL_GUARDED_BY(mutex);
  std::string doing ABSL_GUARDED_BY(mutex) = "joining";
  TimePoint doing_since ABSL_GUARDED_BY(mutex);
  std::string data_paths ABSL_GUARDED_BY(mutex);
  std::int64_t memory_samples ABSL_GUARDED_BY(mutex) = 0;

  std::thread thread;
};

MemberSession::MemberSession(MemberSessionOptions options, Transport& transport, const Clock& clock,
                             Callbacks callbacks)
    : state_(std::make_shared<State>(std::move(options), transport, clock, std::move(callbacks))) {}

MemberSession::~MemberSession() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(state_->mutex);
    state_->stopping = true;
    state_->ended = true;
    ++state_->attempt;
    stream = std::exchange(state_->stream, nullptr);
    state_->changed.NotifyAll();
  }
  if (stream) stream->Close();
  if (state_->thread.joinable()) state_->thread.join();
  MutexLock wait_for_callback(state_->callback_mutex);
}

void MemberSession::Start() {
  {
    MutexLock lock(state_->mutex);
    state_->lost_since = state_->doing_since = state_->clock.Now();
    state_->next_attempt = state_->lost_since;
  }
  state_->thread = std::thread([state = state_] { state->Run(); });
}

bool MemberSession::Send(Body body) {
  std::shared_ptr<Stream> stream;
  Message message;
  {
    MutexLock lock(state_->mutex);
    if (!state_->stream || !state_->welcomed) return false;
    stream = state_->stream;
    message.envelope = state_->envelope;
  }
  message.body = std::move(body);
  return stream->Send(std::move(message)).ok();
}

void MemberSession::SetState(const std::string& doing) {
  MutexLock lock(state_->mutex);
  if (state_->doing == doing) return;
  state_->doing = doing;
  state_->doing_since = state_->clock.Now();
}

void MemberSession::SetDataPaths(const std::string& data_paths) {
  Renew renew;
  {
    MutexLock lock(state_->mutex);
    state_->data_paths = data_paths;
    renew = state_->RenewNow();
  }
  (void)Send(std::move(renew));  // else the next one tells
}

void MemberSession::SetMemorySamples(std::int64_t samples) {
  MutexLock lock(state_->mutex);
  state_->memory_samples = samples;
}

void MemberSession::Leave(const std::string& reason, Duration grace) {
  {
    MutexLock lock(state_->mutex);
    state_->leaving = true;
    state_->leave_deadline = state_->clock.Now() + grace;
    state_->changed.NotifyAll();
  }
  if (Send(evenkeel::Leave{reason})) return;
  MutexLock lock(state_->mutex);
  state_->end_with = absl::OkStatus();
  state_->changed.NotifyAll();
}

Envelope MemberSession::envelope() const {
  MutexLock lock(state_->mutex);
  return state_->envelope;
}

Renew MemberSession::State::RenewNow() const {
  return {doing, (clock.Now() - doing_since) / std::chrono::milliseconds(1), data_paths, memory_samples};
}

TimePoint MemberSession::State::NextWake() const {
  TimePoint next = std::min({renewal.next(), next_attempt, leave_deadline});
  if (lost_since != kNever) next = std::min(next, lost_since + options.chief_timeout);
  return next;
}

// Renewals, attempts and deadlines, on one thread.
void MemberSession::State::Run() {
  for (;;) {
    std::shared_ptr<Stream> renew_on;
    Message renew;
    bool connect = false, silent = false;
    std::optional<absl::Status> end;
    {
      MutexLock lock(mutex);
      while (!stopping && !end_with && clock.Now() < NextWake()) changed.WaitUntil(mutex, NextWake());
      if (stopping) return;
      const TimePoint now = clock.Now();
      if (end_with) {
        end = end_with;
      } else if (leave_deadline <= now) {
        end = absl::OkStatus();
      } else if (lost_since != kNever && lost_since + options.chief_timeout <= now) {
        end = absl::DeadlineExceededError(absl::StrFormat(
            "waited %.1f s for the chief at %s to %s%s", ToSeconds(now - lost_since), options.chief_address,
            envelope.sender == Incarnation{} ? "answer" : "come back", last_error.empty() ? "" : ": " + last_error));
      } else if (next_attempt <= now) {
        next_attempt = kNever;
        connect = true;
      } else if (renewal.next() <= now) {
        silent = !renewal.Due(now);
        renew_on = silent ? nullptr : stream;
        renew.envelope = envelope;
        renew.body = RenewNow();
      }
    }
    if (end) return End(*end);
    if (connect) Connect();
    if (silent) OnSilence();
    // A stream that refuses the message is closing; OnClosed follows and reconnects.
    if (renew_on) (void)renew_on->Send(std::move(renew));
  }
}

void MemberSession::State::Connect() {
  std::uint64_t number;
  Message message;
  std::shared_ptr<Stream> older;
  {
    MutexLock lock(mutex);
    number = ++attempt;
    welcomed = false;
    renewal.End();
    message.envelope = envelope;
    older = std::exchange(stream, nullptr);
  }
  if (older) older->Close();
  auto handler = std::make_shared<Handler>(weak_from_this(), number);
  std::shared_ptr<Stream> fresh =
      transport.Connect(Service::kChief, options.chief_address, handler, options.connect_timeout);
  message.body = options.join;
  {
    MutexLock lock(mutex);
    if (attempt == number) stream = fresh;
  }
  (void)fresh->Send(std::move(message));  // OnClosed tells when it fails
}

void MemberSession::State::OnMessage(std::uint64_t from, Message message) {
  MutexLock one_at_a_time(callback_mutex);
  bool deliver = !std::holds_alternative<Renewed>(message.body);
  std::string say;
  std::shared_ptr<Stream> answer_on;
  Message answer;
  {
    MutexLock lock(mutex);
    if (from != attempt || ended) return;
    if (message.envelope.term < envelope.term) return;
    // A newer term is spoken only once it has said who this member is: its numbers are its own.
    const bool same_term = message.envelope.term == envelope.term;
    if (same_term || std::holds_alternative<Welcome>(message.body)) {
      envelope.term = message.envelope.term;
      // A generation numbers its layouts by a log that may have lost the end of the one before.
      std::tie(envelope.generation, envelope.layout) =
          std::max(std::pair(envelope.generation, envelope.layout),
                   std::pair(message.envelope.generation, message.envelope.layout));
      if (!same_term) envelope.membership_epoch = MembershipEpoch{};
      envelope.membership_epoch = std::max(envelope.membership_epoch, message.envelope.membership_epoch);
    }
    if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
      envelope.job_id = welcome->job_id;
      envelope.sender = welcome->incarnation;
      renewal.Begin(*welcome, clock.Now());
      welcomed = true;
      changed.NotifyAll();
    }
    // The chief is there, whatever it says.
    lost_since = kNever;
    renewal.Heard(clock.Now());
    said_waiting = false;
    if (!std::holds_alternative<Refuse>(message.body)) backoff.Reset();
    if (std::holds_alternative<JobEnd>(message.body)) {
      if (!end_with) end_with = absl::OkStatus();  // the stream is closed after the answer
      changed.NotifyAll();
      answer_on = stream;
      answer = Message{envelope, evenkeel::Leave{"the job has ended"}};
    }
    if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
      if (refuse->reason == RefuseReason::kRetry) {
        if (last_error != refuse->message) say = absl::StrCat("the chief says not yet: ", refuse->message);
        last_error = refuse->message;
        next_attempt = clock.Now() + backoff.Next();
      } else {
        const std::string text = absl::StrCat("the chief at ", options.chief_address, " refused (",
                                              ToString(refuse->reason), "): ", refuse->message);
        if (refuse->reason == RefuseReason::kStaleIncarnation) {
          end_with = absl::FailedPreconditionError(text);
        } else if (refuse->reason == RefuseReason::kMalformed) {
          end_with = absl::InvalidArgumentError(text);
        } else {
          end_with = absl::PermissionDeniedError(text);
        }
      }
      deliver = false;
      changed.NotifyAll();
    }
  }
  if (!say.empty()) LogInfo(say);
  if (answer_on) (void)answer_on->Send(std::move(answer));  // where that fails, OnClosed follows
  if (deliver) callbacks.on_message(std::move(message));
}

void MemberSession::State::OnClosed(std::uint64_t from, const absl::Status& status) {
  MutexLock lock(mutex);
  if (from != attempt || ended) return;
  stream.reset();
  if (!leaving && !end_with && absl::IsUnimplemented(status) && envelope.sender == Incarnation{}) {
    end_with = NoAnswer(options.chief_address, status);  // no chief will ever be there
  }
  Lost(clock.Now(), status.ok() ? "it closed the stream" : std::string(status.message()));
}

// Its stream is open, but nobody answers there.
void MemberSession::State::OnSilence() {
  std::shared_ptr<Stream> silent;
  {
    MutexLock lock(mutex);
    if (ended || !stream) return;
    ++attempt;
    silent = std::exchange(stream, nullptr);
    Lost(renewal.heard(), absl::StrFormat("it has not answered for %.1f s", ToSeconds(clock.Now() - renewal.heard())));
  }
  silent->Close();
}

// The stream is gone, and the chief since then.
void MemberSession::State::Lost(TimePoint since, const std::string& why) {
  welcomed = false;
  renewal.End();
  changed.NotifyAll();
  if (end_with) return;
  if (leaving) {
    end_with = absl::OkStatus();
    return;
  }
  const TimePoint now = clock.Now();
  if (lost_since == kNever) lost_since = since;
  last_error = why;
  next_attempt = now + backoff.Next();
  if (std::exchange(said_waiting, true)) return;
  LogInfo(absl::StrFormat("waiting for the chief at %s, at most %.1f s (%s)", options.chief_address,
                          ToSeconds(lost_since + options.chief_timeout - now), why));
}

void MemberSession::State::End(const absl::Status& status) {
  MutexLock one_at_a_time(callback_mutex);
  std::shared_ptr<Stream> last;
  {
    MutexLock lock(mutex);
    if (std::exchange(ended, true)) return;
    ++attempt;
    last = std::exchange(stream, nullptr);
  }
  if (last) last->Close();
  callbacks.on_end(status);
}

}  // namespace evenkeel
