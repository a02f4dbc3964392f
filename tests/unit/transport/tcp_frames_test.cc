// Frames, tokens and their bounds, without a way around them.
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <stdexcept>
#include <thread>

#include "conformance/transport/recorder.h"
#include "evenkeel/protocol/wire.h"
#include "transport/tcp/frames.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kMaxMessage = 1 << 20;

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    near = Fd(fds[0]);
    far = Fd(fds[1]);
  }
  Fd near, far;
};

// On any thread: it throws where an assertion would not be safe.
void WriteAll(int fd, std::vector<OutFrame> frames) {
  std::span<OutFrame> left(frames);
  while (!left.empty()) {
    if (WriteFrames(fd, left, 0) != 0) throw std::runtime_error("a frame could not be written");
    while (!left.empty() && left.front().done()) left = left.subspan(1);
  }
}

TEST_CASE("frames of all sizes come out as they went in", "[transport][fast]") {
  const Duration spin = GENERATE(Duration::zero(), Duration(std::chrono::microseconds(20)));
  const std::vector<std::size_t> sizes = {0, 1, 4096, 16 << 10, (16 << 10) + 1, 100000, 700000, 3};
  Pair pair;
  std::thread writer([&] {
    std::vector<OutFrame> frames;
    for (std::size_t i = 0; i < 3 * sizes.size(); ++i) {
      frames.emplace_back(EncodeHeader(Numbered(i)), MakePayload(sizes[i % sizes.size()], i));
    }
    frames.push_back(OutFrame::Goodbye());
    WriteAll(pair.near.get(), std::move(frames));
  });
  FrameReader reader(pair.far.get(), kMaxMessage, spin);
  for (std::size_t i = 0; i < 3 * sizes.size(); ++i) {
    auto frame = reader.Next();
    REQUIRE(frame.status().ToString() == "OK");
    CHECK_FALSE(frame->goodbye);
    CHECK(std::get<PullData>(frame->message.body).request == i);
    REQUIRE(frame->payload_bytes == sizes[i % sizes.size()]);
    std::vector<std::byte> place(i % 2 == 0 ? frame->payload_bytes : 0);
    auto payload = reader.Payload(*frame, place);
    REQUIRE(payload.status().ToString() == "OK");
    if (!place.empty()) CHECK(payload->data() == place.data());
    PayloadOut sent = MakePayload(frame->payload_bytes, i);
    CHECK(std::equal(payload->begin(), payload->end(), sent.bytes.begin(), sent.bytes.end()));
  }
  writer.join();
  auto last = reader.Next();
  REQUIRE(last.ok());
  CHECK(last->goodbye);
}

TEST_CASE("a header beyond one read comes whole", "[transport][fast]") {
  Pair pair;
  const Message message{{}, StatusReply{.json = std::string(100000, 'x')}};
  std::thread writer([&] {
    std::vector<OutFrame> frames;
    frames.emplace_back(EncodeHeader(message), MakePayload(5, 1));
    WriteAll(pair.near.get(), std::move(frames));
  });
  FrameReader reader(pair.far.get(), kMaxMessage, Duration::zero());
  auto frame = reader.Next();
  writer.join();
  REQUIRE(frame.status().ToString() == "OK");
  CHECK(std::get<StatusReply>(frame->message.body).json.size() == 100000);
  auto payload = reader.Payload(*frame, {});
  REQUIRE(payload.ok());
  CHECK(payload->size() == 5);
}

TEST_CASE("what a frame may not say is an error before memory is taken for it", "[transport][fast]") {
  struct Case {
    std::uint32_t header;
    std::uint64_t payload;
    absl::StatusCode code;
  };
  const auto [header, payload, code] =
      GENERATE(Case{1, kMaxMessage, absl::StatusCode::kResourceExhausted},
               Case{1, ~std::uint64_t{0}, absl::StatusCode::kResourceExhausted},
               Case{kMaxHeaderBytes + 1, 0, absl::StatusCode::kResourceExhausted},
               Case{~std::uint32_t{0}, 0, absl::StatusCode::kResourceExhausted},
               Case{0, 1, absl::StatusCode::kInvalidArgument}, Case{4, 0, absl::StatusCode::kInvalidArgument});
  std::array<std::byte, kFramePrefixBytes + 4> bytes;
  bytes.fill(std::byte{0xFF});  // no packet
  for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<std::byte>(header >> (8 * i) & 0xFF);
  for (std::size_t i = 0; i < 8; ++i) bytes[4 + i] = static_cast<std::byte>(payload >> (8 * i) & 0xFF);
  Pair pair;
  REQUIRE(SendBy(pair.near.get(), bytes, kNever).ok());
  FrameReader reader(pair.far.get(), kMaxMessage, Duration::zero());
  CHECK(reader.Next().status().code() == code);
}

TEST_CASE("a frame queue keeps order from both ends while it grows", "[transport][fast]") {
  FrameQueue queue;
  auto frame = [](std::size_t size) { return OutFrame(std::string(size, 'h'), {}); };
  for (std::size_t i = 1; i <= 10; ++i) queue.PushBack(frame(i));
  for (std::size_t i = 1; i <= 5; ++i) CHECK(queue.PopFront().size() == kFramePrefixBytes + i);
  queue.PushFront(frame(100));
  for (std::size_t i = 11; i <= 60; ++i) queue.PushBack(frame(i));
  CHECK(queue.PopFront().size() == kFramePrefixBytes + 100);
  for (std::size_t i = 6; i <= 60; ++i) CHECK(queue.PopFront().size() == kFramePrefixBytes + i);
  CHECK(queue.empty());
}

TEST_CASE("an offer is good once, within its life, and there are only so many", "[transport][fast]") {
  const TimePoint start{std::chrono::hours(1)};
  const Duration life = std::chrono::seconds(10);
  OfferBook offers(3, life);
  auto first = offers.Add(start);
  auto second = offers.Add(start);
  REQUIRE((first.ok() && second.ok()));
  CHECK(*first != *second);
  Token wrong = *first;
  wrong.back() ^= std::byte{1};
  CHECK_FALSE(offers.Take(wrong, start));
  CHECK(offers.Take(*first, start));
  CHECK_FALSE(offers.Take(*first, start));
  CHECK_FALSE(offers.Take(*second, start + life));
  for (int i = 0; i < 3; ++i) REQUIRE(offers.Add(start + life).ok());
  CHECK(offers.Add(start + life).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(offers.Add(start + 2 * life).ok());
}

TEST_CASE("an offer survives its encoding, and nothing else is one", "[transport][fast]") {
  TcpOffer offer{.port = 54321, .token = {}};
  offer.token.fill(std::byte{7});
  const std::string bytes = EncodeOffer(offer);
  auto decoded = DecodeOffer(bytes);
  REQUIRE(decoded.ok());
  CHECK(decoded->port == 54321);
  CHECK(decoded->token == offer.token);
  for (const std::string& wrong : {std::string(), bytes + "x", bytes.substr(1), std::string(bytes.size(), '\0')}) {
    CHECK(DecodeOffer(wrong).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace evenkeel
