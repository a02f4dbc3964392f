// Peers that are not gRPC, and connections that are cut.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "conformance/transport/recorder.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

class Socket {
 public:
  explicit Socket(int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) : fd_(fd) { REQUIRE(fd_ >= 0); }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// Listens on a free port of the loopback.
int ListenOn(const Socket& socket) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  REQUIRE(bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(listen(socket.fd(), 8) == 0);
  REQUIRE(getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

void ConnectTo(const Socket& socket, int port) {
  sockaddr_in address = Loopback(port);
  REQUIRE(connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

// Copies bytes both ways until either side ends.
void Relay(int a, int b) {
  char buffer[65536];
  pollfd ends[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
  while (poll(ends, 2, 60000) > 0) {
    for (int i : {0, 1}) {
      if (ends[i].revents == 0) continue;
      ssize_t count = read(ends[i].fd, buffer, sizeof(buffer));
      if (count <= 0) return;
      for (ssize_t at = 0; at < count;) {
        ssize_t written = send(ends[1 - i].fd, buffer + at, static_cast<size_t>(count - at), MSG_NOSIGNAL);
        if (written <= 0) return;
        at += written;
      }
    }
  }
}

TEST_CASE("a cut connection ends both sides with kUnavailable", "[transport]") {
  Host host([](Stream& stream, std::uint64_t number, const PayloadIn&) { (void)stream.Send(Numbered(number)); });
  auto transport = MakeGrpcTransport({});
  auto listener = transport->Listen(Service::kChief, "127.0.0.1:0", host.acceptor());
  REQUIRE(listener.ok());
  Socket relay;
  int relay_port = ListenOn(relay);
  auto client = std::make_shared<Recorder>();
  auto stream = transport->Connect(Service::kChief, absl::StrCat("127.0.0.1:", relay_port), client, kPatience);
  Socket near(accept(relay.fd(), nullptr, nullptr));
  Socket far;
  ConnectTo(far, (*listener)->port());
  std::thread pump([&] { Relay(near.fd(), far.fd()); });
  REQUIRE(stream->Send(Numbered(1)).ok());
  CHECK(client->WaitForMessages(1).size() == 1);
  shutdown(near.fd(), SHUT_RDWR);
  shutdown(far.fd(), SHUT_RDWR);
  pump.join();
  CHECK(client->WaitForClosed().code() == absl::StatusCode::kUnavailable);
  CHECK(host.Wait(0).second->WaitForClosed().code() == absl::StatusCode::kUnavailable);
  CHECK(client->Orderly());
  CHECK(host.Wait(0).second->Orderly());
}

TEST_CASE("a server that accepts but never answers ends the connect at its timeout", "[transport]") {
  Socket silent;
  std::string address = absl::StrCat("127.0.0.1:", ListenOn(silent));
  auto transport = MakeGrpcTransport({});
  auto client = std::make_shared<Recorder>();
  auto stream = transport->Connect(Service::kChief, address, client, Milliseconds(200));
  absl::Status status = client->WaitForClosed();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(status.message()), Catch::Contains(address) && Catch::Contains("200 ms"));
}

TEST_CASE("a server that accepts and hangs up ends the connect with kUnavailable", "[transport]") {
  Socket rude;
  std::string address = absl::StrCat("127.0.0.1:", ListenOn(rude));
  auto transport = MakeGrpcTransport({});
  auto client = std::make_shared<Recorder>();
  auto stream = transport->Connect(Service::kChief, address, client, Milliseconds(2000));
  { Socket peer(accept(rude.fd(), nullptr, nullptr)); }
  CHECK(client->WaitForClosed().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("a stranger's bytes do no harm to a listener", "[transport]") {
  Host host;
  auto transport = MakeGrpcTransport({});
  auto listener = transport->Listen(Service::kChief, "127.0.0.1:0", host.acceptor());
  REQUIRE(listener.ok());
  Socket stranger;
  ConnectTo(stranger, (*listener)->port());
  std::string noise = "GET / HTTP/1.1\r\nHost: evenkeel\r\n\r\n" + std::string(1000, '\xFF');
  (void)send(stranger.fd(), noise.data(), noise.size(), MSG_NOSIGNAL);
  auto client = std::make_shared<Recorder>();
  auto stream = transport->Connect(Service::kChief, absl::StrCat("127.0.0.1:", (*listener)->port()), client, kPatience);
  REQUIRE(stream->Send(Numbered(1)).ok());
  stream->Close();
  CHECK(client->WaitForClosed().ok());
  CHECK(host.count() == 1);
}

TEST_CASE("closing towards a peer that never ends its side is bounded", "[transport]") {
  Event release;
  Host host([&](Stream&, std::uint64_t, const PayloadIn&) { release.Wait(); });
  GrpcOptions options;
  options.close_timeout = Milliseconds(200);
  auto transport = MakeGrpcTransport(options);
  auto listener = transport->Listen(Service::kChief, "127.0.0.1:0", host.acceptor());
  REQUIRE(listener.ok());
  auto client = std::make_shared<Recorder>();
  auto stream = transport->Connect(Service::kChief, absl::StrCat("127.0.0.1:", (*listener)->port()), client, kPatience);
  PayloadOut payload = MakePayload(1 << 20, 1);
  for (int i = 0; i < 100; ++i) REQUIRE(stream->Send(Numbered(1), payload).ok());
  stream->Close();
  CHECK(client->WaitForClosed().code() == absl::StatusCode::kUnavailable);
  release.Set();
  CHECK(host.Wait(0).second->WaitForClosed().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("a message beyond the limit is refused and ends the stream", "[transport]") {
  Host host;
  GrpcOptions options;
  options.max_message_bytes = 1 << 20;
  auto transport = MakeGrpcTransport(options);
  auto listener = transport->Listen(Service::kChief, "127.0.0.1:0", host.acceptor());
  REQUIRE(listener.ok());
  std::string address = absl::StrCat("127.0.0.1:", (*listener)->port());
  auto client = std::make_shared<Recorder>();
  auto stream = transport->Connect(Service::kChief, address, client, kPatience);
  CHECK(stream->Send(Numbered(1), MakePayload(1 << 20, 1)).code() == absl::StatusCode::kResourceExhausted);
  CHECK(client->WaitForClosed().code() == absl::StatusCode::kResourceExhausted);
  // A sender with a larger limit is stopped by the receiver's.
  auto generous = MakeGrpcTransport({});
  auto second = std::make_shared<Recorder>();
  auto large = generous->Connect(Service::kChief, address, second, kPatience);
  REQUIRE(large->Send(Numbered(1), MakePayload(2 << 20, 1)).ok());
  CHECK(second->WaitForClosed().code() == absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace evenkeel
