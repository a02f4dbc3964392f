#include "sim/network.h"

#include <algorithm>
#include <cmath>

namespace evenkeel::sim {
namespace {

// After so long without an answer a transport gives a stream up.
constexpr Duration kKeepalive = std::chrono::seconds(4);

}  // namespace

Network::Network(Scheduler& scheduler, std::uint64_t seed, Duration delay, Observer observer)
    : scheduler_(scheduler), seed_(seed), delay_(delay), observer_(std::move(observer)) {}

Network::Link& Network::LinkOf(const std::string& from, const std::string& to) {
  auto [it, fresh] = links_.try_emplace({from, to});
  if (fresh) it->second.rng = Rng(MixKey(seed_, HashName(from), HashName(to)));
  return it->second;
}

Network::Link& Network::LinkTo(Stream& stream, std::size_t end) {
  if (stream.links[end] == nullptr) {
    stream.links[end] = &LinkOf(stream.ends[1 - end]->machine(), stream.ends[end]->machine());
  }
  return *stream.links[end];
}

Network::Stream* Network::Find(SessionId id) {
  auto it = streams_.find(id);
  return it == streams_.end() ? nullptr : it->second.get();
}

SessionId Network::Connect(Peer& from, const std::string& machine) {
  last_ = last_.Next();
  auto stream = std::make_unique<Stream>();
  stream->id = last_;
  stream->ends[0] = &from;
  auto it = listeners_.find(machine);
  const bool there = it != listeners_.end() && it->second->alive();
  if (there) {
    stream->ends[1] = it->second;
  } else {
    // Nobody: refused after a round trip.
    stream->open[1] = false;
    stream->to[0].push_back(Packet{scheduler_.now() + 2 * delay_, true, {}, {}});
  }
  Stream& kept = *stream;
  streams_[last_] = std::move(stream);
  Schedule(kept, 0);
  return last_;
}

void Network::Send(Peer& from, SessionId id, Message message, Payload payload) {
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  const int end = EndOf(*stream, from);
  if (!stream->open[static_cast<std::size_t>(end)] || stream->ends[1] == nullptr) return;
  Push(*stream, 1 - end, Packet{{}, false, std::move(message), payload});
}

void Network::Close(Peer& from, SessionId id) {
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  const auto end = static_cast<std::size_t>(EndOf(*stream, from));
  if (!std::exchange(stream->open[end], false)) return;
  stream->to[end].clear();
  if (stream->ends[1] != nullptr) Push(*stream, 1 - static_cast<int>(end), Packet{{}, true, {}, {}});
  EraseIfOver(id);
}

void Network::Hold(Peer& receiver, SessionId id, Duration time) {
  if (Stream* stream = Find(id)) {
    stream->held[static_cast<std::size_t>(EndOf(*stream, receiver))] = scheduler_.now() + time;
  }
}

void Network::Push(Stream& stream, int to, Packet packet) {
  const auto end = static_cast<std::size_t>(to);
  Link& link = LinkTo(stream, end);
  const double jitter = -std::log(1 - link.rng.NextDouble());
  Duration delay = delay_ / 2 + std::chrono::duration_cast<Duration>(delay_ * 0.5 * jitter);
  if (scheduler_.now() < link.slow_until) {
    delay += std::chrono::duration_cast<Duration>(link.extra * link.rng.NextDouble());
  }
  packet.at = std::max(scheduler_.now() + delay, stream.last[end] + std::chrono::microseconds(1));
  stream.last[end] = packet.at;
  stream.to[end].push_back(std::move(packet));
  most_under_way_ = std::max(most_under_way_, stream.to[end].size());
  Schedule(stream, to);
}

void Network::Schedule(Stream& stream, int to) {
  const auto end = static_cast<std::size_t>(to);
  if (stream.to[end].empty() || stream.scheduled[end]) return;
  stream.scheduled[end] = true;
  scheduler_.At(stream.to[end].front().at, nullptr, [this, id = stream.id, to] {
    Stream* found = Find(id);
    if (found == nullptr) return;
    Peer* receiver = found->ends[static_cast<std::size_t>(to)];
    // A stopped process takes it when it goes on.
    scheduler_.At(scheduler_.now(), receiver, [this, id, to] { Deliver(id, to); });
  });
}

void Network::Deliver(SessionId id, int to) {
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  const auto end = static_cast<std::size_t>(to);
  stream->scheduled[end] = false;
  if (!stream->open[end]) stream->to[end].clear();
  if (stream->to[end].empty()) return EraseIfOver(id);
  Peer& receiver = *stream->ends[end];
  Peer* sender = stream->ends[1 - end];
  TimePoint not_before = stream->held[end];
  if (sender != nullptr) not_before = std::max(not_before, LinkTo(*stream, end).cut_until);
  if (scheduler_.now() < not_before) {
    stream->to[end].front().at = not_before;
    return Schedule(*stream, to);
  }
  if (scheduler_.now() < stream->to[end].front().at) return Schedule(*stream, to);
  Packet packet = std::move(stream->to[end].front());
  stream->to[end].pop_front();
  if (packet.end) {
    stream->open[end] = false;
    stream->to[end].clear();
    receiver.OnClosed(id);
    return EraseIfOver(id);
  }
  Schedule(*stream, to);
  observer_(*sender, receiver, id, packet.message);
  receiver.OnMessage(id, std::move(packet.message), packet.payload);
}

void Network::EraseIfOver(SessionId id) {
  Stream* stream = Find(id);
  if (stream == nullptr || stream->open[0] || stream->open[1]) return;
  if (stream->to[0].empty() && stream->to[1].empty()) streams_.erase(id);
}

void Network::ProcessDied(Peer& peer, bool seen) {
  std::vector<SessionId> ids;
  for (const auto& [id, stream] : streams_) {
    if (stream->ends[0] == &peer || stream->ends[1] == &peer) ids.push_back(id);
  }
  for (SessionId id : ids) {
    Stream& stream = *Find(id);
    const auto end = static_cast<std::size_t>(EndOf(stream, peer));
    stream.open[end] = false;
    stream.to[end].clear();
    if (stream.ends[1] == nullptr || !stream.open[1 - end]) {
      EraseIfOver(id);
      continue;
    }
    if (!seen) {
      const TimePoint at = std::max(scheduler_.now() + kKeepalive, stream.last[1 - end]);
      stream.last[1 - end] = at;
      stream.to[1 - end].push_back(Packet{at, true, {}, {}});
      Schedule(stream, 1 - static_cast<int>(end));
    } else {
      // What its kernel had taken may come through, or not.
      auto& packets = stream.to[1 - end];
      Link& link = LinkOf(peer.machine(), stream.ends[1 - end]->machine());
      packets.resize(link.rng.Below(packets.size() + 1));
      Push(stream, 1 - static_cast<int>(end), Packet{{}, true, {}, {}});
    }
  }
}

bool Network::Break(const std::string& a, const std::string& b, bool a_sees_first, Duration later, double share) {
  const std::string& first = a_sees_first ? a : b;
  std::vector<SessionId> ids;
  for (const auto& [id, stream] : streams_) {
    if (stream->ends[1] == nullptr || !stream->open[0] || !stream->open[1]) continue;
    const std::string& x = stream->ends[0]->machine();
    const std::string& y = stream->ends[1]->machine();
    if ((x == a && y == b) || (x == b && y == a)) ids.push_back(id);
  }
  for (SessionId id : ids) {
    Stream& stream = *Find(id);
    const std::size_t end = stream.ends[0]->machine() == first ? 0 : 1;
    stream.to[end].clear();
    stream.to[end].push_back(Packet{scheduler_.now(), true, {}, {}});
    Schedule(stream, static_cast<int>(end));
    auto& packets = stream.to[1 - end];
    packets.resize(static_cast<std::size_t>(share * static_cast<double>(packets.size())));
    Packet last{scheduler_.now() + later, true, {}, {}};
    stream.last[1 - end] = std::max(stream.last[1 - end], last.at);
    packets.push_back(std::move(last));
    Schedule(stream, 1 - static_cast<int>(end));
  }
  return !ids.empty();
}

void Network::Partition(const std::string& from, const std::string& to, Duration time) {
  Link& link = LinkOf(from, to);
  link.cut_until = std::max(link.cut_until, scheduler_.now() + time);
}

void Network::Slow(const std::string& from, const std::string& to, Duration extra, Duration time) {
  Link& link = LinkOf(from, to);
  link.extra = extra;
  link.slow_until = scheduler_.now() + time;
}

}  // namespace evenkeel::sim
