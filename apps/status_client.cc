#include "status_client.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/protocol/question.h"

namespace evenkeel::apps {

struct StatusClient::Exchange : StreamHandler {
  void OnMessage(Stream&, Message message, const PayloadIn&) override {
    auto* reply = std::get_if<StatusReply>(&message.body);
    if (reply == nullptr) return;
    MutexLock lock(mutex);
    json = std::move(reply->json);
    changed.NotifyAll();
  }
  void OnClosed(Stream&, const absl::Status& status) override {
    MutexLock lock(mutex);
    closed = status;
    changed.NotifyAll();
  }
  Mutex mutex;
  CondVar changed;
  std::optional<std::string> json ABSL_GUARDED_BY(mutex);
  std::optional<absl::Status> closed ABSL_GUARDED_BY(mutex);
};

StatusClient::StatusClient(Transport& transport, std::string chief_address)
    : transport_(transport), address_(std::move(chief_address)) {}

StatusClient::~StatusClient() {
  if (stream_) stream_->Close();
}

absl::StatusOr<std::string> StatusClient::Ask(Duration timeout) {
  const Clock& clock = Clock::Real();
  const TimePoint deadline = clock.Now() + timeout;
  if (!stream_) {
    answered_ = false;
    exchange_ = std::make_shared<Exchange>();
    stream_ = transport_.Connect(Service::kChief, address_, exchange_, timeout);
  }
  std::optional<std::string> last_word;  // came unasked, with the end, or too late
  {
    MutexLock lock(exchange_->mutex);
    last_word = std::exchange(exchange_->json, std::nullopt);
  }
  (void)stream_->Send(Message{{}, StatusRequest{}});  // a stream that fails ends in OnClosed
  MutexLock lock(exchange_->mutex);
  while (!exchange_->json && !exchange_->closed && clock.Now() < deadline) {
    exchange_->changed.WaitUntil(exchange_->mutex, deadline);
  }
  if (exchange_->json) {
    answered_ = true;
    chief_left_ = false;
    return *std::exchange(exchange_->json, std::nullopt);
  }
  if (exchange_->closed) {
    stream_.reset();
    if (answered_ && exchange_->closed->ok()) chief_left_ = true;
    if (last_word) return *std::move(last_word);
    return NoAnswer(address_, *exchange_->closed);
  }
  return absl::DeadlineExceededError(
      absl::StrFormat("waited %.1f s for the chief at %s to tell its status", ToSeconds(timeout), address_));
}

}  // namespace evenkeel::apps
