// Streams in shared memory while a thread listens in place of their own. Both ends are of this process, so that
// ThreadSanitizer sees them.
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "conformance/transport/recorder.h"
#include "transport/shm/channel.h"
#include "transport/shm/memory.h"
#include "transport/shm/stream.h"

namespace evenkeel::shm {
namespace {

struct Pair {
  explicit Pair(Recorder::Reaction reaction = nullptr) : recorder(std::make_shared<Recorder>(std::move(reaction))) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    Descriptor memory = *CreateWritable(sizeof(Shared));
    Mapping rings[2] = {*Mapping::Of(memory.get(), sizeof(Shared), true),
                        *Mapping::Of(memory.get(), sizeof(Shared), true)};
    ShmOptions options;
    options.look = std::chrono::microseconds(50);  // whatever machine this is
    near = std::make_shared<ShmStream>(Descriptor(ends[0]), std::move(rings[0]), 0, options, open);
    far = std::make_shared<ShmStream>(Descriptor(ends[1]), std::move(rings[1]), 1, options, open);
    REQUIRE(open->Add(near));
    REQUIRE(open->Add(far));
    far->Start(std::make_shared<Recorder>());
  }
  ~Pair() {
    far->Cancel(absl::UnavailableError("the test is over"));
    CHECK(open->WaitUntilEmpty(Clock::Real().Now() + kPatience));
  }

  // From the far end.
  bool Send(std::uint64_t number, PayloadOut payload = {}) {
    return far->Send(Numbered(number), std::move(payload)).ok();
  }

  std::shared_ptr<ShmStreams> open = std::make_shared<ShmStreams>();
  std::shared_ptr<Recorder> recorder;  // of the near end
  std::shared_ptr<ShmStream> near, far;
};

TEST_CASE("a listener and the stream's own thread deliver each message once, in order, one at a time",
          "[transport][shm]") {
  constexpr std::uint64_t kMessages = 20000;
  std::atomic<std::uint64_t> heard_here{0}, delivered{0};
  const std::thread::id here = std::this_thread::get_id();
  Pair pair([&](Stream&, std::uint64_t, const PayloadIn&) {
    if (std::this_thread::get_id() == here) ++heard_here;
    ++delivered;
  });
  pair.near->Start(pair.recorder);
  bool sent = true;
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      sent &= pair.Send(i, MakePayload(i % 3 == 0 ? 20000 : 8, i));
      if (i % 64 == 0) std::this_thread::yield();
    }
  });
  const TimePoint end = Clock::Real().Now() + kPatience;
  for (std::uint64_t turn = 0; delivered < kMessages && Clock::Real().Now() < end; ++turn) {
    pair.near->BeginToListen();
    for (std::uint64_t i = 0; i < turn % 7; ++i) (void)pair.near->Listen();
    pair.near->EndToListen();
  }
  sender.join();
  REQUIRE(sent);
  const auto received = pair.recorder->WaitForMessages(kMessages);
  REQUIRE(received.size() == kMessages);
  bool in_order = true;
  for (std::uint64_t i = 0; i < kMessages; ++i) in_order &= received[i].number == i;
  CHECK(in_order);
  CHECK(heard_here > 0);
  pair.far->Close();
  CHECK(pair.recorder->WaitForClosed().ok());
  CHECK(pair.recorder->Orderly());
}

TEST_CASE("nothing stays behind when a listener stops as something comes", "[transport][shm]") {
  Pair pair;
  pair.near->Start(pair.recorder);
  for (std::uint64_t i = 0; i < 3000; ++i) {
    std::thread sender([&] { (void)pair.Send(i); });
    pair.near->BeginToListen();
    for (std::uint64_t looks = 0; looks < i % 50; ++looks) (void)pair.near->Listen();
    pair.near->EndToListen();
    REQUIRE(pair.recorder->WaitForMessages(i + 1).size() == i + 1);
    sender.join();
  }
}

TEST_CASE("while a listener listens the stream's own thread sleeps", "[transport][shm]") {
  std::atomic<int> elsewhere{0};
  const std::thread::id here = std::this_thread::get_id();
  Pair pair([&](Stream&, std::uint64_t, const PayloadIn&) {
    if (std::this_thread::get_id() != here) ++elsewhere;
  });
  pair.near->Start(pair.recorder);
  // Once it has delivered something it is on its way to sleep.
  REQUIRE(pair.Send(0));
  REQUIRE(pair.recorder->WaitForMessages(1).size() == 1);
  elsewhere = 0;
  int missed = 0;
  for (std::uint64_t i = 1; i <= 500; ++i) {
    pair.near->BeginToListen();
    REQUIRE(pair.Send(i));
    const TimePoint end = Clock::Real().Now() + kPatience;
    while (pair.recorder->received().size() <= i && Clock::Real().Now() < end) (void)pair.near->Listen();
    pair.near->EndToListen();
    REQUIRE(pair.recorder->received().size() == i + 1);
    missed = elsewhere;
  }
  CHECK(missed < 50);  // its first sleep may come late
}

TEST_CASE("a long payload is left to the stream's own thread", "[transport][shm]") {
  std::atomic<int> here{0};
  const std::thread::id listener = std::this_thread::get_id();
  Pair pair([&](Stream&, std::uint64_t number, const PayloadIn&) {
    if (number == 1 && std::this_thread::get_id() == listener) ++here;
  });
  pair.near->Start(pair.recorder);
  pair.near->BeginToListen();
  REQUIRE(pair.Send(1, MakePayload(1 << 20, 1)));
  const TimePoint end = Clock::Real().Now() + kPatience;
  while (!pair.near->Listen().long_payload && pair.recorder->received().empty() && Clock::Real().Now() < end) {
  }
  pair.near->EndToListen();
  CHECK(pair.recorder->WaitForMessages(1).size() == 1);
  CHECK(here == 0);
}

TEST_CASE("a stream ends on its own thread while a listener listens", "[transport][shm]") {
  for (const bool by_goodbye : {true, false}) {
    CAPTURE(by_goodbye);
    Pair pair;
    pair.near->Start(pair.recorder);
    std::atomic<bool> closed{false};
    std::thread watcher([&] {
      CHECK(pair.recorder->WaitForClosed().ok() == by_goodbye);
      closed = true;
    });
    pair.near->BeginToListen();
    if (by_goodbye) {
      pair.far->Close();
    } else {
      pair.far->Cancel(absl::UnavailableError("broken off"));
    }
    while (!closed) (void)pair.near->Listen();
    CHECK_FALSE(pair.near->Listen().messages);
    pair.near->EndToListen();
    watcher.join();
    CHECK(pair.recorder->Orderly());
  }
}

TEST_CASE("whoever listens to a stream before its start hears nothing, and what came is not lost", "[transport][shm]") {
  Pair pair;
  REQUIRE(pair.Send(7));
  pair.near->BeginToListen();
  CHECK_FALSE(pair.near->Listen().messages);
  pair.near->EndToListen();
  pair.near->Start(pair.recorder);
  CHECK(pair.recorder->WaitForMessages(1).size() == 1);
}

}  // namespace
}  // namespace evenkeel::shm
