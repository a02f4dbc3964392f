// Which way two ends agree on, and what they say where there is none.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "conformance/transport/recorder.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {
namespace {

std::unique_ptr<Transport> By(std::vector<DataPath> paths) {
  TransportOptions options;
  options.data_paths = std::move(paths);
  return MakeTransport(options);
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

TEST_CASE("a server that comes back at its address is found again, at the second attempt at the latest",
          "[transport]") {
  using enum DataPath;
  const std::vector<DataPath> there = GENERATE(std::vector{kShm, kGrpc}, std::vector{kTcp, kGrpc}, std::vector{kGrpc});
  auto client = By({kShm, kTcp, kGrpc});
  std::string address = "127.0.0.1:0";
  for (int life = 0; life < 3; ++life) {
    Host host([](Stream& stream, std::uint64_t number, const PayloadIn&) { (void)stream.Send(Numbered(number + 1)); });
    auto server = By(there);
    auto listener = server->Listen(Service::kParameterServer, address, host.acceptor());
    REQUIRE(listener.ok());
    address = absl::StrCat("127.0.0.1:", (*listener)->port());
    bool answered = false;
    for (int attempt = 0; attempt < 2 && !answered; ++attempt) {
      auto recorder = std::make_shared<Recorder>();
      auto stream = client->Connect(Service::kParameterServer, address, recorder, kPatience);
      (void)stream->Send(Numbered(7));
      answered = recorder->WaitForMessages(1).size() == 1;
      stream->Close();
    }
    CHECK(answered);
    (*listener)->Shutdown(Duration::zero());
  }
}

TEST_CASE("a peer that takes the connection and says nothing is waited for as long as was asked", "[transport]") {
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(silent >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  REQUIRE(bind(silent, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  REQUIRE(listen(silent, 8) == 0);
  for (const Service service : {Service::kChief, Service::kParameterServer}) {
    auto client = By({DataPath::kShm, DataPath::kTcp, DataPath::kGrpc});
    auto recorder = std::make_shared<Recorder>();
    auto stream = client->Connect(service, absl::StrCat("127.0.0.1:", ntohs(address.sin_port)), recorder,
                                  std::chrono::milliseconds(300));
    const absl::Status closed = recorder->WaitForClosed();
    CHECK(absl::IsUnavailable(closed));
    CHECK_THAT(std::string(closed.message()), Catch::Contains("no answer") && Catch::Contains("within 300 ms"));
  }
  close(silent);
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
