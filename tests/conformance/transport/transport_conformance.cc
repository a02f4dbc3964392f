// What every transport must do, run on each of them.
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "conformance/transport/recorder.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {
namespace {

struct Grpc {
  static constexpr Service kService = Service::kChief;
  static std::unique_ptr<Transport> Make(std::int64_t max_queued_bytes = 1 << 30) {
    GrpcOptions options;
    options.max_queued_bytes = max_queued_bytes;
    return MakeGrpcTransport(options);
  }
};

struct Inproc {
  static constexpr Service kService = Service::kChief;
  static std::unique_ptr<Transport> Make(std::int64_t max_queued_bytes = 1 << 30) {
    return MakeInprocTransport(max_queued_bytes);
  }
};

// Between workers and servers only; gRPC opens it.
template <DataPath path>
struct Side {
  static constexpr Service kService = Service::kParameterServer;
  static std::unique_ptr<Transport> Make(std::int64_t max_queued_bytes = 1 << 30) {
    TransportOptions options;
    options.grpc.max_queued_bytes = options.tcp.max_queued_bytes = options.shm.max_queued_bytes = max_queued_bytes;
    options.data_paths = {path};
    options.shm.look = std::chrono::microseconds(50);  // whatever machine this is
    return MakeTransport(options);
  }
};
using Tcp = Side<DataPath::kTcp>;
using Shm = Side<DataPath::kShm>;

#ifdef __SANITIZE_THREAD__
// The packaged gRPC is not instrumented.
#define TRANSPORT_TEST(name) TEMPLATE_TEST_CASE(name, "[transport]", Inproc)
#else
#define TRANSPORT_TEST(name) TEMPLATE_TEST_CASE(name, "[transport]", Grpc, Inproc, Tcp, Shm)
#endif

template <class Kind>
std::unique_ptr<Listener> MustListen(Transport& transport, Acceptor acceptor) {
  auto listener = transport.Listen(Kind::kService, "127.0.0.1:0", std::move(acceptor));
  REQUIRE(listener.status().ToString() == "OK");
  REQUIRE((*listener)->port() > 0);
  return *std::move(listener);
}

std::string AddressOf(const Listener& listener) { return absl::StrCat("127.0.0.1:", listener.port()); }

template <class Kind>
std::shared_ptr<Stream> ConnectTo(Transport& transport, const Listener& listener,
                                  const std::shared_ptr<Recorder>& recorder) {
  return transport.Connect(Kind::kService, AddressOf(listener), recorder, kPatience);
}

TRANSPORT_TEST("messages of 0 B to 8 MB arrive whole and in order, and come back") {
  Host host([](Stream& stream, std::uint64_t number, const PayloadIn& payload) {
    auto copy = std::make_shared<std::vector<std::byte>>(BytesOf(payload).value());
    std::span<const std::byte> view(*copy);
    (void)stream.Send(Numbered(number), {view, std::move(copy)});
  });
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  auto client = std::make_shared<Recorder>();
  auto stream = ConnectTo<TestType>(*transport, *listener, client);
  const std::vector<std::size_t> sizes = {0, 1, 100, 2047, 2048, 2049, 65536, 1 << 20, 8 << 20, 3, 0, 4 << 20};
  for (std::size_t i = 0; i < sizes.size(); ++i) REQUIRE(stream->Send(Numbered(i), MakePayload(sizes[i], i)).ok());
  auto echoed = client->WaitForMessages(sizes.size());
  REQUIRE(echoed.size() == sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    PayloadOut sent = MakePayload(sizes[i], i);
    CHECK(echoed[i].number == i);
    CHECK(std::equal(echoed[i].payload.begin(), echoed[i].payload.end(), sent.bytes.begin(), sent.bytes.end()));
  }
  stream->Close();
  CHECK(client->WaitForClosed().ok());
}

TRANSPORT_TEST("whoever attends gets what comes, several at once too, and every message comes once") {
  constexpr std::uint64_t kRounds = 300, kThreads = 2;
  Host host([](Stream& stream, std::uint64_t number, const PayloadIn& payload) {
    auto copy = std::make_shared<std::vector<std::byte>>(BytesOf(payload).value());
    std::span<const std::byte> view(*copy);
    (void)stream.Send(Numbered(number), {view, std::move(copy)});
  });
  auto transport = TestType::Make();
  transport->Attend([] { return false; });  // there is nothing to look at yet
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  std::vector<std::shared_ptr<Recorder>> clients;
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> whole{0}, received[kThreads] = {};
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    clients.push_back(std::make_shared<Recorder>([&, t](Stream&, std::uint64_t, const PayloadIn&) { ++received[t]; }));
    threads.emplace_back([&, t, client = clients.back()] {
      auto stream = ConnectTo<TestType>(*transport, *listener, client);
      for (std::uint64_t i = 0; i < kRounds; ++i) {
        const std::size_t size = i % 50 == 49 ? 1 << 20 : i % 3 == 2 ? 20000 : 8;
        if (!stream->Send(Numbered(i), MakePayload(size, i)).ok()) return;
        transport->Attend([&] { return received[t] > i; });
        if (client->WaitForMessages(i + 1).size() == i + 1) ++whole;
      }
      stream->Close();
      transport->Attend([] { return false; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(whole == kRounds * kThreads);
  for (const auto& client : clients) {
    CHECK(client->WaitForClosed().ToString() == "OK");
    CHECK(client->Orderly());
  }
}

TRANSPORT_TEST("a payload's owner is released once it is sent") {
  Host host;
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  auto client = std::make_shared<Recorder>();
  auto stream = ConnectTo<TestType>(*transport, *listener, client);
  for (std::size_t size : {std::size_t{1}, std::size_t{1} << 20}) {
    Event released;
    std::vector<std::byte> bytes(size);
    REQUIRE(
        stream->Send(Numbered(1), {bytes, std::shared_ptr<const void>(&bytes, [&](const void*) { released.Set(); })})
            .ok());
    CHECK(released.Wait());
  }
}

TRANSPORT_TEST("an unsent payload's owner is released when the stream fails") {
  auto transport = TestType::Make();
  auto client = std::make_shared<Recorder>();
  auto stream = transport->Connect(TestType::kService, "127.0.0.1:1", client, kPatience);
  Event released;
  std::vector<std::byte> bytes(1 << 20);
  (void)stream->Send(Numbered(1), {bytes, std::shared_ptr<const void>(&bytes, [&](const void*) { released.Set(); })});
  CHECK(client->WaitForClosed().code() == absl::StatusCode::kUnavailable);
  CHECK(released.Wait());
}

TRANSPORT_TEST("both sides send at once from several threads") {
  constexpr std::uint64_t kEach = 300, kThreads = 3;
  Host host;
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  auto client = std::make_shared<Recorder>();
  auto near = ConnectTo<TestType>(*transport, *listener, client);
  auto [far, server] = host.Wait(0);
  auto send_all = [&](Stream& stream, std::uint64_t thread) {
    for (std::uint64_t i = 0; i < kEach; ++i) {
      if (!stream.Send(Numbered(thread << 32 | i), MakePayload(i % 5000, i)).ok()) return;
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { send_all(*near, t); });
    threads.emplace_back([&, t, far = far.get()] { send_all(*far, t); });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& recorder : {client, server}) {
    auto received = recorder->WaitForMessages(kEach * kThreads);
    REQUIRE(received.size() == kEach * kThreads);
    std::vector<std::uint64_t> next(kThreads, 0);
    bool in_order = true;
    for (const auto& message : received) in_order &= next[message.number >> 32]++ == (message.number & 0xFFFFFFFF);
    CHECK(in_order);
  }
}

TRANSPORT_TEST("closing delivers what is queued and ends both sides once, in good order") {
  constexpr std::size_t kCount = 50;
  for (bool by_client : {true, false}) {
    CAPTURE(by_client);
    Host host;
    auto transport = TestType::Make();
    auto listener = MustListen<TestType>(*transport, host.acceptor());
    auto client = std::make_shared<Recorder>();
    auto near = ConnectTo<TestType>(*transport, *listener, client);
    auto [far, server] = host.Wait(0);
    Stream& closer = by_client ? *near : *far;
    for (std::size_t i = 0; i < kCount; ++i) REQUIRE(closer.Send(Numbered(i), MakePayload(100000, i)).ok());
    closer.Close();
    closer.Close();
    CHECK(closer.Send(Numbered(99)).code() == absl::StatusCode::kUnavailable);
    CHECK(client->WaitForClosed().ToString() == "OK");
    CHECK(server->WaitForClosed().ToString() == "OK");
    auto received = (by_client ? server : client)->received();
    REQUIRE(received.size() == kCount);
    CHECK(received.back().number == kCount - 1);
    CHECK(client->Orderly());
    CHECK(server->Orderly());
    CHECK(near->Send(Numbered(0)).code() == absl::StatusCode::kUnavailable);
    CHECK(far->Send(Numbered(0)).code() == absl::StatusCode::kUnavailable);
  }
}

TRANSPORT_TEST("what a server sends before it closes arrives although the client is sending") {
  Host host;
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  auto client = std::make_shared<Recorder>();
  auto near = ConnectTo<TestType>(*transport, *listener, client);
  auto [far, server] = host.Wait(0);
  std::thread sender([&] {
    PayloadOut payload = MakePayload(10000, 1);
    while (near->Send(Numbered(1), payload).ok()) std::this_thread::yield();
  });
  server->WaitForMessages(1);
  for (std::uint64_t i = 0; i < 20; ++i) REQUIRE(far->Send(Numbered(i), MakePayload(50000, i)).ok());
  far->Close();
  CHECK(client->WaitForClosed().ToString() == "OK");
  sender.join();
  CHECK(client->received().size() == 20);
  CHECK(client->Orderly());
}

TRANSPORT_TEST("closing at once from both sides ends both once") {
  Host host;
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  for (int round = 0; round < 20; ++round) {
    auto client = std::make_shared<Recorder>();
    auto near = ConnectTo<TestType>(*transport, *listener, client);
    auto [far, server] = host.Wait(static_cast<std::size_t>(round));
    std::thread other([&, far = far.get()] { far->Close(); });
    near->Close();
    other.join();
    CHECK(client->WaitForClosed().ToString() == "OK");
    CHECK(server->WaitForClosed().ToString() == "OK");
  }
}

TRANSPORT_TEST("a stream closed before it is connected still delivers and ends") {
  Host host;
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  auto client = std::make_shared<Recorder>();
  auto stream = ConnectTo<TestType>(*transport, *listener, client);
  REQUIRE(stream->Send(Numbered(7), MakePayload(5, 1)).ok());
  stream->Close();
  CHECK(client->WaitForClosed().ToString() == "OK");
  auto server = host.Wait(0).second;
  CHECK(server->WaitForClosed().ToString() == "OK");
  CHECK(server->received().size() == 1);
}

TRANSPORT_TEST("connecting to nobody ends in kUnavailable that names the address") {
  auto transport = TestType::Make();
  auto client = std::make_shared<Recorder>();
  auto stream = transport->Connect(TestType::kService, "127.0.0.1:1", client, kPatience);
  absl::Status status = client->WaitForClosed();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(status.message()), Catch::Contains("127.0.0.1:1"));
  CHECK(client->Orderly());
}

TRANSPORT_TEST("a port in use is an error that says so, until its listener goes") {
  Host host;
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  std::string address = AddressOf(*listener);
  auto second = transport->Listen(TestType::kService, address, host.acceptor());
  CHECK(second.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(second.status().message()),
             Catch::Contains(absl::StrCat("port ", listener->port(), " is in use")));
  listener.reset();
  auto third = transport->Listen(TestType::kService, address, host.acceptor());
  CHECK(third.status().ToString() == "OK");
}

TRANSPORT_TEST("shutting down ends every live stream once and refuses new ones") {
  Host host;
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  std::vector<std::shared_ptr<Recorder>> clients;
  std::vector<std::shared_ptr<Stream>> streams;
  for (std::size_t i = 0; i < 8; ++i) {
    clients.push_back(std::make_shared<Recorder>());
    streams.push_back(ConnectTo<TestType>(*transport, *listener, clients.back()));
    REQUIRE(host.Wait(i).first->Send(Numbered(i), MakePayload(1 << 20, i)).ok());
  }
  listener->Shutdown(kPatience);
  listener->Shutdown(Duration::zero());
  for (std::size_t i = 0; i < clients.size(); ++i) {
    CHECK(host.Wait(i).second->Orderly());
    CHECK(clients[i]->WaitForClosed().ToString() == "OK");
    CHECK(clients[i]->received().size() == 1);
  }
  auto late = std::make_shared<Recorder>();
  auto stream = ConnectTo<TestType>(*transport, *listener, late);
  CHECK(late->WaitForClosed().code() == absl::StatusCode::kUnavailable);
  CHECK(host.count() == 8);
}

TRANSPORT_TEST("a peer that reads nothing exhausts the queue's bound, not memory") {
  Event release;
  Host host([&](Stream&, std::uint64_t, const PayloadIn&) { release.Wait(); });
  auto transport = TestType::Make(8 << 20);
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  auto client = std::make_shared<Recorder>();
  auto stream = ConnectTo<TestType>(*transport, *listener, client);
  REQUIRE(stream->Send(Numbered(0)).ok());
  host.Wait(0).second->WaitForMessages(1);
  PayloadOut payload = MakePayload(1 << 20, 1);
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = stream->Send(Numbered(1), payload);
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(stream->Send(Numbered(1)).code() == absl::StatusCode::kUnavailable);
  release.Set();
  CHECK(client->WaitForClosed().code() == absl::StatusCode::kResourceExhausted);
  CHECK(host.Wait(0).second->WaitForClosed().code() == absl::StatusCode::kUnavailable);
}

TRANSPORT_TEST("a stream that the acceptor does not want ends in kUnavailable") {
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, [](std::shared_ptr<Stream>) { return nullptr; });
  auto client = std::make_shared<Recorder>();
  auto stream = ConnectTo<TestType>(*transport, *listener, client);
  CHECK(client->WaitForClosed().code() == absl::StatusCode::kUnavailable);
}

TRANSPORT_TEST("a stream of the other service is not accepted") {
  Host host;
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  auto client = std::make_shared<Recorder>();
  const Service other = TestType::kService == Service::kChief ? Service::kParameterServer : Service::kChief;
  auto stream = transport->Connect(other, AddressOf(*listener), client, kPatience);
  CHECK_FALSE(client->WaitForClosed().ok());
  CHECK(host.count() == 0);
}

TRANSPORT_TEST("64 streams at once keep their messages apart") {
  constexpr std::size_t kStreams = 64, kRounds = 20;
  Host host([](Stream& stream, std::uint64_t number, const PayloadIn&) { (void)stream.Send(Numbered(number)); });
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  std::vector<std::shared_ptr<Recorder>> clients;
  std::vector<std::shared_ptr<Stream>> streams;
  for (std::uint64_t i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_shared<Recorder>([i](Stream& stream, std::uint64_t number, const PayloadIn&) {
      if (number % 1000 + 1 < kRounds) (void)stream.Send(Numbered(number + 1));
      if (number / 1000 != i) stream.Close();
    }));
    streams.push_back(ConnectTo<TestType>(*transport, *listener, clients.back()));
    REQUIRE(streams.back()->Send(Numbered(i * 1000)).ok());
  }
  for (std::uint64_t i = 0; i < kStreams; ++i) {
    auto received = clients[i]->WaitForMessages(kRounds);
    REQUIRE(received.size() == kRounds);
    for (std::size_t k = 0; k < kRounds; ++k) CHECK(received[k].number == i * 1000 + k);
  }
}

TRANSPORT_TEST("closing from a handler works, and so does dropping the last hold on the stream there") {
  auto held = std::make_shared<std::shared_ptr<Stream>>();
  Host host;
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, [held](std::shared_ptr<Stream> stream) {
    *held = std::move(stream);
    return std::make_shared<Recorder>([held](Stream& stream, std::uint64_t, const PayloadIn&) {
      stream.Close();
      held->reset();
    });
  });
  auto client = std::make_shared<Recorder>();
  auto stream = ConnectTo<TestType>(*transport, *listener, client);
  REQUIRE(stream->Send(Numbered(1)).ok());
  CHECK(client->WaitForClosed().ToString() == "OK");
}

TRANSPORT_TEST("a stream that nobody holds lives while it is open, and its handler goes with its end") {
  Host host([](Stream& stream, std::uint64_t number, const PayloadIn&) { (void)stream.Send(Numbered(number)); });
  auto transport = TestType::Make();
  auto listener = MustListen<TestType>(*transport, host.acceptor());
  auto client = std::make_shared<Recorder>();
  REQUIRE(ConnectTo<TestType>(*transport, *listener, client)->Send(Numbered(5)).ok());
  CHECK(client->WaitForMessages(1).size() == 1);
  host.Wait(0).first->Close();
  CHECK(client->WaitForClosed().ok());
  transport.reset();
  CHECK(client.use_count() == 1);
}

TRANSPORT_TEST("taking the transport down ends the streams it connected") {
  Host host;
  auto serving = TestType::Make();
  auto client = std::make_shared<Recorder>();
  auto listener = MustListen<TestType>(*serving, host.acceptor());
  auto stream = ConnectTo<TestType>(*serving, *listener, client);
  host.Wait(0);
  serving.reset();
  CHECK(client->Orderly());
  CHECK(client->WaitForClosed().code() == absl::StatusCode::kUnavailable);
  CHECK(stream->Send(Numbered(1)).code() == absl::StatusCode::kUnavailable);
  CHECK_FALSE(host.Wait(0).second->WaitForClosed().ok());
  listener->Shutdown(Duration::zero());
}

}  // namespace
}  // namespace evenkeel
