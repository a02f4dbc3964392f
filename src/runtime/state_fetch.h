// Fills a fresh shard with what other servers hold of its stripes, straight from their memory: a stream to each,
// messages of at most 4 MiB, a few of them in flight. The streams are opened before there is a version to fetch.
//
// Threading: all calls are thread-safe. What Open or Fill was given is called once, from a transport's thread or the
// caller's, never under the lock; not after Cancel has returned, unless it runs already.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/protocol/stream.h"
#include "evenkeel/ps/server.h"
#include "evenkeel/ps/shard.h"

namespace evenkeel {

class StateFetch : public std::enable_shared_from_this<StateFetch> {
 public:
  using Plan = std::vector<std::vector<ps::Shard::MovePiece>>;  // by source
  using Done = std::function<void(const absl::Status&)>;
  // The plan lacks what the shard's server holds itself.
  StateFetch(std::shared_ptr<ps::Shard> shard, Plan plan, ps::PreparePlace order, std::string name,
             Transport& transport, Duration connect_timeout);

  // Once. `opened`: all sources have answered; or why one cannot be fetched from.
  void Open(Done opened) ABSL_LOCKS_EXCLUDED(mutex_);
  // Once, after `opened` came without an error. `arrived` is called for each piece, but the last.
  void Fill(Version version, Done filled, std::function<void()> arrived) ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Handler;
  struct Source {
    std::shared_ptr<Stream> stream;
    std::size_t asked = 0, here = 0;
  };
  void OnMessage(std::size_t source, const Message& message, const PayloadIn& payload) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Take(std::size_t source, const FetchData& data, const PayloadIn& payload) ABSL_LOCKS_EXCLUDED(mutex_);
  void AskMore(std::size_t source) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnOpened() ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const absl::Status& status, bool tell) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<ps::Shard> shard_;  // shared with whoever adopts it
  const Plan plan_;
  const ps::PreparePlace order_;
  const std::string name_;
  Transport& transport_;
  const Duration connect_timeout_;

  Mutex mutex_;
  Done done_ ABSL_GUARDED_BY(mutex_);  // of Open, then of Fill
  std::function<void()> arrived_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
  std::vector<Source> sources_ ABSL_GUARDED_BY(mutex_);
  std::size_t closed_ ABSL_GUARDED_BY(mutex_) = 0;   // sources that have not answered yet
  std::size_t missing_ ABSL_GUARDED_BY(mutex_) = 0;  // pieces
  Version version_ ABSL_GUARDED_BY(mutex_);          // of Fill
};

}  // namespace evenkeel
