#include "evenkeel/protocol/wire.h"

#include <catch2/catch.hpp>

#include "evenkeel/core/digest.h"
#include "evenkeel/core/random.h"
#include "unit/protocol/sample_messages.h"

namespace evenkeel {
namespace {

std::vector<std::span<const std::byte>> Pieces(const std::string& bytes, std::size_t length) {
  std::vector<std::span<const std::byte>> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += length) {
    pieces.push_back(AsBytes(bytes).subspan(at, std::min(length, bytes.size() - at)));
  }
  return pieces;
}

std::string Joined(const SplitPacket& packet) {
  std::string payload;
  for (auto piece : packet.payload) payload.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return payload;
}

TEST_CASE("every body survives the wire with all its fields", "[protocol]") {
  std::vector<Body> bodies = SampleBodies();
  REQUIRE(bodies.size() == std::variant_size_v<Body>);
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    CAPTURE(i, NameOf(bodies[i]));
    REQUIRE(bodies[i].index() == i);
    Message message{SampleEnvelope(), bodies[i]};
    absl::StatusOr<Message> decoded = DecodeHeader(AsBytes(EncodeHeader(message)));
    REQUIRE(decoded.status().ToString() == "OK");
    CHECK(decoded->envelope == message.envelope);
    CHECK(decoded->body == message.body);
  }
}

TEST_CASE("default messages survive the wire", "[protocol]") {
  for (const Message& message :
       {Message{{}, Ready{}}, Message{{}, Stage{}}, Message{{}, Ticket{}}, Message{{}, Join{}}}) {
    absl::StatusOr<Message> decoded = DecodeHeader(AsBytes(EncodeHeader(message)));
    REQUIRE(decoded.ok());
    CHECK(decoded->body == message.body);
  }
}

TEST_CASE("a packet without a known body is an invalid argument", "[protocol]") {
  CHECK(DecodeHeader({}).status().code() == absl::StatusCode::kInvalidArgument);
  std::string unknown_body = "\xFA\x06\x01x";  // field 111, one byte
  CHECK(DecodeHeader(AsBytes(unknown_body)).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("values out of range name their field", "[protocol]") {
  std::string bad_role = std::string("\x52\x02\x08\x09", 4);  // join { role: 9 }
  CHECK_THAT(std::string(DecodeHeader(AsBytes(bad_role)).status().message()), Catch::Contains("role"));
  Message touching{{}, Ticket{.positions = {{0, 5}, {5, 6}}}};
  CHECK_THAT(std::string(DecodeHeader(AsBytes(EncodeHeader(touching))).status().message()),
             Catch::Contains("positions"));
  TensorSpec empty{.name = "w", .shape = Shape({4, 0})};
  Message shape{{}, Join{.tensors = {empty}}};
  CHECK_THAT(std::string(DecodeHeader(AsBytes(EncodeHeader(shape))).status().message()), Catch::Contains("shape"));
}

TEST_CASE("too long strings and lists are refused", "[protocol]") {
  Message text{{}, StatusReply{.json = std::string(kMaxStringBytes + 1, 'x')}};
  CHECK(DecodeHeader(AsBytes(EncodeHeader(text))).status().code() == absl::StatusCode::kInvalidArgument);
  Message list{{}, StageAck{.missing = std::vector<std::int32_t>(kMaxListEntries + 1, 1)}};
  CHECK(DecodeHeader(AsBytes(EncodeHeader(list))).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a string that is not UTF-8 arrives with question marks", "[protocol]") {
  Message message{{}, Leave{.reason = "a\xFF\xC3\xA4\xE0\x80z"}};
  absl::StatusOr<Message> decoded = DecodeHeader(AsBytes(EncodeHeader(message)));
  REQUIRE(decoded.ok());
  CHECK(std::get<Leave>(decoded->body).reason == "a?\xC3\xA4??z");
}

TEST_CASE("cut and damaged packets never crash the decoder", "[protocol]") {
  Rng rng(7);
  for (const Body& body : SampleBodies()) {
    std::string bytes = EncodeHeader({SampleEnvelope(), body}) + EncodePayloadPrefix(8) + "12345678";
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      std::string cut = bytes.substr(0, length);
      (void)DecodeHeader(AsBytes(cut));
      (void)SplitPayload(Pieces(cut, 3));
    }
    for (int round = 0; round < 200; ++round) {
      std::string damaged = bytes;
      damaged[rng.Below(damaged.size())] = static_cast<char>(rng.NextU32());
      (void)DecodeHeader(AsBytes(damaged));
      absl::StatusOr<SplitPacket> split = SplitPayload(Pieces(damaged, 1 + rng.Below(9)));
      if (split.ok()) CHECK(split->header.size() + Joined(*split).size() <= damaged.size());
    }
  }
}

TEST_CASE("a packet splits at its payload however it is cut", "[protocol]") {
  std::string header = EncodeHeader({SampleEnvelope(), Stage{.update = SampleUpdate(1), .bucket = 3}});
  for (std::size_t size : {0, 1, 127, 128, 20000}) {
    std::string payload(size, 'p');
    for (std::size_t length : {1, 2, 3, 64, 100000}) {
      CAPTURE(size, length);
      std::string packet = header + EncodePayloadPrefix(size) + payload;
      absl::StatusOr<SplitPacket> split = SplitPayload(Pieces(packet, length));
      REQUIRE(split.ok());
      CHECK(split->header == header);
      CHECK(Joined(*split) == payload);
    }
  }
}

TEST_CASE("a payload before the other fields is found", "[protocol]") {
  std::string header = EncodeHeader({SampleEnvelope(), Ready{}});
  std::string packet = EncodePayloadPrefix(3) + "abc" + header;
  absl::StatusOr<SplitPacket> split = SplitPayload(Pieces(packet, 5));
  REQUIRE(split.ok());
  CHECK(split->header == header);
  CHECK(Joined(*split) == "abc");
}

TEST_CASE("a length beyond the packet's end is an error", "[protocol]") {
  std::string packet = EncodePayloadPrefix(1000) + "abc";
  CHECK(SplitPayload(Pieces(packet, 2)).status().code() == absl::StatusCode::kInvalidArgument);
  std::string huge = "\xA2\x06\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01";
  CHECK(SplitPayload(Pieces(huge, 4)).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a decision's hash depends on each of its fields", "[protocol]") {
  const Decision base = SampleDecision();
  std::vector<Decision> changed(18, base);
  changed[0].version.generation = Generation(9);
  changed[1].version.commit = CommitNumber(9);
  changed[2].set = SetNumber(99);
  changed[3].attempt += 1;
  std::swap(changed[4].updates[0], changed[4].updates[1]);
  changed[5].updates.pop_back();
  changed[6].samples += 1;
  changed[7].learning_rate *= 2;
  changed[8].clip_scale *= 2;
  changed[9].previous_hash += 1;
  changed[10].loss_sum *= 2;
  changed[11].updates[0].rank = Rank(9);
  changed[12].updates[0].epoch = Epoch(9);
  changed[13].updates[0].positions[0].end += 1;
  changed[14].updates[0].clock += 1;
  changed[15].updates[0].bound_at = CommitNumber(9);
  changed[16].updates[0].computed_on[1] = SampleVersion(9);
  changed[17].global_batch_size += 1;
  for (std::size_t i = 0; i < changed.size(); ++i) {
    CAPTURE(i);
    CHECK(HashDecision(changed[i]) != HashDecision(base));
  }
  Decision same = base;
  same.hash = 0;
  CHECK(HashDecision(same) == HashDecision(base));
}

}  // namespace
}  // namespace evenkeel
