#include "worker/server_link.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <variant>

#include "evenkeel/core/mutex.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {
namespace {

// Answers the first Hello with a refusal, the others with an ack.
struct Door {
  RefuseReason reason;
  Mutex mutex;
  int hellos ABSL_GUARDED_BY(mutex) = 0;

  struct Handler final : StreamHandler {
    explicit Handler(Door& d) : door(d) {}
    void OnMessage(Stream& stream, Message message, const PayloadIn&) override {
      if (!std::holds_alternative<Hello>(message.body)) return;
      MutexLock lock(door.mutex);
      if (++door.hellos > 1) return (void)stream.Send({{}, HelloAck{}});
      (void)stream.Send({{}, Refuse{.reason = door.reason, .message = "not this one"}});
    }
    void OnClosed(Stream&, const absl::Status&) override {}
    Door& door;
  };
};

TEST_CASE("a server that is ahead of the worker or not ready is asked again; another refusal is for good",
          "[worker][link]") {
  using enum RefuseReason;
  const auto [reason, comes_up, code] = GENERATE(table<RefuseReason, bool, absl::StatusCode>({
      {kRetry, true, absl::StatusCode::kOk},
      {kStaleTerm, true, absl::StatusCode::kOk},  // it has heard of a restarted chief before the worker has
      {kForeignJob, false, absl::StatusCode::kPermissionDenied},
      {kOtherExperiment, false, absl::StatusCode::kPermissionDenied},
      {kStaleIncarnation, false, absl::StatusCode::kFailedPrecondition},
  }));
  auto transport = MakeInprocTransport();
  Door door{.reason = reason};
  auto listener = transport->Listen(Service::kParameterServer, "server",
                                    [&door](std::shared_ptr<Stream>) { return std::make_shared<Door::Handler>(door); });
  REQUIRE(listener.ok());
  Mutex mutex;
  CondVar changed;
  bool up = false;
  absl::Status refused;
  ServerLink link("ps:0", "server", "worker:0", *transport, Clock::Real(),
                  {.envelope = [] { return Envelope{}; },
                   .on_up =
                       [&] {
                         MutexLock lock(mutex);
                         up = true;
                         changed.NotifyAll();
                       },
                   .on_down =
                       [&] {
                         MutexLock lock(mutex);
                         changed.NotifyAll();
                       },
                   .on_message = [](Message, const PayloadIn&) {},
                   .on_refused =
                       [&](const absl::Status& status) {
                         MutexLock lock(mutex);
                         refused = status;
                         changed.NotifyAll();
                       }});
  const TimePoint until = Clock::Real().Now() + std::chrono::seconds(30);
  for (;;) {
    link.Poll();
    MutexLock lock(mutex);
    if (up || !refused.ok() || Clock::Real().Now() >= until) break;
    changed.WaitUntil(mutex, std::min(until, link.NextAttempt()));
  }
  MutexLock lock(mutex);
  CHECK(up == comes_up);
  CHECK(link.up() == comes_up);
  CHECK(refused.code() == code);
  if (!refused.ok()) CHECK_THAT(std::string(refused.message()), Catch::Contains("ps:0 refused"));
}

}  // namespace
}  // namespace evenkeel
