#include "evenkeel/protocol/member_session.h"

#include <catch2/catch.hpp>

#include "unit/runtime/scripted_job.h"

namespace evenkeel {
namespace {

// A session whose chief is the test.
class Member {
 public:
  explicit Member(Duration chief_timeout = std::chrono::seconds(60)) {
    listener_ = *transport_->Listen(Service::kChief, "chief", [this](std::shared_ptr<Stream> stream) {
      auto inbox = std::make_shared<Inbox>();
      MutexLock lock(mutex_);
      streams_.push_back({std::move(stream), inbox});
      changed_.NotifyAll();
      return inbox;
    });
    MemberSessionOptions options;
    options.chief_address = "chief";
    options.spec_hash = kSpec;
    options.join.name = "worker:0";
    options.join.nonce = 7;
    options.chief_timeout = chief_timeout;
    session_.emplace(std::move(options), *transport_, Clock::Real(),
                     MemberSession::Callbacks{[this](Message message) { OnMessage(message); },
                                              [this](const absl::Status& status) { OnEnd(status); }});
    session_->Start();
  }

  // The n-th stream, with its Join.
  void Await(std::size_t n) {
    {
      MutexLock lock(mutex_);
      while (streams_.size() < n) WaitOr("the member did not connect");
      to_member_ = streams_[n - 1].first;
      from_member_ = streams_[n - 1].second;
    }
    CHECK(from_member_->NextBody<Join>().nonce == 7);
  }
  void Tell(Body body) { REQUIRE(to_member_->Send({Job::FromChief(), std::move(body)}).ok()); }
  void TellWelcome(std::int64_t lease_ms) {
    Tell(Welcome{.incarnation = Incarnation(10), .job_id = kJob, .lease_ms = lease_ms, .renew_ms = 20});
  }
  absl::Status AwaitEnd() {
    MutexLock lock(mutex_);
    while (!end_) WaitOr("the session did not end");
    return *end_;
  }
  int delivered() {
    MutexLock lock(mutex_);
    return delivered_;
  }

  std::shared_ptr<Inbox> from_member_;

 private:
  void WaitOr(const char* what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!changed_.WaitUntil(mutex_, Clock::Real().Now() + std::chrono::seconds(30))) FAIL(what);
  }
  void OnMessage(const Message&) {
    MutexLock lock(mutex_);
    ++delivered_;
  }
  void OnEnd(const absl::Status& status) {
    MutexLock lock(mutex_);
    end_ = status;
    changed_.NotifyAll();
  }

  std::unique_ptr<Transport> transport_ = MakeInprocTransport();
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::pair<std::shared_ptr<Stream>, std::shared_ptr<Inbox>>> streams_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  int delivered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Stream> to_member_;
  std::unique_ptr<Listener> listener_;
  std::optional<MemberSession> session_;
};

TEST_CASE("a member whose chief says nothing on an open stream joins it again", "[protocol]") {
  Member member;
  member.Await(1);
  member.TellWelcome(/*lease_ms=*/100);
  member.from_member_->Next<Renew>();
  const std::shared_ptr<Inbox> silent = member.from_member_;
  member.Await(2);
  silent->AwaitClosed();
  member.TellWelcome(/*lease_ms=*/10000);
  member.Tell(JobEnd{true, "finished", ""});
  CHECK(member.AwaitEnd().ok());
}

TEST_CASE("a chief that never speaks again is given up after chief_timeout, and the wait is told as it was",
          "[protocol]") {
  Member member(std::chrono::milliseconds(500));
  member.Await(1);
  member.TellWelcome(/*lease_ms=*/100);
  const absl::Status end = member.AwaitEnd();
  CHECK(absl::IsDeadlineExceeded(end));
  CHECK_THAT(std::string(end.message()), Catch::Matchers::Contains("for the chief at chief to come back"));
}

TEST_CASE("answers keep a quiet stream, and are the session's own", "[protocol]") {
  Member member;
  member.Await(1);
  member.TellWelcome(/*lease_ms=*/1000);
  for (int i = 0; i < 20; ++i) {
    member.from_member_->Next<Renew>();
    member.Tell(Renewed{});
  }
  member.Tell(JobEnd{true, "finished", ""});
  CHECK(member.AwaitEnd().ok());
  CHECK(member.delivered() == 2);
}

TEST_CASE("a member says that it has heard of the end", "[protocol]") {
  Member member;
  member.Await(1);
  member.Tell(JobEnd{true, "finished", ""});  // before any Welcome: the job was over when it came
  member.from_member_->Next<Leave>();
  CHECK(member.AwaitEnd().ok());
  member.from_member_->AwaitClosed();
}

}  // namespace
}  // namespace evenkeel
