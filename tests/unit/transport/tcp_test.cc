// The tcp way between its own ends, and with peers that break the rules.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "conformance/transport/recorder.h"
#include "evenkeel/protocol/wire.h"
#include "transport/side_way.h"
#include "transport/tcp/frames.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket.h"

namespace evenkeel {
namespace {

// The bounds come into play only where a test is about them, however slow the machine.
TcpOptions Patient() {
  TcpOptions options;
  options.close_timeout = options.keepalive = kPatience;
  return options;
}

TimePoint Soon() { return Clock::Real().Now() + kPatience; }

// A way with one door open.
struct Serving {
  explicit Serving(const TcpOptions& options = Patient(), const std::string& address = "127.0.0.1",
                   Recorder::Reaction reaction = nullptr)
      : host(std::move(reaction)), way(MakeTcpWay(options)) {
    auto opened = way->Open(address, host.acceptor());
    REQUIRE(opened.status().ToString() == "OK");
    door = *std::move(opened);
  }
  std::string Offer() {
    auto offer = door->Offer();
    REQUIRE(offer.status().ToString() == "OK");
    return *offer;
  }
  std::shared_ptr<Stream> Connect(const std::shared_ptr<StreamHandler>& handler,
                                  const std::string& address = "127.0.0.1") {
    auto stream = way->Connect(address, Offer(), handler, Soon());
    REQUIRE(stream.status().ToString() == "OK");
    return *stream;
  }

  Host host;
  std::unique_ptr<SideWay> way;
  std::unique_ptr<SideDoor> door;
};

Fd RawConnect(int port) {
  auto fd = ConnectToHost("127.0.0.1", port, Soon());
  REQUIRE(fd.status().ToString() == "OK");
  return *std::move(fd);
}

// A connection whose token was taken; what it sends next is up to the test.
Fd RawPeer(Serving& serving) {
  auto offer = DecodeOffer(serving.Offer());
  REQUIRE(offer.ok());
  Fd fd = RawConnect(offer->port);
  REQUIRE(SendBy(fd.get(), MakeHello(offer->token), Soon()).ok());
  Greeting greeting{};
  REQUIRE(ReceiveBy(fd.get(), greeting, Soon()).ok());
  CHECK(greeting == MakeGreeting());
  return fd;
}

// Whether the other end hangs up without a word.
bool HungUpOn(const Fd& fd) {
  pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
  REQUIRE(poll(&wait, 1, 60000) == 1);
  char byte;
  return recv(fd.get(), &byte, 1, MSG_DONTWAIT) <= 0;
}

std::vector<std::byte> FrameBytes(std::uint64_t number, std::size_t payload) {
  OutFrame frame(EncodeHeader(Numbered(number)), MakePayload(payload, number));
  std::vector<std::byte> bytes(frame.size());
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  Fd in(pair[0]), out(pair[1]);
  REQUIRE(WriteFrames(in.get(), {&frame, 1}, MSG_DONTWAIT) == 0);
  REQUIRE(frame.done());
  REQUIRE(ReceiveBy(out.get(), bytes, Soon()).ok());
  return bytes;
}

// Has a place for each payload.
class Placed final : public StreamHandler {
 public:
  std::span<std::byte> Destination(Stream&, const Message& message, std::size_t payload_bytes) override {
    const std::uint64_t number = std::get<PullData>(message.body).request;
    if (number % 3 == 2) return {};  // some have none
    place_.resize(payload_bytes);
    return place_;
  }
  void OnMessage(Stream&, Message message, const PayloadIn& payload) override {
    const std::uint64_t number = std::get<PullData>(message.body).request;
    const PayloadOut sent = MakePayload(payload.size(), number);
    const bool placed = payload.pieces().size() == 1 && payload.pieces()[0].data() == place_.data();
    if (number % 3 != 2 && payload.size() > 0 && !placed) ++elsewhere_;
    const std::vector<std::byte> bytes = BytesOf(payload).value();
    if (!std::equal(bytes.begin(), bytes.end(), sent.bytes.begin(), sent.bytes.end())) ++wrong_;
    ++count_;
  }
  void OnClosed(Stream&, const absl::Status&) override { closed_.Set(); }

  std::vector<std::byte> place_;
  int elsewhere_ = 0, wrong_ = 0, count_ = 0;
  Event closed_;
};

TEST_CASE("payloads arrive where the handler wants them", "[transport][fast]") {
  const std::vector<std::size_t> sizes = {1, 4096, 16300, 16384, 100000, 8 << 20, 5, 0, 3 << 20, 20000, 7, 2 << 20};
  auto placed = std::make_shared<Placed>();
  auto way = MakeTcpWay(Patient());
  auto door = way->Open("127.0.0.1", [&](std::shared_ptr<Stream>) { return placed; });
  REQUIRE(door.ok());
  auto client = std::make_shared<Recorder>();
  auto stream = way->Connect("127.0.0.1", (*door)->Offer().value(), client, Soon());
  REQUIRE(stream.status().ToString() == "OK");
  for (std::size_t i = 0; i < sizes.size(); ++i) REQUIRE((*stream)->Send(Numbered(i), MakePayload(sizes[i], i)).ok());
  (*stream)->Close();
  CHECK(client->WaitForClosed().ToString() == "OK");
  REQUIRE(placed->closed_.Wait());
  (*door)->Shutdown(Duration::zero());
  CHECK(placed->count_ == static_cast<int>(sizes.size()));
  CHECK(placed->elsewhere_ == 0);
  CHECK(placed->wrong_ == 0);
}

TEST_CASE("a door can be opened on names, both families and all addresses", "[transport][fast]") {
  struct Case {
    const char* opened;
    const char* reached;
  };
  for (const auto& [opened, reached] :
       {Case{"127.0.0.1", "127.0.0.1"}, Case{"localhost", "localhost"}, Case{"0.0.0.0", "127.0.0.1"},
        Case{"::1", "::1"}, Case{"::", "::1"}, Case{"::", "127.0.0.1"}}) {
    CAPTURE(opened, reached);
    auto can = ListenOnHost(std::string(reached) == "::1" ? "::1" : "127.0.0.1");
    if (!can.ok()) continue;  // a machine without IPv6
    Serving serving(Patient(), opened);
    auto client = std::make_shared<Recorder>();
    auto stream = serving.Connect(client, reached);
    REQUIRE(stream->Send(Numbered(1)).ok());
    CHECK(serving.host.Wait(0).second->WaitForMessages(1).size() == 1);
  }
  auto way = MakeTcpWay({});
  CHECK(way->Open("no.such.host.invalid", nullptr).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(way->name() == "tcp");
  CHECK(way->reach().empty());
}

TEST_CASE("connecting names what is wrong", "[transport][fast]") {
  Serving serving;
  auto client = std::make_shared<Recorder>();
  CHECK(serving.way->Connect("127.0.0.1", "nonsense", client, Soon()).status().code() ==
        absl::StatusCode::kInvalidArgument);
  const std::string offer = serving.Offer();
  const int port = DecodeOffer(offer)->port;
  serving.door->Shutdown(Duration::zero());
  auto refused = serving.way->Connect("127.0.0.1", offer, client, Soon());
  CHECK(refused.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(refused.status().message()), Catch::Contains(absl::StrCat("127.0.0.1:", port)));
  CHECK(serving.door->Offer().status().code() == absl::StatusCode::kUnavailable);
  // Somebody who takes connections and says nothing.
  auto silent = ListenOnHost("127.0.0.1");
  REQUIRE(silent.ok());
  auto late = serving.way->Connect("127.0.0.1", EncodeOffer({.port = silent->port, .token = {}}), client,
                                   Clock::Real().Now() + Milliseconds(100));
  CHECK(late.status().code() == absl::StatusCode::kUnavailable);
  CHECK(client.use_count() == 1);
}

// Sends the bytes to the port; whether the other end then hangs up.
bool IsLetGo(int port, std::span<const std::byte> bytes) {
  Fd fd = RawConnect(port);
  REQUIRE(SendBy(fd.get(), bytes, Soon()).ok());
  return HungUpOn(fd);
}

TEST_CASE("a stranger gets nothing and is let go", "[transport][fast]") {
  Serving serving;
  auto offer = DecodeOffer(serving.Offer());
  REQUIRE(offer.ok());
  const TokenHello good = MakeHello(offer->token);
  Token token = offer->token;
  token.front() ^= std::byte{1};
  CHECK(IsLetGo(offer->port, MakeHello(token)));
  TokenHello newer = good;
  newer[4] = std::byte{2};
  CHECK(IsLetGo(offer->port, newer));
  const std::string noise = "GET / HTTP/1.1\r\nHost: evenkeel\r\n\r\n";
  CHECK(IsLetGo(offer->port, std::as_bytes(std::span<const char>(noise))));
  CHECK(serving.host.count() == 0);
  // None of it cost the real peer its token, which is then good for no second one.
  Fd peer = RawConnect(offer->port);
  REQUIRE(SendBy(peer.get(), good, Soon()).ok());
  Greeting greeting{};
  CHECK(ReceiveBy(peer.get(), greeting, Soon()).ok());
  CHECK(IsLetGo(offer->port, good));
  CHECK(serving.host.count() == 1);
}

TEST_CASE("a stranger that says nothing, or stops halfway, is let go after a time", "[transport][fast]") {
  TcpOptions options;
  options.hello_timeout = Milliseconds(100);
  Serving serving(options);
  auto offer = DecodeOffer(serving.Offer());
  REQUIRE(offer.ok());
  const TokenHello hello = MakeHello(offer->token);
  CHECK(IsLetGo(offer->port, {}));
  CHECK(IsLetGo(offer->port, std::span<const std::byte>(hello).first(20)));
  CHECK(serving.host.count() == 0);
}

TEST_CASE("strangers in numbers do not keep a peer out", "[transport][fast]") {
  Serving serving;
  const int port = DecodeOffer(serving.Offer())->port;
  std::vector<Fd> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(RawConnect(port));
  auto client = std::make_shared<Recorder>();
  auto stream = serving.Connect(client);
  stream->Close();
  CHECK(client->WaitForClosed().ToString() == "OK");
  CHECK(serving.host.count() == 1);
}

TEST_CASE("a peer's broken frames end its stream and no other", "[transport][fast]") {
  TcpOptions options = Patient();
  options.max_message_bytes = 1 << 20;
  Serving serving(options);
  auto bystander = std::make_shared<Recorder>();
  auto other = serving.Connect(bystander);
  const std::vector<std::byte> whole = FrameBytes(7, 1000);
  struct Case {
    std::vector<std::byte> bytes;
    bool hang_up;
    absl::StatusCode code;
    std::size_t messages;
  };
  auto part = [&](std::size_t size) { return std::vector<std::byte>(whole.begin(), whole.begin() + size); };
  std::vector<std::byte> oversize = whole;
  oversize[6] = std::byte{0x10};  // 1 MiB and more of payload
  const std::vector<Case> cases = {
      {std::vector<std::byte>(64, std::byte{0xFF}), false, absl::StatusCode::kResourceExhausted, 0},
      {std::vector<std::byte>(64, std::byte{1}), false, absl::StatusCode::kResourceExhausted, 0},
      {oversize, false, absl::StatusCode::kResourceExhausted, 0},
      {part(5), true, absl::StatusCode::kUnavailable, 0},
      {part(kFramePrefixBytes + 2), true, absl::StatusCode::kUnavailable, 0},
      {part(whole.size() - 1), true, absl::StatusCode::kUnavailable, 0},
      {whole, true, absl::StatusCode::kUnavailable, 1},  // without a goodbye
      {{}, true, absl::StatusCode::kUnavailable, 0}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    Fd peer = RawPeer(serving);
    auto recorder = serving.host.Wait(1 + i).second;
    REQUIRE(SendBy(peer.get(), cases[i].bytes, Soon()).ok());
    if (cases[i].hang_up) peer = Fd();
    CHECK(recorder->WaitForClosed().code() == cases[i].code);
    CHECK(recorder->received().size() == cases[i].messages);
    CHECK(recorder->Orderly());
    if (!cases[i].hang_up) CHECK(HungUpOn(peer));
  }
  REQUIRE(other->Send(Numbered(1)).ok());
  CHECK(serving.host.Wait(0).second->WaitForMessages(1).size() == 1);
}

TEST_CASE("a connection reset while both send ends the stream with kUnavailable", "[transport][fast]") {
  Serving serving;
  Fd peer = RawPeer(serving);
  auto [stream, recorder] = serving.host.Wait(0);
  REQUIRE(SendBy(peer.get(), FrameBytes(1, 1000), Soon()).ok());
  const PayloadOut payload = MakePayload(1 << 20, 1);
  for (int i = 0; i < 64; ++i) REQUIRE(stream->Send(Numbered(1), payload).ok());
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  REQUIRE(setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
  peer = Fd();
  CHECK(recorder->WaitForClosed().code() == absl::StatusCode::kUnavailable);
  CHECK(recorder->Orderly());
  CHECK(stream->Send(Numbered(1)).code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("a goodbye is answered after what is queued", "[transport][fast]") {
  Serving serving;
  Fd peer = RawPeer(serving);
  auto [stream, recorder] = serving.host.Wait(0);
  constexpr std::size_t kPayload = 3 << 20;
  constexpr int kCount = 5;  // more than a socket holds
  std::size_t expected = kFramePrefixBytes;
  const PayloadOut payload = MakePayload(kPayload, 1);
  for (int i = 0; i < kCount; ++i) {
    REQUIRE(stream->Send(Numbered(1), payload).ok());
    expected += OutFrame(EncodeHeader(Numbered(1)), {}).size() + kPayload;
  }
  OutFrame goodbye = OutFrame::Goodbye();
  REQUIRE(WriteFrames(peer.get(), {&goodbye, 1}, 0) == 0);
  std::vector<std::byte> bytes(expected);
  REQUIRE(ReceiveBy(peer.get(), bytes, Soon()).ok());
  CHECK(std::all_of(bytes.end() - kFramePrefixBytes, bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
  CHECK(HungUpOn(peer));
  CHECK(recorder->WaitForClosed().ToString() == "OK");
}

TEST_CASE("closing towards a peer that reads nothing or never says goodbye is bounded", "[transport][fast]") {
  TcpOptions options = Patient();
  options.close_timeout = Milliseconds(200);
  Serving serving(options);
  for (int messages : {0, 60}) {
    CAPTURE(messages);
    Fd peer = RawPeer(serving);
    auto [stream, recorder] = serving.host.Wait(messages == 0 ? 0 : 1);
    const PayloadOut payload = MakePayload(1 << 20, 1);
    for (int i = 0; i < messages; ++i) REQUIRE(stream->Send(Numbered(1), payload).ok());
    stream->Close();
    CHECK(recorder->WaitForClosed().code() == absl::StatusCode::kUnavailable);
    CHECK(recorder->Orderly());
  }
}

TEST_CASE("shutting down does not wait longer for such a peer than it is told", "[transport][fast]") {
  Serving serving;
  Fd peer = RawPeer(serving);
  auto [stream, recorder] = serving.host.Wait(0);
  const PayloadOut payload = MakePayload(1 << 20, 1);
  for (int i = 0; i < 60; ++i) REQUIRE(stream->Send(Numbered(1), payload).ok());
  serving.door->Shutdown(Milliseconds(50));
  CHECK(recorder->Orderly());
  CHECK(recorder->WaitForClosed().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("a message beyond the limit is refused and ends the stream", "[transport][fast]") {
  TcpOptions options = Patient();
  options.max_message_bytes = 1 << 20;
  Serving serving(options);
  auto client = std::make_shared<Recorder>();
  auto stream = serving.Connect(client);
  CHECK(stream->Send(Numbered(1), MakePayload(1 << 20, 1)).code() == absl::StatusCode::kResourceExhausted);
  CHECK(client->WaitForClosed().code() == absl::StatusCode::kResourceExhausted);
  CHECK(serving.host.Wait(0).second->WaitForClosed().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("the kernel is told to give up a peer that is gone within twice the keepalive", "[transport][fast]") {
  TcpOptions options;
  options.keepalive = std::chrono::seconds(8);
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  TuneSocket(fd.get(), options);
  auto value = [&](int level, int name) {
    int number = -1;
    socklen_t size = sizeof(number);
    REQUIRE(getsockopt(fd.get(), level, name, &number, &size) == 0);
    return number;
  };
  CHECK(value(SOL_SOCKET, SO_KEEPALIVE) == 1);
  CHECK(value(IPPROTO_TCP, TCP_NODELAY) == 1);
  const int idle = value(IPPROTO_TCP, TCP_KEEPIDLE), between = value(IPPROTO_TCP, TCP_KEEPINTVL);
  const int give_up_ms = value(IPPROTO_TCP, TCP_USER_TIMEOUT);
  CHECK(idle <= 8);
  CHECK(give_up_ms > 8000);
  // Checked when a probe is due: at worst one interval after the time is up.
  CHECK(give_up_ms / 1000 + between <= 16);
}

}  // namespace
}  // namespace evenkeel
