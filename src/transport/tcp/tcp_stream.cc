#include "transport/tcp/tcp_stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "evenkeel/protocol/wire.h"

namespace evenkeel {
namespace {

// Small messages are written together up to here; a larger one alone, so that its owner is released when it is sent.
constexpr std::size_t kBytesTogether = 256 << 10;

}  // namespace

TcpStream::TcpStream(Fd fd, Side side, std::string peer, const TcpOptions& options, std::shared_ptr<Crew> crew)
    : fd_(std::move(fd)), side_(side), peer_(std::move(peer)), options_(options), crew_(std::move(crew)) {}

absl::Status TcpStream::Send(Message message, PayloadOut payload) {
  std::string header = EncodeHeader(message);
  const std::size_t header_bytes = header.size();
  OutFrame frame(std::move(header), std::move(payload));
  const auto bytes = static_cast<std::int64_t>(frame.size());
  absl::Status refused;
  bool now = false;
  {
    MutexLock lock(mutex_);
    if (closing_) return absl::UnavailableError(absl::StrCat("[send] stream to ", peer_, " is closed"));
    if (header_bytes > kMaxHeaderBytes ||
        bytes > options_.max_message_bytes + static_cast<std::int64_t>(kFramePrefixBytes)) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("[send] message of ", bytes, " bytes to ", peer_, "; at most ", options_.max_message_bytes,
                       " are allowed, and ", kMaxHeaderBytes, " without the payload"));
    } else if (queued_bytes_ + bytes > options_.max_queued_bytes) {
      refused = absl::ResourceExhaustedError(absl::StrCat("[send] ", peer_, " reads too slowly: ", queued_bytes_,
                                                          " bytes queued, at most ", options_.max_queued_bytes));
    } else {
      queued_bytes_ += bytes;
      now = MaySendNow();
      if (now) {
        writing_ = true;
      } else {
        queue_.PushBack(std::move(frame));
        if (!writing_) writer_wake_.NotifyOne();
      }
    }
  }
  if (!refused.ok()) {
    Cut(refused);
    return refused;
  }
  if (now) SendNow(std::move(frame));
  return absl::OkStatus();
}

void TcpStream::Close() {
  bool now = false;
  {
    MutexLock lock(mutex_);
    if (closing_) return;
    closing_ = true;
    now = MaySendNow();
    if (now) {
      writing_ = goodbye_taken_ = true;
    } else if (!writing_) {
      writer_wake_.NotifyOne();
    }
  }
  crew_->CutAt(Clock::Real().Now() + options_.close_timeout, weak_from_this(),
               absl::UnavailableError(absl::StrCat("[close] ", peer_, " did not end its side in time")));
  if (now) SendNow(OutFrame::Goodbye());
}

void TcpStream::Cut(absl::Status reason) {
  FrameQueue dropped;
  MutexLock lock(mutex_);
  if (over_) return;
  if (reason_.ok()) reason_ = std::move(reason);
  closing_ = broken_ = true;
  std::swap(dropped, queue_);
  shutdown(fd_.get(), SHUT_RDWR);  // wakes both threads
  changed_.NotifyAll();
}

void TcpStream::Begin(std::shared_ptr<StreamHandler> handler) {
  handler_ = std::move(handler);
  writer_ = std::thread([this] { Write(); });
  MutexLock lock(mutex_);
  begun_ = true;
  reader_ = std::thread([self = shared_from_this()] { self->Read(); });
}

// -------------------------------------------------------------------------------------------------------- writing

void TcpStream::SendNow(OutFrame frame) {
  int error = WriteFrames(fd_.get(), {&frame, 1}, MSG_DONTWAIT);
  if (error == EAGAIN || error == EINTR) error = 0;
  if (error != 0) Cut(absl::UnavailableError(absl::StrCat("[stream] ", peer_, ": ", std::strerror(error))));
  MutexLock lock(mutex_);
  if (frame.done()) {
    Sent(frame);
  } else if (!broken_) {
    queue_.PushFront(std::move(frame));
  }
  StopWriting();
}

void TcpStream::Sent(const OutFrame& frame) {
  queued_bytes_ -= static_cast<std::int64_t>(frame.size());
  if (frame.goodbye()) goodbye_sent_ = true;
}

void TcpStream::StopWriting() {
  writing_ = false;
  if (MustSend()) writer_wake_.NotifyOne();
  changed_.NotifyAll();
}

void TcpStream::Write() {
  std::vector<OutFrame> frames;
  frames.reserve(kFramesAtOnce);
  while (TakeFrames(frames)) {
    std::span<OutFrame> left(frames);
    int error = 0;
    while (!left.empty() && error == 0) {
      error = WriteFrames(fd_.get(), left, 0);
      if (error == EINTR) error = 0;
      while (!left.empty() && left.front().done()) left = left.subspan(1);
    }
    if (error != 0) Cut(absl::UnavailableError(absl::StrCat("[stream] ", peer_, ": ", std::strerror(error))));
    {
      MutexLock lock(mutex_);
      for (const OutFrame& frame : frames) Sent(frame);
      StopWriting();
    }
    frames.clear();
  }
}

bool TcpStream::TakeFrames(std::vector<OutFrame>& frames) {
  MutexLock lock(mutex_);
  while (!over_ && (writing_ || !MustSend())) writer_wake_.Wait(mutex_);
  if (over_) return false;
  writing_ = true;
  if (queue_.empty()) {
    goodbye_taken_ = true;
    frames.push_back(OutFrame::Goodbye());
    return true;
  }
  std::size_t bytes = 0;
  do {
    bytes += queue_.front().size();
    frames.push_back(queue_.PopFront());
  } while (!queue_.empty() && frames.size() < kFramesAtOnce && bytes + queue_.front().size() <= kBytesTogether);
  return true;
}

// -------------------------------------------------------------------------------------------------------- reading

void TcpStream::Read() {
  absl::Status status = Deliver();
  if (status.ok()) {
    SayGoodbye();
  } else {
    Cut(absl::Status(status.code(), absl::StrCat("[stream] ", peer_, ": ", status.message())));
  }
  Finish();
}

absl::Status TcpStream::Deliver() {
  FrameReader reader(fd_.get(), options_.max_message_bytes, options_.spin);
  auto broken = [this] {
    MutexLock lock(mutex_);
    return broken_;
  };
  const absl::Status cut = absl::UnavailableError("the stream was cut");
  while (true) {
    absl::StatusOr<FrameReader::Frame> frame = reader.Next();
    if (!frame.ok()) return frame.status();
    if (frame->goodbye) return absl::OkStatus();
    if (broken()) return cut;
    std::array<std::span<const std::byte>, 1> pieces;
    if (frame->payload_bytes > 0) {
      absl::StatusOr<std::span<const std::byte>> payload =
          reader.Payload(*frame, handler_->Destination(*this, frame->message, frame->payload_bytes));
      if (!payload.ok()) return payload.status();
      if (broken()) return cut;
      pieces[0] = *payload;
    }
    handler_->OnMessage(*this, std::move(frame->message), PayloadIn(pieces));
  }
}

void TcpStream::SayGoodbye() {
  FrameQueue dropped;
  if (side_ == Side::kClient) {
    // Nobody wants it. What is begun must end, or the goodbye would not be understood.
    MutexLock lock(mutex_);
    std::swap(dropped, queue_);
    if (!dropped.empty() && (dropped.front().begun() || dropped.front().goodbye())) {
      queue_.PushBack(dropped.PopFront());
    }
  }
  Close();
  MutexLock lock(mutex_);
  if (!writing_ && MustSend()) writer_wake_.NotifyOne();
  while (!goodbye_sent_ && !broken_) changed_.Wait(mutex_);  // at most options_.close_timeout: Close sees to it
}

void TcpStream::Finish() {
  absl::Status status;
  std::thread thread;
  {
    MutexLock lock(mutex_);
    closing_ = over_ = true;
    writer_wake_.NotifyAll();
  }
  writer_.join();
  FrameQueue dropped;
  {
    MutexLock lock(mutex_);
    while (writing_) changed_.Wait(mutex_);  // a Send in a call that does not block
    std::swap(dropped, queue_);
    fd_ = Fd();
    status = reason_;
    thread = std::move(reader_);
  }
  // The handler often holds the stream: dropping it here breaks the circle.
  std::exchange(handler_, nullptr)->OnClosed(*this, status);
  crew_->Remove(shared_from_this(), std::move(thread));
}

}  // namespace evenkeel
