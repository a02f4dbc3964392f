#include "transport/grpc/address.h"

#include "absl/strings/str_cat.h"
#include "conformance/transport/recorder.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {
namespace {

TEST_CASE("addresses are host and port, IPv6 in brackets", "[transport]") {
  auto plain = ParseSocketAddress("worker-0.example:2222");
  REQUIRE(plain.ok());
  CHECK(plain->host == "worker-0.example");
  CHECK(plain->port == 2222);
  auto six = ParseSocketAddress("[fe80::1]:0");
  REQUIRE(six.ok());
  CHECK(six->host == "fe80::1");
  CHECK(six->port == 0);
}

TEST_CASE("a malformed address is shown in its error", "[transport]") {
  for (std::string address :
       {"", "host", "host:", "host:x", "host:70000", "host:-1", "::1:2222", "[::1:2222", ":22", "[]:1"}) {
    CAPTURE(address);
    absl::Status status = ParseSocketAddress(address).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(status.message()), Catch::Contains("\"" + address + "\""));
    auto transport = MakeGrpcTransport({});
    CHECK(transport->Listen(Service::kChief, address, nullptr).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("an address of no machine or of another one cannot be listened at", "[transport]") {
  auto transport = MakeGrpcTransport({});
  for (std::string address : {"no-such-host.invalid:2222", "192.0.2.1:2222"}) {
    CAPTURE(address);
    absl::Status status = transport->Listen(Service::kChief, address, nullptr).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(status.message()), Catch::Contains(address));
  }
}

TEST_CASE("streams run over IPv6 and over names", "[transport]") {
  for (std::string host_name : {"[::1]", "localhost"}) {
    CAPTURE(host_name);
    Host host;
    auto transport = MakeGrpcTransport({});
    auto listener = transport->Listen(Service::kChief, host_name + ":0", host.acceptor());
    if (!listener.ok() && host_name == "[::1]") {
      WARN("this machine has no IPv6: " << listener.status().ToString());
      continue;
    }
    REQUIRE(listener.status().ToString() == "OK");
    auto client = std::make_shared<Recorder>();
    auto stream =
        transport->Connect(Service::kChief, absl::StrCat(host_name, ":", (*listener)->port()), client, kPatience);
    REQUIRE(stream->Send(Numbered(3)).ok());
    stream->Close();
    CHECK(client->WaitForClosed().ToString() == "OK");
    CHECK(host.Wait(0).second->received().size() == 1);
  }
}

TEST_CASE("connecting to an unknown host ends in kUnavailable that names it", "[transport]") {
  auto transport = MakeGrpcTransport({});
  for (std::string address : {"no-such-host.invalid:2222", "nonsense"}) {
    auto client = std::make_shared<Recorder>();
    auto stream = transport->Connect(Service::kChief, address, client, kPatience);
    absl::Status status = client->WaitForClosed();
    CHECK(status.code() == absl::StatusCode::kUnavailable);
    CHECK_THAT(std::string(status.message()), Catch::Contains(address));
  }
}

}  // namespace
}  // namespace evenkeel
