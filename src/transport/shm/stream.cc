#include "transport/shm/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/wire.h"

namespace evenkeel::shm {
namespace {

// A payload of at most so many bytes is copied into the ring even if it lies in shared memory: its owner is free at
// once, and the peer need not ring back.
constexpr std::size_t kCopyBytes = 8 << 10;
constexpr std::size_t kSmallestBounce = 64 << 10;
constexpr std::size_t kMaxBlocks = 1024;    // of a peer
constexpr std::int64_t kMessageBytes = 64;  // a message's weight in the queue besides header and payload
constexpr int kMostAtOnce = 16;             // messages, until whoever delivers looks at what else there is
constexpr std::uint64_t kAnyPayload = ~std::uint64_t{0};
// A payload that takes longer to copy than its thread to wake up.
constexpr std::uint64_t kLongestToListenTo = 256 << 10;

// Makes a block known to the peer; without a descriptor and of size 0: it is gone, and the peer's mapping may go.
struct Introduction {
  std::uint64_t id = 0;
  std::uint64_t size = 0;
};

}  // namespace

// --------------------------------------------------------------------------------------------------- open streams

ShmStreams::~ShmStreams() {
  for (std::thread& thread : ended_) {
    // The last holder may be the thread of the last stream, on its way out.
    thread.get_id() == std::this_thread::get_id() ? thread.detach() : thread.join();
  }
}

bool ShmStreams::Add(std::shared_ptr<ShmStream> stream) {
  std::vector<std::thread> ended;
  {
    MutexLock lock(mutex_);
    ended.swap(ended_);
  }
  for (std::thread& thread : ended) thread.join();
  return OpenStreams::Add(std::move(stream));
}

// The thread first: whoever finds no stream open may join what is there.
void ShmStreams::Ended(const std::shared_ptr<ShmStream>& stream, std::thread thread) {
  {
    MutexLock lock(mutex_);
    ended_.push_back(std::move(thread));
  }
  Remove(stream);
}

// -------------------------------------------------------------------------------------------------------- sending

ShmStream::ShmStream(Descriptor socket, Mapping rings, int side, const ShmOptions& options,
                     std::shared_ptr<ShmStreams> registry)
    : socket_(std::move(socket)),
      rings_(std::move(rings)),
      options_(options),
      peer_(absl::StrCat("process ", PeerProcess(socket_.get()), " on this machine")),
      registry_(std::move(registry)),
      channel_(rings_.data(), side) {}

absl::Status ShmStream::Send(Message message, PayloadOut payload) {
  std::string header = EncodeHeader(message);
  std::vector<PayloadOut> done;
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    if (closing_ || ended_ || !reason_.ok()) {
      return absl::UnavailableError(absl::StrCat("[send] stream to ", peer_, " is closed"));
    }
    const auto bytes = static_cast<std::int64_t>(header.size() + payload.bytes.size());
    if (bytes > options_.max_message_bytes) {
      refused = absl::ResourceExhaustedError(absl::StrCat("[send] message of ", bytes, " bytes to ", peer_,
                                                          "; at most ", options_.max_message_bytes, " are allowed"));
    } else if (queued_bytes_ + bytes > options_.max_queued_bytes) {
      refused = absl::ResourceExhaustedError(absl::StrCat("[send] ", peer_, " reads too slowly: ", queued_bytes_,
                                                          " bytes queued, at most ", options_.max_queued_bytes));
    } else {
      absl::StatusOr<Outgoing> outgoing = Prepare(std::move(header), std::move(payload));
      refused = outgoing.status();
      if (outgoing.ok()) {
        queued_bytes_ += outgoing->bytes;
        queue_.push_back(*std::move(outgoing));
        refused = Flush(done);
      }
    }
  }
  if (!refused.ok()) Cancel(refused);
  return refused;
}

absl::StatusOr<ShmStream::Outgoing> ShmStream::Prepare(std::string header, PayloadOut payload) {
  Outgoing outgoing;
  outgoing.bytes = kMessageBytes + static_cast<std::int64_t>(header.size() + payload.bytes.size());
  const std::size_t size = payload.bytes.size();
  const bool header_fits = header.size() <= kMaxInlineBytes;
  if (header_fits && size > kCopyBytes) outgoing.block = SharedBlock::Find(payload.bytes);
  if (outgoing.block != nullptr) {
    outgoing.entry.kind = EntryKind::kPayloadOutside;
    outgoing.entry.block = outgoing.block->id();
    outgoing.entry.offset = static_cast<std::uint64_t>(payload.bytes.data() - outgoing.block->data());
    outgoing.entry.payload_bytes = size;
  } else if (header.size() + size <= kMaxInlineBytes) {
    outgoing.entry.kind = EntryKind::kInline;
  } else {
    const std::size_t head = header_fits ? 0 : header.size();
    EK_ASSIGN_OR_RETURN(outgoing.bounce, TakeBounce(head + size));
    if (head > 0) std::memcpy(outgoing.bounce->data(), header.data(), head);
    if (size > 0) std::memcpy(outgoing.bounce->data() + head, payload.bytes.data(), size);
    outgoing.entry.kind = header_fits ? EntryKind::kPayloadOutside : EntryKind::kAllOutside;
    outgoing.block = outgoing.bounce;
    outgoing.entry.block = outgoing.bounce->id();
    outgoing.entry.payload_bytes = size;
  }
  outgoing.header = std::move(header);
  outgoing.payload = std::move(payload);
  return outgoing;
}

absl::StatusOr<std::shared_ptr<SharedBlock>> ShmStream::TakeBounce(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max(bytes, kSmallestBounce));
  if (auto found = free_bounces_.find(size); found != free_bounces_.end()) {
    std::shared_ptr<SharedBlock> block = std::move(found->second);
    free_bounces_.erase(found);
    return block;
  }
  return SharedBlock::Create(size);
}

absl::Status ShmStream::Flush(std::vector<PayloadOut>& done) {
  bool pushed = false;
  while (!queue_.empty()) {
    Outgoing& next = queue_.front();
    if (next.block != nullptr) EK_RETURN_IF_ERROR(Introduce(next.block));
    std::span<const std::byte> header = AsBytes(next.header);
    std::span<const std::byte> payload;
    if (next.entry.kind == EntryKind::kInline) payload = next.payload.bytes;
    std::size_t outside_header = 0;
    if (next.entry.kind == EntryKind::kAllOutside) outside_header = std::exchange(header, {}).size();
    if (!channel_.Push(next.entry, header, payload, outside_header)) break;
    pushed = true;
    Unconsumed sent{.end = channel_.pushed(), .payload = {}, .bounce = std::move(next.bounce), .bytes = next.bytes};
    if (next.entry.kind == EntryKind::kPayloadOutside && sent.bounce == nullptr) {
      sent.payload = std::move(next.payload);
    } else {
      done.push_back(std::move(next.payload));
    }
    unconsumed_.push_back(std::move(sent));
    queue_.pop_front();
  }
  if (queue_.empty() && closing_ && !goodbye_pushed_ && reason_.ok()) {
    goodbye_pushed_ = channel_.Push(Entry{.kind = EntryKind::kGoodbye}, {}, {}, 0);
    pushed |= goodbye_pushed_;
  }
  if (pushed) channel_.RingOther();
  return absl::OkStatus();
}

// What is on its way holds its block, so that the peer needs none that is gone.
absl::Status ShmStream::Introduce(const std::shared_ptr<const SharedBlock>& block) {
  if (!introduced_.emplace(block->id(), block).second) return absl::OkStatus();
  for (auto it = introduced_.begin(); it != introduced_.end();) {
    if (!it->second.expired()) {
      ++it;
      continue;
    }
    const Introduction gone{it->first, 0};
    EK_RETURN_IF_ERROR(SendRecord(socket_.get(), std::as_bytes(std::span(&gone, 1)), -1));
    it = introduced_.erase(it);
  }
  const Introduction introduction{block->id(), block->size()};
  return SendRecord(socket_.get(), std::as_bytes(std::span(&introduction, 1)), block->fd());
}

void ShmStream::Close() {
  std::vector<PayloadOut> done;
  absl::Status failed;
  {
    MutexLock lock(mutex_);
    if (closing_ || ended_) return;
    closing_ = true;
    close_deadline_ = Clock::Real().Now() + options_.close_timeout;
    failed = Flush(done);
  }
  if (!failed.ok()) Cancel(failed);
  channel_.RingOwn();
}

void ShmStream::Cancel(absl::Status reason) {
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    if (reason_.ok()) reason_ = std::move(reason);
    closing_ = true;
  }
  channel_.RingOwn();
}

void ShmStream::PeerGone() {
  peer_gone_.store(true, std::memory_order_release);
  channel_.RingOwn();
}

// ------------------------------------------------------------------------------------------------------ receiving

void ShmStream::Start(std::shared_ptr<StreamHandler> handler) {
  {
    MutexLock turn(turn_);
    handler_ = std::move(handler);
  }
  watch_ = Watcher::Of().Add(socket_.get(), false, kNever, [weak = weak_from_this()](bool) {
    if (auto self = weak.lock()) self->PeerGone();
  });
  // The thread waits for its own handle, which it hands over at its end.
  MutexLock lock(mutex_);
  thread_ = std::thread([self = shared_from_this()] { self->Run(); });
}

void ShmStream::Run() {
  for (;;) {
    const std::uint32_t seen = channel_.Bell();
    Release();
    {
      MutexLock turn(turn_);
      const bool delivered = Deliver(kAnyPayload).messages;
      if (std::optional<absl::Status> status = Over()) {
        Finish(*status);
        return;
      }
      if (delivered) continue;
    }
    TimePoint deadline;
    {
      MutexLock lock(mutex_);
      deadline = close_deadline_;
    }
    channel_.WaitForBell(seen, options_.look, deadline);
  }
}

void ShmStream::BeginToListen() {
  answered_ = channel_.Bell() - 1;  // the stream's thread may have left something
  channel_.BeginToListen();
}

ShmStream::Heard ShmStream::Listen() {
  Heard heard;
  if (channel_.Bell() == answered_ || !turn_.TryLock()) return heard;
  // Once more after something came, so that no ring is left that has been answered.
  for (int i = 0; i < 2 && handler_ != nullptr; ++i) {
    const std::uint32_t seen = channel_.Bell();
    Release();
    if (goodbye_received_) channel_.RingOwn();  // as DeliverOne: what is consumed may be what the end waits for
    const Heard now = Deliver(kLongestToListenTo);
    heard.messages |= now.messages;
    heard.long_payload = now.long_payload;
    if (now.long_payload) break;
    if (!now.messages) {
      answered_ = seen;
      break;
    }
  }
  turn_.Unlock();
  return heard;
}

void ShmStream::EndToListen() { channel_.EndToListen(answered_); }

void ShmStream::Release() {
  std::vector<PayloadOut> done;
  absl::Status failed;
  {
    MutexLock lock(mutex_);
    absl::StatusOr<std::uint64_t> consumed = channel_.Consumed();
    failed = consumed.status();
    while (failed.ok() && !unconsumed_.empty() && unconsumed_.front().end <= *consumed) {
      Unconsumed& sent = unconsumed_.front();
      queued_bytes_ -= sent.bytes;
      done.push_back(std::move(sent.payload));
      if (sent.bounce != nullptr) {
        const std::size_t size = sent.bounce->size();
        free_bounces_.emplace(size, std::move(sent.bounce));
      }
      unconsumed_.pop_front();
    }
    if (failed.ok()) failed = Flush(done);
  }
  if (!failed.ok()) Cancel(failed);
}

ShmStream::Heard ShmStream::Deliver(std::uint64_t longest_payload) {
  Heard heard;
  for (int i = 0; i < kMostAtOnce; ++i) {
    {
      MutexLock lock(mutex_);
      if (!reason_.ok()) return heard;
    }
    if (goodbye_received_) return heard;
    auto incoming = channel_.Peek();
    absl::Status status = incoming.status();
    if (status.ok() && !incoming->has_value()) return heard;
    heard.long_payload = status.ok() && (**incoming).entry.payload_bytes > longest_payload;
    if (heard.long_payload) return heard;
    heard.messages = true;
    const bool full = channel_.HalfFull();
    if (status.ok()) status = DeliverOne(**incoming);
    if (!status.ok()) {
      Cancel(absl::Status(status.code(), absl::StrCat("[stream] ", peer_, ": ", status.message())));
      return heard;
    }
    const EntryKind kind = (**incoming).entry.kind;
    channel_.Pop();
    // The peer waits for its payload, or for room.
    if (full || kind == EntryKind::kPayloadOutside || kind == EntryKind::kAllOutside) channel_.RingOther();
  }
  return heard;
}

absl::Status ShmStream::DeliverOne(const Channel::Incoming& incoming) {
  const Entry& entry = incoming.entry;
  std::span<const std::byte> header = AsBytes(incoming.header);
  std::span<const std::byte> payload = incoming.payload;
  const std::atomic<std::uint32_t>* revoked = nullptr;
  if (entry.header_bytes > kMaxHeaderBytes ||
      entry.payload_bytes > static_cast<std::uint64_t>(options_.max_message_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", entry.header_bytes, " and ", entry.payload_bytes,
                                                   " bytes; at most ", kMaxHeaderBytes, " and ",
                                                   options_.max_message_bytes, " are allowed"));
  }
  switch (entry.kind) {
    case EntryKind::kGoodbye:
      goodbye_received_ = true;
      channel_.RingOwn();  // a listener leaves the end to the stream's thread
      return absl::OkStatus();
    case EntryKind::kInline:
      break;
    case EntryKind::kPayloadOutside: {
      EK_ASSIGN_OR_RETURN(payload, Outside(entry, entry.payload_bytes));
      revoked = &channel_.OtherRevoked();
      break;
    }
    case EntryKind::kAllOutside: {
      EK_ASSIGN_OR_RETURN(auto all, Outside(entry, std::size_t{entry.header_bytes} + entry.payload_bytes));
      header = all.first(entry.header_bytes);
      payload = all.subspan(entry.header_bytes);
      revoked = &channel_.OtherRevoked();
      break;
    }
    case EntryKind::kSkip:
      return absl::DataLossError("a filler was delivered");
  }
  EK_ASSIGN_OR_RETURN(Message message, DecodeHeader(header));
  PayloadIn in;
  if (!payload.empty()) in = PayloadIn(std::span<const std::span<const std::byte>>(&payload, 1), revoked);
  handler_->OnMessage(*this, std::move(message), in);
  // What comes after bytes that did not count must not count either.
  if (!in.Whole()) return absl::UnavailableError("it broke the stream off, and took a payload back");
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> ShmStream::Outside(const Entry& entry, std::size_t bytes) {
  auto found = blocks_.find(entry.block);
  // A block is introduced before an entry names it, so what is not known waits on the socket.
  while (found == blocks_.end()) {
    Introduction introduction;
    auto record = ReceiveRecord(socket_.get(), std::as_writable_bytes(std::span(&introduction, 1)));
    if (!record.ok()) {
      return absl::Status(record.status().code(),
                          absl::StrCat("block ", entry.block, " is not known: ", record.status().message()));
    }
    if (record->fd.get() < 0 && introduction.size == 0 && blocks_.erase(introduction.id) > 0) continue;
    if (record->fd.get() < 0) return absl::InvalidArgumentError("a block was introduced without its descriptor");
    if (blocks_.size() >= kMaxBlocks) {
      return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxBlocks, " blocks of shared memory"));
    }
    EK_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Of(record->fd.get(), introduction.size, false));
    const auto at = blocks_.emplace(introduction.id, std::move(mapping)).first;
    if (introduction.id == entry.block) found = at;
  }
  const Mapping& mapping = found->second;
  if (entry.offset > mapping.size() || bytes > mapping.size() - entry.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes [", entry.offset, ", +", bytes, ") of a block of ", mapping.size()));
  }
  return std::span<const std::byte>(mapping.data() + entry.offset, bytes);
}

std::optional<absl::Status> ShmStream::Over() {
  const bool gone = peer_gone_.load(std::memory_order_acquire);
  std::vector<PayloadOut> done;
  std::deque<Outgoing> dropped;
  MutexLock lock(mutex_);
  if (!reason_.ok()) return reason_;
  if (goodbye_received_) {
    // Nobody reads what is still queued; the goodbye follows what has been pushed.
    dropped.swap(queue_);
    if (!closing_) close_deadline_ = Clock::Real().Now() + options_.close_timeout;
    closing_ = true;
    absl::Status failed = Flush(done);
    // Who said goodbye reads until it is answered: a payload must not be taken back while it does.
    const bool read = std::none_of(unconsumed_.begin(), unconsumed_.end(), [](const Unconsumed& sent) {
      return sent.bounce != nullptr || !sent.payload.bytes.empty();
    });
    const bool late = Clock::Real().Now() >= close_deadline_;
    if ((goodbye_pushed_ && (read || late)) || gone || !failed.ok()) return absl::OkStatus();
  }
  if (gone && !channel_.HasIncoming()) {
    return absl::UnavailableError(absl::StrCat("[stream] ", peer_, " went away"));
  }
  if (Clock::Real().Now() >= close_deadline_) {
    return absl::UnavailableError(absl::StrCat("[close] ", peer_, " did not end its side in time"));
  }
  return std::nullopt;
}

void ShmStream::Finish(const absl::Status& status) {
  std::deque<Outgoing> queue;
  std::deque<Unconsumed> unconsumed;
  std::thread thread;
  channel_.Revoke();
  {
    MutexLock lock(mutex_);
    ended_ = closing_ = true;
    queue.swap(queue_);
    unconsumed.swap(unconsumed_);
    free_bounces_.clear();
    thread = std::move(thread_);
  }
  queue.clear();
  unconsumed.clear();
  Watcher::Of().Remove(watch_);
  // The descriptor stays until the object goes: a sender may be using its number.
  shutdown(socket_.get(), SHUT_RDWR);
  // The handler often holds the stream: dropping it here breaks the circle.
  std::exchange(handler_, nullptr)->OnClosed(*this, status);
  registry_->Ended(shared_from_this(), std::move(thread));
}

}  // namespace evenkeel::shm
