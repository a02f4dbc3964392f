// Which way two ends agree on, and what they say where there is none.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "conformance/transport/recorder.h"
#include "evenkeel/core/status.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {
namespace {

std::unique_ptr<Transport> By(std::vector<DataPath> paths) {
  TransportOptions options;
  options.data_paths = std::move(paths);
  return MakeTransport(options);
}

// A socket that listens on the loopback, and its port.
std::pair<int, int> RawListener() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EK_CHECK(listener >= 0 && bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
           getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0 && listen(listener, 8) == 0);
  return {listener, ntohs(address.sin_port)};
}

TEST_CASE("ends that have no data path in common say what there is on either side", "[transport]") {
  using enum DataPath;
  const auto [here, there, said] = GENERATE(table<std::vector<DataPath>, std::vector<DataPath>, std::string>({
      {{kShm}, {kTcp, kGrpc}, "has the data paths grpc, tcp; allowed here: shm"},
      {{kShm, kTcp}, {kGrpc}, "has the data paths grpc; allowed here: shm, tcp"},
      {{kTcp}, {kShm}, "has the data paths grpc, shm; allowed here: tcp"},
  }));
  Host host;
  auto server = By(there);
  auto listener = server->Listen(Service::kParameterServer, "127.0.0.1:0", host.acceptor());
  REQUIRE(listener.ok());
  auto client = By(here);
  auto recorder = std::make_shared<Recorder>();
  auto stream =
      client->Connect(Service::kParameterServer, absl::StrCat("127.0.0.1:", (*listener)->port()), recorder, kPatience);
  const absl::Status closed = recorder->WaitForClosed();
  CHECK(absl::IsUnavailable(closed));
  CHECK_THAT(std::string(closed.message()), Catch::Contains(said));
}

TEST_CASE("a server that comes back at its address is found again, at the first attempt", "[transport]") {
  using enum DataPath;
  const auto [there, by] = GENERATE(table<std::vector<DataPath>, std::string>({
      {{kShm, kGrpc}, "shm"},
      {{kTcp, kGrpc}, "tcp"},
      {{kGrpc}, "grpc"},
  }));
  auto client = By({kShm, kTcp, kGrpc});
  std::string address = "127.0.0.1:0";
  for (int life = 0; life < 3; ++life) {
    Host host([](Stream& stream, std::uint64_t number, const PayloadIn&) { (void)stream.Send(Numbered(number + 1)); });
    auto server = By(there);
    auto listener = server->Listen(Service::kParameterServer, address, host.acceptor());
    REQUIRE(listener.ok());
    address = absl::StrCat("127.0.0.1:", (*listener)->port());
    auto recorder = std::make_shared<Recorder>();
    auto stream = client->Connect(Service::kParameterServer, address, recorder, kPatience);
    (void)stream->Send(Numbered(7));
    CHECK(recorder->WaitForMessages(1).size() == 1);
    CHECK(stream->way() == by);
    stream->Close();
    (*listener)->Shutdown(Duration::zero());
  }
}

TEST_CASE("a peer that takes the connection and says nothing is waited for as long as was asked", "[transport]") {
  const auto [silent, port] = RawListener();
  for (const Service service : {Service::kChief, Service::kParameterServer}) {
    auto client = By({DataPath::kShm, DataPath::kTcp, DataPath::kGrpc});
    auto recorder = std::make_shared<Recorder>();
    auto stream = client->Connect(service, absl::StrCat("127.0.0.1:", port), recorder, std::chrono::milliseconds(300));
    const absl::Status closed = recorder->WaitForClosed();
    CHECK(absl::IsUnavailable(closed));
    CHECK_THAT(std::string(closed.message()), Catch::Contains("no answer") && Catch::Contains("within 300 ms"));
  }
  close(silent);
}

TEST_CASE("who cannot be asked for its ways is not spoken to by gRPC", "[transport]") {
  // A stream keeps its way: one to a peer that begins to listen between the question and gRPC's attempt was slow for
  // good.
  for (const Service service : {Service::kChief, Service::kParameterServer}) {
    const auto [hangs_up, port] = RawListener();
    std::atomic<int> connections = 0;
    std::thread host([&connections, hangs_up = hangs_up] {
      for (int peer; (peer = accept(hangs_up, nullptr, nullptr)) >= 0; close(peer)) ++connections;
    });
    auto recorder = std::make_shared<Recorder>();
    {
      auto client = By({DataPath::kShm, DataPath::kTcp, DataPath::kGrpc});
      auto stream = client->Connect(service, absl::StrCat("127.0.0.1:", port), recorder, kPatience);
      CHECK(absl::IsUnavailable(recorder->WaitForClosed()));
    }
    shutdown(hangs_up, SHUT_RDWR);
    host.join();
    close(hangs_up);
    CHECK(connections == 1);
  }
}

TEST_CASE("the first way that both ends have is taken; with a chief, shared memory or gRPC", "[transport]") {
  using enum DataPath;
  const auto [service, there, way] = GENERATE(table<Service, std::vector<DataPath>, std::string>({
      {Service::kParameterServer, {kShm, kTcp, kGrpc}, "shm"},
      {Service::kParameterServer, {kTcp, kGrpc}, "tcp"},
      {Service::kParameterServer, {kGrpc}, "grpc"},
      {Service::kChief, {kShm, kTcp, kGrpc}, "shm"},
      {Service::kChief, {kTcp}, "grpc"},
  }));
  Host host([](Stream& stream, std::uint64_t number, const PayloadIn&) { (void)stream.Send(Numbered(number + 1)); });
  auto server = By(there);
  auto listener = server->Listen(service, "127.0.0.1:0", host.acceptor());
  REQUIRE(listener.ok());
  auto client = By({kShm, kTcp, kGrpc});
  auto recorder = std::make_shared<Recorder>();
  auto stream = client->Connect(service, absl::StrCat("127.0.0.1:", (*listener)->port()), recorder, kPatience);
  REQUIRE(stream->Send(Numbered(7)).ok());
  CHECK(recorder->WaitForMessages(1).at(0).number == 8);
  CHECK(stream->way() == way);
  CHECK(host.Wait(0).first->way() == way);
  stream->Close();
}

}  // namespace
}  // namespace evenkeel
