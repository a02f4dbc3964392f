#include "transport/grpc/codec.h"

#include "conformance/transport/recorder.h"

namespace evenkeel {
namespace {

TEST_CASE("a large payload is referenced on the way out and on the way in", "[transport]") {
  PayloadOut payload = MakePayload(1 << 20, 3);
  const std::byte* begin = payload.bytes.data();
  std::weak_ptr<const void> owner = payload.owner;
  {
    grpc::ByteBuffer buffer = EncodePacket(Numbered(4), std::move(payload));
    CHECK_FALSE(owner.expired());
    int used = 0;
    REQUIRE(DecodePacket(buffer, [&](Message message, const PayloadIn& in) {
              ++used;
              CHECK(std::get<PullData>(message.body).request == 4);
              REQUIRE(in.pieces().size() == 1);
              CHECK(in.pieces()[0].data() == begin);
              CHECK(in.size() == std::size_t{1} << 20);
            }).ok());
    CHECK(used == 1);
  }
  CHECK(owner.expired());
}

TEST_CASE("a buffer that is no packet is an error", "[transport]") {
  for (std::string bytes : {std::string("\xFF\xFF\xFF"), std::string("\xA2\x06\x7F"), std::string()}) {
    grpc::Slice slice(bytes);
    grpc::ByteBuffer buffer(&slice, 1);
    absl::Status status = DecodePacket(buffer, [](Message, const PayloadIn&) { FAIL("nothing to use"); });
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace evenkeel
