#include "runtime/state_fetch.h"

#include <span>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr std::size_t kInFlight = 4;  // pieces asked of one source

}  // namespace

struct StateFetch::Handler final : StreamHandler {
  Handler(std::shared_ptr<StateFetch> f, std::size_t s) : fetch(std::move(f)), source(s) {}
  void OnMessage(Stream&, Message message, const PayloadIn& payload) override {
    fetch->OnMessage(source, message, payload);
  }
  void OnClosed(Stream&, const absl::Status& status) override {
    const ServerAddress& server = fetch->order_.sources[source];
    fetch->End(absl::UnavailableError(
                   absl::StrCat("the stream to ", server.name, " at ", server.address, " broke: ", status.message())),
               true);
  }
  const std::shared_ptr<StateFetch> fetch;  // a stream's last call may come late
  const std::size_t source;
};

StateFetch::StateFetch(std::shared_ptr<ps::Shard> shard, Plan plan, ps::PreparePlace order, std::string name,
                       Transport& transport, Duration connect_timeout)
    : shard_(std::move(shard)),
      plan_(std::move(plan)),
      order_(std::move(order)),
      name_(std::move(name)),
      transport_(transport),
      connect_timeout_(connect_timeout),
      sources_(plan_.size()) {
  for (const auto& pieces : plan_) {
    missing_ += pieces.size();
    if (!pieces.empty()) ++closed_;
  }
}

void StateFetch::Open(Done opened) {
  bool none = false;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    none = closed_ == 0;
    if (!none) done_ = std::move(opened);
  }
  if (none) return opened(absl::OkStatus());
  for (std::size_t source = 0; source < plan_.size(); ++source) {
    if (plan_[source].empty()) continue;
    auto handler = std::make_shared<Handler>(shared_from_this(), source);
    std::shared_ptr<Stream> stream =
        transport_.Connect(Service::kParameterServer, order_.sources[source].address, handler, connect_timeout_);
    bool ended = false;
    {
      MutexLock lock(mutex_);
      ended = ended_.has_value();
      if (!ended) sources_[source].stream = stream;
    }
    if (ended) return stream->Close();
    (void)stream->Send(Message{order_.envelope, Hello{name_}});  // OnClosed tells when it fails
  }
}

void StateFetch::OnOpened() {
  Done opened;
  {
    MutexLock lock(mutex_);
    if (!ended_ && --closed_ == 0) opened = std::exchange(done_, nullptr);
  }
  if (opened) opened(absl::OkStatus());
}

void StateFetch::Fill(Version version, Done filled, std::function<void()> arrived) {
  std::optional<absl::Status> broken;  // since it was opened
  bool complete = false;
  {
    MutexLock lock(mutex_);
    broken = ended_;
    version_ = version;
    complete = missing_ == 0;
    if (!broken) {
      done_ = std::move(filled);
      arrived_ = std::move(arrived);
    }
  }
  if (broken) {
    if (!absl::IsCancelled(*broken)) filled(*broken);
  } else if (complete) {
    End(absl::OkStatus(), true);
  } else {
    for (std::size_t source = 0; source < plan_.size(); ++source) AskMore(source);
  }
}

void StateFetch::OnMessage(std::size_t source, const Message& message, const PayloadIn& payload) {
  if (std::holds_alternative<HelloAck>(message.body)) return OnOpened();
  if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
    return End(
        absl::FailedPreconditionError(absl::StrCat("refused (", ToString(refuse->reason), "): ", refuse->message)),
        true);
  }
  const auto* data = std::get_if<FetchData>(&message.body);
  if (data == nullptr) return;
  if (absl::Status status = Take(source, *data, payload); !status.ok()) return End(status, true);
  bool complete = false;
  std::function<void()> arrived;
  {
    MutexLock lock(mutex_);
    complete = missing_ == 0;
    arrived = arrived_;
  }
  if (complete) return End(absl::OkStatus(), true);
  AskMore(source);
  if (arrived) arrived();
}

// Each piece is asked for once, so nobody else writes where it goes.
absl::Status StateFetch::Take(std::size_t source, const FetchData& data, const PayloadIn& payload) {
  Version version;
  {
    MutexLock lock(mutex_);
    if (ended_) return absl::OkStatus();
    version = version_;
    if (data.request != sources_[source].here) return absl::InternalError("pieces of state came out of order");
  }
  const ps::Shard::MovePiece& piece = plan_[source][data.request];
  EK_ASSIGN_OR_RETURN(const std::span<float> into, shard_->MoveInto(piece.array, piece.begin, piece.end));
  if (data.version != version || payload.size() != into.size_bytes()) {
    return absl::InternalError(absl::StrCat(order_.sources[source].name, " sent ", payload.size(), " bytes of ",
                                            ToString(data.version), " for ", into.size_bytes(), " of ",
                                            ToString(version)));
  }
  if (!payload.CopyTo(std::as_writable_bytes(into))) return absl::OkStatus();  // the stream is broken; OnClosed follows
  MutexLock lock(mutex_);
  ++sources_[source].here;
  --missing_;
  return absl::OkStatus();
}

void StateFetch::AskMore(std::size_t source) {
  for (;;) {
    std::shared_ptr<Stream> stream;
    Fetch fetch;
    {
      MutexLock lock(mutex_);
      Source& from = sources_[source];
      if (ended_ || from.asked == plan_[source].size() || from.asked - from.here >= kInFlight) return;
      stream = from.stream;
      fetch.request = from.asked++;
      fetch.version = version_;
    }
    const ps::Shard::MovePiece& piece = plan_[source][fetch.request];
    fetch.array = piece.array;
    fetch.ranges = {{piece.begin, piece.end}};
    if (stream == nullptr || !stream->Send(Message{order_.envelope, std::move(fetch)}).ok()) return;
  }
}

void StateFetch::End(const absl::Status& status, bool tell) {
  std::vector<std::shared_ptr<Stream>> streams;
  std::function<void(const absl::Status&)> done;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = status;
    done = std::exchange(done_, nullptr);
    arrived_ = nullptr;
    for (Source& source : sources_) {
      if (source.stream) streams.push_back(std::exchange(source.stream, nullptr));
    }
  }
  for (const auto& stream : streams) stream->Close();
  if (tell && done) done(status);
}

void StateFetch::Cancel() { End(absl::CancelledError("not needed any more"), false); }

}  // namespace evenkeel
