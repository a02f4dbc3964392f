// The virtual network: streams as a transport gives them. A stream keeps its order; it loses messages only by breaking,
// and then each side learns of that at its own time, so that late messages of an old stream meet a newer one.
//
// Threading: none.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "evenkeel/core/random.h"
#include "evenkeel/protocol/messages.h"
#include "sim/scheduler.h"

namespace evenkeel::sim {

// What a stage's bytes stand for: their number, and a value that names their content.
struct Payload {
  std::size_t bytes = 0;
  std::uint64_t value = 0;
};

// A process that holds streams. A stream has one name, the same on both sides.
class Peer : public Process {
 public:
  using Process::Process;
  virtual void OnMessage(SessionId stream, Message message, Payload payload) = 0;
  // At most once a stream, last; not after its own Close.
  virtual void OnClosed(SessionId stream) = 0;
};

class Network {
 public:
  // Sees each message at its delivery.
  using Observer = std::function<void(const Peer& from, const Peer& to, SessionId stream, const Message& message)>;

  Network(Scheduler& scheduler, std::uint64_t seed, Duration delay, Observer observer);

  // Who takes the streams to an address; a later one takes an earlier one's place.
  void Listen(const std::string& machine, Peer& peer) { listeners_[machine] = &peer; }
  // Returns at once; where nobody listens, OnClosed follows.
  SessionId Connect(Peer& from, const std::string& machine);
  void Send(Peer& from, SessionId stream, Message message, Payload payload = {});
  // After what was sent; nothing comes from this stream any more.
  void Close(Peer& from, SessionId stream);
  // The receiver takes nothing more from this stream until then.
  void Hold(Peer& receiver, SessionId stream, Duration time);

  // Of one stream's one direction.
  std::size_t most_under_way() const { return most_under_way_; }

  // --- faults
  // Its peers' streams break: at once where it is `seen`, else when their transport's keepalive tells.
  void ProcessDied(Peer& peer, bool seen);
  // All streams between the two: one side sees it at once, the other `later`; of what is on its way to the latter, the
  // first `share` still comes.
  bool Break(const std::string& a, const std::string& b, bool a_sees_first, Duration later, double share);
  void Partition(const std::string& from, const std::string& to, Duration time);
  void Slow(const std::string& from, const std::string& to, Duration extra, Duration time);

 private:
  struct Packet {
    TimePoint at;
    bool end = false;  // the sender has closed, or the stream broke
    Message message;
    Payload payload;
  };
  struct Link {
    Rng rng{0};
    TimePoint cut_until{};
    TimePoint slow_until{};
    Duration extra{0};
  };
  struct Stream {
    SessionId id;
    std::array<Peer*, 2> ends{};  // client, server
    std::array<bool, 2> open{true, true};
    std::array<std::deque<Packet>, 2> to;  // packets on their way to each end
    std::array<TimePoint, 2> last{};       // arrival of the newest one
    std::array<TimePoint, 2> held{};
    std::array<bool, 2> scheduled{};
    std::array<Link*, 2> links{};  // towards each end; null before the first message
  };

  Link& LinkOf(const std::string& from, const std::string& to);
  // Requires both ends.
  Link& LinkTo(Stream& stream, std::size_t end);
  Stream* Find(SessionId id);
  void Push(Stream& stream, int end, Packet packet);
  void Schedule(Stream& stream, int end);
  void Deliver(SessionId id, int end);
  static int EndOf(const Stream& stream, const Peer& peer) { return stream.ends[0] == &peer ? 0 : 1; }
  void EraseIfOver(SessionId id);

  Scheduler& scheduler_;
  const std::uint64_t seed_;
  const Duration delay_;
  const Observer observer_;
  std::map<std::string, Peer*> listeners_;
  std::map<std::pair<std::string, std::string>, Link> links_;
  std::map<SessionId, std::unique_ptr<Stream>> streams_;
  SessionId last_;
  std::size_t most_under_way_ = 0;
};

}  // namespace evenkeel::sim
