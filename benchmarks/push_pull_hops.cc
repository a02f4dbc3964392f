#include "push_pull_hops.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "bench_support.h"

namespace evenkeel::bench {
namespace {

class NotedStream final : public Stream {
 public:
  NotedStream(std::shared_ptr<Stream> stream, HopBoard& board) : stream_(std::move(stream)), board_(board) {}
  absl::Status Send(Message message, PayloadOut payload) override {
    const auto* data = std::get_if<PullData>(&message.body);
    if (data == nullptr) return stream_->Send(std::move(message), std::move(payload));
    board_.PassFirst(Station::kFirstDataOut);
    absl::Status sent = stream_->Send(std::move(message), std::move(payload));
    board_.Pass(Station::kLastDataOut);
    return sent;
  }
  void Close() override { stream_->Close(); }
  std::string peer() const override { return stream_->peer(); }
  std::string way() const override { return stream_->way(); }

 private:
  const std::shared_ptr<Stream> stream_;
  HopBoard& board_;
};

class NotedHandler final : public StreamHandler {
 public:
  NotedHandler(std::shared_ptr<StreamHandler> handler, HopBoard& board) : handler_(std::move(handler)), board_(board) {}
  std::span<std::byte> Destination(Stream& stream, const Message& message, std::size_t payload_bytes) override {
    return handler_->Destination(stream, message, payload_bytes);
  }
  void OnMessage(Stream& stream, Message message, const PayloadIn& payload) override {
    if (std::holds_alternative<Pull>(message.body)) board_.Pass(Station::kPullIn);
    const bool stage = std::holds_alternative<Stage>(message.body);
    const bool floats = stage && payload.size() > 0;
    if (stage) board_.PassFirst(Station::kFirstStage);
    if (stage) board_.Pass(floats ? Station::kLastStageIn : Station::kClosingIn);
    handler_->OnMessage(stream, std::move(message), payload);
    if (floats) board_.Pass(Station::kLastStageOut);
  }
  void OnClosed(Stream& stream, const absl::Status& status) override { handler_->OnClosed(stream, status); }

 private:
  const std::shared_ptr<StreamHandler> handler_;
  HopBoard& board_;
};

}  // namespace

const char* NameOf(Station station) {
  constexpr std::array<const char*, static_cast<std::size_t>(Station::kCount)> kNames{
      "worker: round begins",
      "worker: all Stage and Pull queued",
      "server: first Stage delivered",
      "server: last floats delivered",
      "server: last floats in the slot",
      "server: closing Stage delivered",
      "chief: set sealed",
      "server: apply begins",
      "server: apply ends",
      "chief: applied",
      "server: Pull delivered",
      "server: first PullData queued",
      "server: last PullData queued",
      "worker: first PullData delivered",
      "worker: last floats delivered",
      "worker: end of data delivered",
      "worker: step loop awake"};
  return kNames[static_cast<std::size_t>(station)];
}

absl::StatusOr<HopBoard*> HopBoard::Create() {
  void* memory = mmap(nullptr, sizeof(HopBoard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("no memory to note the stations in");
  return new (memory) HopBoard;
}

void HopBoard::Begin() {
  for (std::atomic<std::int64_t>& at : at_) at.store(0, std::memory_order_relaxed);
  Pass(Station::kBegin);
}

void HopBoard::End(bool counts) {
  Pass(Station::kWoken);
  if (!counts) return;
  auto& round = rounds_[static_cast<std::size_t>(noted_.load()) % kMostRounds];
  for (std::size_t i = 0; i < kStations; ++i) round[i] = at_[i].load(std::memory_order_relaxed);
  noted_.fetch_add(1);
}

double HopBoard::Median(Station station) const {
  std::vector<double> times;
  for (std::size_t r = 0; r < std::min(rounds(), kMostRounds); ++r) {
    const std::int64_t at = rounds_[r][static_cast<std::size_t>(station)];
    if (at != 0) times.push_back(static_cast<double>(at - rounds_[r][0]) * 1e-9);
  }
  return times.empty() ? -1 : Quantile(std::move(times), 0.5);
}

Acceptor WithStations(Acceptor acceptor, HopBoard& board) {
  return [acceptor = std::move(acceptor), &board](std::shared_ptr<Stream> stream) -> std::shared_ptr<StreamHandler> {
    std::shared_ptr<StreamHandler> handler = acceptor(std::make_shared<NotedStream>(std::move(stream), board));
    if (handler == nullptr) return nullptr;
    return std::make_shared<NotedHandler>(std::move(handler), board);
  };
}

}  // namespace evenkeel::bench
