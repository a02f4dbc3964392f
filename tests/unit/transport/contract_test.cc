// A program that knows nothing but proto/evenkeel.proto talks to our server.
#include <grpcpp/grpcpp.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "conformance/transport/recorder.h"
#include "evenkeel.grpc.pb.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {
namespace {

std::shared_ptr<grpc::Channel> ChannelTo(const Listener& listener) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", listener.port()), grpc::InsecureChannelCredentials(),
                                   arguments);
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
}

TEST_CASE("a generated client stages a payload and reads the answer", "[transport]") {
  Host host([](Stream& stream, std::uint64_t, const PayloadIn& payload) {
    Message answer{{.job_id = "job"}, StageAck{.update = {Term(1), Incarnation(2), 3}, .missing = {4, 5}}};
    auto copy = std::make_shared<std::vector<std::byte>>(BytesOf(payload).value());
    std::span<const std::byte> view(*copy);
    (void)stream.Send(std::move(answer), {view, std::move(copy)});
  });
  auto transport = MakeGrpcTransport({});
  auto listener = transport->Listen(Service::kParameterServer, "127.0.0.1:0", host.acceptor());
  REQUIRE(listener.ok());
  auto stub = v1::ParameterServer::NewStub(ChannelTo(**listener));
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = stub->Session(&context);
  v1::Packet packet;
  packet.mutable_envelope()->set_job_id("job");
  packet.mutable_stage()->set_bucket(7);
  packet.set_payload(std::string(100000, 'p'));
  REQUIRE(stream->Write(packet));
  v1::Packet answer;
  REQUIRE(stream->Read(&answer));
  CHECK(answer.envelope().job_id() == "job");
  REQUIRE(answer.has_stage_ack());
  CHECK(answer.stage_ack().update().sequence() == 3);
  CHECK(answer.stage_ack().missing_size() == 2);
  CHECK(answer.payload() == packet.payload());
  stream->WritesDone();
  CHECK(stream->Finish().ok());
  CHECK(host.Wait(0).second->WaitForClosed().ok());
}

TEST_CASE("a packet without a body is answered by INVALID_ARGUMENT and ends the stream", "[transport]") {
  Host host;
  auto transport = MakeGrpcTransport({});
  auto listener = transport->Listen(Service::kChief, "127.0.0.1:0", host.acceptor());
  REQUIRE(listener.ok());
  auto stub = v1::Chief::NewStub(ChannelTo(**listener));
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = stub->Session(&context);
  REQUIRE(stream->Write(v1::Packet()));
  v1::Packet answer;
  CHECK_FALSE(stream->Read(&answer));
  grpc::Status status = stream->Finish();
  CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(status.error_message(), Catch::Contains("body"));
  CHECK(host.Wait(0).second->WaitForClosed().code() == absl::StatusCode::kInvalidArgument);
}

// A server that another program might be: answers each packet by itself.
class EchoChief final : public v1::Chief::Service {
  grpc::Status Session(grpc::ServerContext*, grpc::ServerReaderWriter<v1::Packet, v1::Packet>* stream) override {
    v1::Packet packet;
    while (stream->Read(&packet)) stream->Write(packet);
    return grpc::Status::OK;
  }
};

TEST_CASE("our client talks to a generated server", "[transport]") {
  EchoChief service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  REQUIRE(server != nullptr);
  auto transport = MakeGrpcTransport({});
  auto client = std::make_shared<Recorder>();
  auto stream = transport->Connect(Service::kChief, absl::StrCat("127.0.0.1:", port), client, kPatience);
  PayloadOut payload = MakePayload(3 << 20, 5);
  REQUIRE(stream->Send(Numbered(9), payload).ok());
  auto received = client->WaitForMessages(1);
  REQUIRE(received.size() == 1);
  CHECK(received[0].number == 9);
  CHECK(std::equal(payload.bytes.begin(), payload.bytes.end(), received[0].payload.begin(), received[0].payload.end()));
  stream->Close();
  CHECK(client->WaitForClosed().ok());
}

}  // namespace
}  // namespace evenkeel
