// A stream over two rings: messages lie in the rings, bulk payloads stay in the sender's shared memory, where the
// receiver's handler reads them. A payload that is not in shared memory is copied there first.
//
// A thread a stream delivers, and takes note of what the peer has consumed; for a while another may do so in its place
// (BeginToListen), one of the two at a time. The stream's own ends it. The sender's owner of a payload is let go when
// the peer has consumed the message; if the stream breaks before, the payload is revoked first, and what the peer reads
// of it from then on does not count (PayloadIn::Whole).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/shared_memory.h"
#include "evenkeel/protocol/stream.h"
#include "evenkeel/transport/transports.h"
#include "transport/open_streams.h"
#include "transport/shm/channel.h"
#include "transport/shm/memory.h"
#include "transport/shm/watcher.h"

namespace evenkeel::shm {

class ShmStream;

// And their threads until they are joined.
class ShmStreams : public OpenStreams<ShmStream> {
 public:
  ~ShmStreams();  // requires that all have ended
  bool Add(std::shared_ptr<ShmStream> stream);
  // The stream has ended; called on its thread, `thread`, as the last it does.
  void Ended(const std::shared_ptr<ShmStream>& stream, std::thread thread);

 private:
  Mutex mutex_;
  std::vector<std::thread> ended_ ABSL_GUARDED_BY(mutex_);
};

class ShmStream final : public Stream, public std::enable_shared_from_this<ShmStream> {
 public:
  // `side` as Channel's.
  ShmStream(Descriptor socket, Mapping rings, int side, const ShmOptions& options,
            std::shared_ptr<ShmStreams> registry);

  absl::Status Send(Message message, PayloadOut payload) override;
  void Close() override;
  std::string peer() const override { return peer_; }
  std::string way() const override { return "shm"; }

  // Begins to deliver. Once.
  void Start(std::shared_ptr<StreamHandler> handler);
  // Between the first and the last of these the caller delivers what comes, as often as it calls Listen, while the
  // stream's own thread sleeps; afterwards that goes on with what is left. One listener at a time.
  struct Heard {
    bool messages = false;      // the handler was given some; more may wait, but others are to have their turn
    bool long_payload = false;  // one comes that takes so long to read that the stream's thread had better do it
  };
  void BeginToListen();
  Heard Listen();
  void EndToListen();
  // Ends the stream; OnClosed gets `reason` unless an earlier one is known.
  void Cancel(absl::Status reason);

 private:
  struct Outgoing {
    Entry entry;
    std::string header;
    PayloadOut payload;                        // kInline: to be copied; kPayloadOutside: held until consumed
    std::shared_ptr<SharedBlock> bounce;       // of a payload that was copied into shared memory
    std::shared_ptr<const SharedBlock> block;  // that the peer must know first
    std::int64_t bytes = 0;
  };
  struct Unconsumed {
    std::uint64_t end = 0;  // of its entry
    PayloadOut payload;
    std::shared_ptr<SharedBlock> bounce;
    std::int64_t bytes = 0;
  };

  absl::StatusOr<Outgoing> Prepare(std::string header, PayloadOut payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<SharedBlock>> TakeBounce(std::size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Pushes what there is room for. Payloads that need not be kept go to `done`, to be let go outside the lock.
  absl::Status Flush(std::vector<PayloadOut>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a block known to the peer, and that others are gone: its mapping of them holds their memory.
  absl::Status Introduce(const std::shared_ptr<const SharedBlock>& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run();
  // Takes note of what the peer has consumed.
  void Release();
  // Gives the handler what has come, but not all of it at once, and nothing from a payload on that is longer.
  Heard Deliver(std::uint64_t longest_payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  absl::Status DeliverOne(const Channel::Incoming& incoming) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  absl::StatusOr<std::span<const std::byte>> Outside(const Entry& entry, std::size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  // The reason to end, if there is one.
  std::optional<absl::Status> Over() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  void Finish(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  void PeerGone();  // the socket's other end was closed

  Descriptor socket_;
  const Mapping rings_;
  const ShmOptions options_;
  const std::string peer_;
  const std::shared_ptr<ShmStreams> registry_;
  Watcher::Key watch_ = 0;
  std::thread thread_;
  std::atomic<bool> peer_gone_{false};

  std::uint32_t answered_ = 0;  // the listener's: the bell before all that it has delivered

  // Held by whoever delivers, while the handler is called too: its calls come one at a time.
  Mutex turn_;
  std::shared_ptr<StreamHandler> handler_ ABSL_GUARDED_BY(turn_);   // null: not started, or ended
  std::map<std::uint64_t, Mapping> blocks_ ABSL_GUARDED_BY(turn_);  // the peer's
  bool goodbye_received_ ABSL_GUARDED_BY(turn_) = false;

  Mutex mutex_ ABSL_ACQUIRED_AFTER(turn_);
  Channel channel_;                                     // pushes under mutex_, reads under turn_
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mutex_);  // for which the ring has no room
  std::deque<Unconsumed> unconsumed_ ABSL_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::weak_ptr<const SharedBlock>> introduced_ ABSL_GUARDED_BY(mutex_);  // the peer knows them
  std::multimap<std::size_t, std::shared_ptr<SharedBlock>> free_bounces_ ABSL_GUARDED_BY(mutex_);
  std::int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // neither consumed nor given up
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool goodbye_pushed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint close_deadline_ ABSL_GUARDED_BY(mutex_) = kNever;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // not ok: why this side ends it
};

}  // namespace evenkeel::shm
