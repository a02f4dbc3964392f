// A stream on a TCP connection of its own.
//
// Threads: two for each stream. The reader sleeps in recv itself and gives the handler its calls; the writer sleeps in
// sendmsg itself and sends what did not fit into the socket when Send was called. So a large transfer costs the same
// calls as on a bare socket (a poll before each costs a switch more), and with a few streams on a few cores the copies
// of different streams, and of both directions, run side by side, which one thread for all would not let them.
//
// Closing: each side says goodbye after what it had queued. A server that hears the client's sends all that it has
// queued first; a client that hears the server's drops what it has not begun to send. A stream is over when both
// goodbyes are through (Ok), or the connection is broken.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/protocol/stream.h"
#include "evenkeel/transport/transports.h"
#include "transport/tcp/crew.h"
#include "transport/tcp/frames.h"
#include "transport/tcp/socket.h"

namespace evenkeel {

class TcpStream final : public Stream, public std::enable_shared_from_this<TcpStream> {
 public:
  enum class Side { kClient, kServer };

  // `fd`: connected, the handshake done. The crew's owner waits for its streams before it stops it.
  TcpStream(Fd fd, Side side, std::string peer, const TcpOptions& options, std::shared_ptr<Crew> crew);

  absl::Status Send(Message message, PayloadOut payload) override;
  void Close() override;
  std::string peer() const override { return peer_; }
  std::string way() const override { return "tcp"; }

  // Begins to read and to write what was queued so far; the crew has the stream. Once.
  void Begin(std::shared_ptr<StreamHandler> handler);
  // Ends the stream now; OnClosed gets `reason` unless an earlier one is known.
  void Cut(absl::Status reason);

 private:
  // Writes what it can without blocking; the caller has set writing_.
  void SendNow(OutFrame frame);
  bool MaySendNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return begun_ && !writing_ && queue_.empty(); }
  bool MustSend() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !broken_ && (!queue_.empty() || (closing_ && !goodbye_taken_));
  }
  void Sent(const OutFrame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells whoever waits for writing_ or what follows from it.
  void StopWriting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The writer's thread.
  void Write();
  // Takes what is to be written next: a large message, or several small ones. False: the stream is over.
  bool TakeFrames(std::vector<OutFrame>& frames);

  // The reader's thread.
  void Read();
  // Gives the handler its messages, until the peer's goodbye (Ok) or an error.
  absl::Status Deliver();
  // After the peer's goodbye, until ours is sent or the stream is cut.
  void SayGoodbye();
  void Finish();

  Fd fd_;  // used by the reader, by who has set writing_, and under the mutex until over_
  const Side side_;
  const std::string peer_;
  const TcpOptions options_;
  const std::shared_ptr<Crew> crew_;
  std::shared_ptr<StreamHandler> handler_;  // used by the reader only
  std::thread writer_;                      // joined by the reader

  Mutex mutex_;
  CondVar writer_wake_, changed_;
  std::thread reader_ ABSL_GUARDED_BY(mutex_);
  FrameQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // with what is being written
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // somebody is about to write, or writes
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // Close was called, or the stream broke
  bool goodbye_taken_ ABSL_GUARDED_BY(mutex_) = false;
  bool goodbye_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more is sent or delivered
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // not ok: why the stream broke
};

}  // namespace evenkeel
