// Peers in shared memory that write nonsense, take their bytes back or vanish; strangers at the door.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "conformance/transport/recorder.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/protocol/wire.h"
#include "transport/shm/channel.h"
#include "transport/shm/memory.h"
#include "transport/shm/stream.h"
#include "transport/side_way.h"

namespace evenkeel::shm {
namespace {

// A stream whose other end the test plays by hand.
struct Conversation {
  explicit Conversation(ShmOptions options = {}) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    Descriptor memory = *CreateWritable(sizeof(Shared));
    Mapping near = *Mapping::Of(memory.get(), sizeof(Shared), true);
    far_memory = *Mapping::Of(memory.get(), sizeof(Shared), true);
    far_socket = Descriptor(ends[1]);
    far.emplace(far_memory.data(), 1);
    stream = std::make_shared<ShmStream>(Descriptor(ends[0]), std::move(near), 0, options, open);
    REQUIRE(open->Add(stream));
    stream->Start(recorder);
  }
  ~Conversation() {
    far_socket.Reset();
    CHECK(open->WaitUntilEmpty(Clock::Real().Now() + kPatience));
  }
  void Push(Entry entry, const std::string& header = "", std::span<const std::byte> payload = {}) {
    REQUIRE(far->Push(entry, AsBytes(header), payload, 0));
    far->RingOther();
  }
  // Overwrites the first entry's words, then publishes it.
  void PushRaw(const Entry& entry, std::uint64_t head) {
    auto* shared = reinterpret_cast<Shared*>(far_memory.data());
    std::memcpy(shared->rings[1].bytes, &entry, sizeof(entry));
    shared->rings[1].head.store(head);
    far->RingOther();
  }
  void Introduce(std::uint64_t id, std::uint64_t size, int fd) {
    const std::uint64_t words[2] = {id, size};
    REQUIRE(SendRecord(far_socket.get(), std::as_bytes(std::span(words)), fd).ok());
  }
  absl::Status End() { return recorder->WaitForClosed(); }

  std::shared_ptr<ShmStreams> open = std::make_shared<ShmStreams>();
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  std::shared_ptr<ShmStream> stream;
  Mapping far_memory;
  Descriptor far_socket;
  std::optional<Channel> far;
};

std::string Header(std::uint64_t number) { return EncodeHeader(Numbered(number)); }

TEST_CASE("nonsense in the ring ends the stream, and nothing of it is delivered", "[transport][shm]") {
  const std::vector<std::pair<Entry, std::uint64_t>> nonsense = {
      {Entry{.bytes = 40}, std::uint64_t{1} << 40},                                      // a head beyond the ring
      {Entry{.bytes = 4096, .kind = EntryKind::kInline}, 48},                            // beyond the head
      {Entry{.bytes = 0, .kind = EntryKind::kInline}, 48},                               // no progress
      {Entry{.bytes = 47, .kind = EntryKind::kInline}, 48},                              // not a multiple of 8
      {Entry{.bytes = 48, .kind = static_cast<EntryKind>(99)}, 48},                      // no known kind
      {Entry{.bytes = 48, .kind = EntryKind::kInline, .header_bytes = 0xFFFFFFFF}, 48},  // longer than its entry
      {Entry{.bytes = 48, .kind = EntryKind::kInline, .inline_bytes = 0xFFFFFFFF}, 48},
      {Entry{.bytes = 48, .kind = EntryKind::kPayloadOutside, .payload_bytes = ~0ull}, 48},  // a sum that wraps
      {Entry{.bytes = 48, .kind = EntryKind::kAllOutside, .header_bytes = 9, .payload_bytes = ~0ull - 4}, 48},
      {Entry{.bytes = 48, .kind = EntryKind::kInline}, 48},  // no packet
  };
  for (const auto& [entry, head] : nonsense) {
    CAPTURE(entry.bytes, static_cast<std::uint32_t>(entry.kind), entry.payload_bytes, head);
    Conversation c;
    c.PushRaw(entry, head);
    CHECK_FALSE(c.End().ok());
    CHECK(c.recorder->received().empty());
  }
}

TEST_CASE("a payload outside the ring is read where the peer has it", "[transport][shm]") {
  Conversation c;
  Arena arena = *Arena::Allocate(1 << 20, MemoryKind::kShared);
  arena.data()[5000] = std::byte{42};
  auto block = SharedBlock::Find({arena.data() + 4096, 8192});
  REQUIRE(block != nullptr);
  c.Introduce(block->id(), block->size(), block->fd());
  c.Push({.kind = EntryKind::kPayloadOutside, .block = block->id(), .offset = 4096, .payload_bytes = 8192}, Header(1));
  auto received = c.recorder->WaitForMessages(1);
  REQUIRE(received.size() == 1);
  REQUIRE(received[0].payload.size() == 8192);
  CHECK(received[0].payload[904] == std::byte{42});
}

TEST_CASE("the peer is told which blocks are gone, before the next one", "[transport][shm]") {
  struct Told {
    std::uint64_t id, size;
  };
  Conversation c;
  const auto next_told = [&] {
    Told told{};
    auto record = ReceiveRecord(c.far_socket.get(), std::as_writable_bytes(std::span(&told, 1)));
    REQUIRE(record.ok());
    CHECK((record->fd.get() >= 0) == (told.size > 0));
    return told;
  };
  const auto send = [&](std::shared_ptr<SharedBlock> block) {
    const std::span<const std::byte> bytes{block->data(), block->size()};
    REQUIRE(c.stream->Send(Numbered(1), {bytes, std::move(block)}).ok());
    REQUIRE(c.far->Peek()->has_value());
  };
  Event released;
  auto first = *SharedBlock::Create(64 << 10);
  const std::uint64_t id = first->id();
  const std::span<const std::byte> bytes{first->data(), first->size()};
  std::shared_ptr<const void> owner(nullptr, [&, held = std::move(first)](const void*) mutable {
    held.reset();
    released.Set();
  });
  REQUIRE(c.stream->Send(Numbered(1), {bytes, std::move(owner)}).ok());
  REQUIRE(c.far->Peek()->has_value());
  CHECK(next_told().id == id);
  // While the message is not consumed the block stays known.
  send(*SharedBlock::Create(64 << 10));
  CHECK(next_told().size == 64 << 10);
  CHECK_FALSE(ReceiveRecord(c.far_socket.get(), {}).ok());
  c.far->Pop();
  c.far->RingOther();
  REQUIRE(released.Wait());
  send(*SharedBlock::Create(128 << 10));
  const Told gone = next_told();
  CHECK(gone.id == id);
  CHECK(gone.size == 0);
  CHECK(next_told().size == 128 << 10);
}

TEST_CASE("a block that the peer says is gone is forgotten", "[transport][shm]") {
  Conversation c;
  auto former = *SharedBlock::Create(16 << 10);
  auto next = *SharedBlock::Create(16 << 10);
  const auto push = [&](const SharedBlock& block) {
    c.Push({.kind = EntryKind::kPayloadOutside, .block = block.id(), .payload_bytes = block.size()}, Header(1));
  };
  c.Introduce(former->id(), former->size(), former->fd());
  push(*former);
  REQUIRE(c.recorder->WaitForMessages(1).size() == 1);
  c.Introduce(former->id(), 0, -1);
  c.Introduce(next->id(), next->size(), next->fd());
  push(*next);
  REQUIRE(c.recorder->WaitForMessages(2).size() == 2);
  push(*former);
  CHECK_THAT(std::string(c.End().message()), Catch::Contains(absl::StrCat("block ", former->id(), " is not known")));
}

TEST_CASE("blocks that do not hold what an entry names end the stream", "[transport][shm]") {
  auto block = *SharedBlock::Create(8192);
  SECTION("an unknown one") {
    Conversation c;
    c.Push({.kind = EntryKind::kPayloadOutside, .block = 7, .payload_bytes = 10}, Header(1));
    CHECK_THAT(std::string(c.End().message()), Catch::Contains("block 7 is not known"));
  }
  SECTION("bytes beyond its end") {
    Conversation c;
    c.Introduce(7, 8192, block->fd());
    c.Push({.kind = EntryKind::kPayloadOutside, .block = 7, .offset = 8000, .payload_bytes = 200}, Header(1));
    CHECK(c.End().code() == absl::StatusCode::kInvalidArgument);
  }
  SECTION("a size that it does not have") {
    Conversation c;
    c.Introduce(7, 8193, block->fd());
    c.Push({.kind = EntryKind::kPayloadOutside, .block = 7, .payload_bytes = 10}, Header(1));
    CHECK(c.End().code() == absl::StatusCode::kInvalidArgument);
  }
  SECTION("one that its owner can shrink") {
    Descriptor loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(loose.get(), 8192) == 0);
    Conversation c;
    c.Introduce(7, 8192, loose.get());
    c.Push({.kind = EntryKind::kPayloadOutside, .block = 7, .payload_bytes = 10}, Header(1));
    CHECK_THAT(std::string(c.End().message()), Catch::Contains("shrink"));
  }
  SECTION("no descriptor") {
    Conversation c;
    c.Introduce(7, 8192, -1);
    c.Push({.kind = EntryKind::kPayloadOutside, .block = 7, .payload_bytes = 10}, Header(1));
    CHECK(c.End().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("a shared block cannot be written, shrunk or grown by who receives it", "[core][shm]") {
  auto block = *SharedBlock::Create(8192);
  CHECK(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, block->fd(), 0) == MAP_FAILED);
  CHECK(ftruncate(block->fd(), 4096) != 0);
  CHECK(ftruncate(block->fd(), 16384) != 0);
  char byte = 1;
  CHECK(pwrite(block->fd(), &byte, 1, 0) != 1);
}

TEST_CASE("what follows a payload that its sender took back is not delivered", "[transport][shm]") {
  Conversation c;
  auto block = *SharedBlock::Create(8192);
  c.Introduce(block->id(), block->size(), block->fd());
  c.far->Revoke();
  REQUIRE(c.far->Push({.kind = EntryKind::kInline}, AsBytes(Header(1)), {}, 0));
  REQUIRE(c.far->Push({.kind = EntryKind::kPayloadOutside, .block = block->id(), .payload_bytes = 8192},
                      AsBytes(Header(2)), {}, 0));
  c.Push({.kind = EntryKind::kInline}, Header(3));
  CHECK(c.End().code() == absl::StatusCode::kUnavailable);
  const auto received = c.recorder->received();
  REQUIRE_FALSE(received.empty());
  CHECK(received.back().number == 1);
}

TEST_CASE("an owner is held until the peer has consumed the message, or until the payload is revoked",
          "[transport][shm]") {
  Conversation c;
  Arena arena = *Arena::Allocate(1 << 20, MemoryKind::kShared);
  Event released;
  std::atomic<bool> gone{false};
  std::shared_ptr<const void> owner(&arena, [&](const void*) {
    gone = true;
    released.Set();
  });
  REQUIRE(c.stream->Send(Numbered(1), {{arena.data(), arena.size()}, std::move(owner)}).ok());
  auto incoming = *c.far->Peek();
  REQUIRE(incoming.has_value());
  CHECK(incoming->entry.kind == EntryKind::kPayloadOutside);
  CHECK(incoming->entry.payload_bytes == arena.size());
  CHECK_FALSE(gone);
  SECTION("consumed") {
    c.far->Pop();
    c.far->RingOther();
    CHECK(released.Wait());
    CHECK(c.far->OtherRevoked().load() == 0);
  }
  SECTION("broken off") {
    c.stream->Cancel(absl::UnavailableError("no longer wanted"));
    CHECK(released.Wait());
    CHECK(c.far->OtherRevoked().load() == 1);
  }
}

TEST_CASE("a goodbye is answered at once, but takes no payload back from who still reads it", "[transport][shm]") {
  Conversation c;
  Arena arena = *Arena::Allocate(1 << 20, MemoryKind::kShared);
  Event released;
  std::atomic<bool> read{false}, read_first{false};
  std::shared_ptr<const void> owner(&arena, [&](const void*) {
    read_first = read.load();
    released.Set();
  });
  REQUIRE(c.stream->Send(Numbered(1), {{arena.data(), arena.size()}, std::move(owner)}).ok());
  REQUIRE(c.far->Peek()->has_value());
  const auto& answered = reinterpret_cast<const Shared*>(c.far_memory.data())->rings[0].head;
  const std::uint64_t before = answered.load();
  c.Push({.kind = EntryKind::kGoodbye});
  const TimePoint deadline = Clock::Real().Now() + kPatience;
  while (answered.load() == before && Clock::Real().Now() < deadline) {
    const std::uint32_t seen = c.far->Bell();
    if (answered.load() == before) c.far->WaitForBell(seen, Duration::zero(), deadline);
  }
  CHECK(answered.load() != before);
  // Were it to take the payload back, it would do so now.
  CHECK_FALSE(released.WaitFor(Milliseconds(50)));
  CHECK(c.far->OtherRevoked().load() == 0);
  read = true;
  c.far->Pop();
  c.far->RingOther();
  CHECK(c.End().ok());
  CHECK(released.Wait());
  CHECK(read_first);
}

TEST_CASE("a peer that vanishes ends the stream after what it had sent", "[transport][shm]") {
  Conversation c;
  c.Push({.kind = EntryKind::kInline}, Header(1));
  c.far_socket.Reset();
  CHECK(c.End().code() == absl::StatusCode::kUnavailable);
  CHECK(c.recorder->received().size() == 1);
  CHECK(c.stream->Send(Numbered(1), {}).code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("a peer that never answers a close is left after close_timeout", "[transport][shm]") {
  ShmOptions options;
  options.close_timeout = Milliseconds(50);
  Conversation c(options);
  c.stream->Close();
  CHECK_THAT(std::string(c.End().message()), Catch::Contains("did not end its side"));
}

TEST_CASE("an offer opens one stream, and only one; other tokens open none", "[transport][shm]") {
  Host host;
  auto way = MakeShmWay({});
  auto door = *way->Open("127.0.0.1", host.acceptor());
  const std::string offer = *door->Offer();
  const TimePoint deadline = Clock::Real().Now() + kPatience;
  std::string wrong = offer;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  auto client = std::make_shared<Recorder>();
  CHECK(way->Connect("", wrong, client, deadline).status().code() == absl::StatusCode::kUnavailable);
  CHECK(way->Connect("", "short", client, deadline).status().code() == absl::StatusCode::kInvalidArgument);
  auto stream = way->Connect("", offer, client, deadline);
  REQUIRE(stream.ok());
  CHECK(way->Connect("", offer, client, deadline).status().code() == absl::StatusCode::kUnavailable);
  CHECK(host.count() == 1);
  (*stream)->Close();
  CHECK(client->WaitForClosed().ok());
}

TEST_CASE("the door gives no more than 256 offers at once", "[transport][shm]") {
  Host host;
  auto way = MakeShmWay({});
  auto door = *way->Open("127.0.0.1", host.acceptor());
  for (int i = 0; i < 256; ++i) REQUIRE(door->Offer().ok());
  CHECK(door->Offer().status().code() == absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace evenkeel::shm
