#include "evenkeel/protocol/member_session.h"

#include <catch2/catch.hpp>

#include "unit/runtime/scripted_job.h"

namespace evenkeel {
namespace {

// A session whose chief is the test.
class Member {
 public:
  explicit Member(Duration chief_timeout = std::chrono::seconds(60)) {
    chief_.Listen();
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
    chief_.Await(n);
    CHECK(chief_.inbox()->NextBody<Join>().nonce == 7);
  }
  void TellWelcome(std::int64_t lease_ms) {
    chief_.Tell(Welcome{.incarnation = Incarnation(10), .job_id = kJob, .lease_ms = lease_ms, .renew_ms = 20});
  }
  absl::Status AwaitEnd() {
    const TimePoint deadline = Clock::Real().Now() + std::chrono::seconds(30);
    MutexLock lock(mutex_);
    while (!end_) {
      if (!changed_.WaitUntil(mutex_, deadline)) FAIL("the session did not end");
    }
    return *end_;
  }
  int delivered() {
    MutexLock lock(mutex_);
    return delivered_;
  }

  std::unique_ptr<Transport> transport_ = MakeInprocTransport();
  ScriptedChief chief_{*transport_};

 private:
  void OnMessage(const Message&) {
    MutexLock lock(mutex_);
    ++delivered_;
  }
  void OnEnd(const absl::Status& status) {
    MutexLock lock(mutex_);
    end_ = status;
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  int delivered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<MemberSession> session_;
};

TEST_CASE("a member whose chief says nothing on an open stream joins it again", "[protocol]") {
  Member member;
  member.Await(1);
  member.TellWelcome(/*lease_ms=*/100);
  member.chief_.inbox()->Next<Renew>();
  const std::shared_ptr<Inbox> silent = member.chief_.inbox();
  member.Await(2);
  silent->AwaitClosed();
  member.TellWelcome(/*lease_ms=*/10000);
  member.chief_.Tell(JobEnd{true, "finished", ""});
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
    member.chief_.inbox()->Next<Renew>();
    member.chief_.Tell(Renewed{});
  }
  member.chief_.Tell(JobEnd{true, "finished", ""});
  CHECK(member.AwaitEnd().ok());
  CHECK(member.delivered() == 2);
}

TEST_CASE("a member says that it has heard of the end", "[protocol]") {
  Member member;
  member.Await(1);
  member.chief_.Tell(JobEnd{true, "finished", ""});  // before any Welcome: the job was over when it came
  member.chief_.inbox()->Next<Leave>();
  CHECK(member.AwaitEnd().ok());
  member.chief_.inbox()->AwaitClosed();
}

}  // namespace
}  // namespace evenkeel
