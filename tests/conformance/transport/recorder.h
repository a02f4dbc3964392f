// Handlers that write down what they get, and waits with a deadline that only a broken transport reaches.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evenkeel/core/mutex.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

constexpr Duration kPatience = std::chrono::seconds(60);

// Pull{request} and PullData{request} carry a number.
inline Message Numbered(std::uint64_t number) { return {{}, PullData{.request = number}}; }

// `size` bytes that depend on `seed`, alive as long as `owner`.
inline PayloadOut MakePayload(std::size_t size, std::uint64_t seed) {
  auto bytes = std::make_shared<std::vector<std::byte>>(size);
  for (std::size_t i = 0; i < size; ++i) (*bytes)[i] = static_cast<std::byte>((i * 31 + (i >> 10) + seed * 7) & 0xFF);
  std::span<const std::byte> view(*bytes);
  return {view, std::move(bytes)};
}

// nullopt: the sender took them back.
inline std::optional<std::vector<std::byte>> BytesOf(const PayloadIn& payload) {
  std::vector<std::byte> bytes(payload.size());
  if (!payload.CopyTo(bytes)) return std::nullopt;
  return bytes;
}

class Recorder final : public StreamHandler {
 public:
  struct Received {
    std::uint64_t number = 0;
    std::vector<std::byte> payload;
  };
  using Reaction = std::function<void(Stream&, std::uint64_t, const PayloadIn&)>;

  explicit Recorder(Reaction reaction = nullptr) : reaction_(std::move(reaction)) {}

  void OnMessage(Stream& stream, Message message, const PayloadIn& payload) override {
    const auto* data = std::get_if<PullData>(&message.body);
    std::uint64_t number = data != nullptr ? data->request : 0;
    std::optional<std::vector<std::byte>> bytes = BytesOf(payload);
    if (!bytes) return;  // the stream is broken
    {
      MutexLock lock(mutex_);
      if (closed_ > 0) late_ = true;
      if (inside_) overlapped_ = true;
      inside_ = true;
      received_.push_back({number, *std::move(bytes)});
      changed_.NotifyAll();
    }
    if (reaction_) reaction_(stream, number, payload);
    MutexLock lock(mutex_);
    inside_ = false;
    changed_.NotifyAll();
  }

  void OnClosed(Stream&, const absl::Status& status) override {
    MutexLock lock(mutex_);
    if (inside_) overlapped_ = true;
    ++closed_;
    status_ = status;
    changed_.NotifyAll();
  }

  // The reaction to the last one may still be going on.
  std::vector<Received> WaitForMessages(std::size_t count) {
    MutexLock lock(mutex_);
    WaitUntil([&] { return received_.size() >= count || closed_ > 0; });
    return received_;
  }
  absl::Status WaitForClosed() {
    MutexLock lock(mutex_);
    WaitUntil([&] { return closed_ > 0; });
    return status_;
  }
  std::vector<Received> received() {
    MutexLock lock(mutex_);
    return received_;
  }
  // OnClosed came once, after all messages, and no two calls overlapped.
  bool Orderly() {
    MutexLock lock(mutex_);
    return closed_ == 1 && !late_ && !overlapped_;
  }

 private:
  template <class Condition>
  void WaitUntil(Condition&& condition) {
    TimePoint deadline = Clock::Real().Now() + kPatience;
    while (!condition()) {
      if (!changed_.WaitUntil(mutex_, deadline) && !condition()) throw std::runtime_error("the transport is stuck");
    }
  }

  const Reaction reaction_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Received> received_;
  int closed_ = 0;
  bool inside_ = false, late_ = false, overlapped_ = false;
  absl::Status status_;
};

// Accepts streams with recorders and keeps both.
class Host {
 public:
  explicit Host(Recorder::Reaction reaction = nullptr) : reaction_(std::move(reaction)) {}

  Acceptor acceptor() {
    return [this](std::shared_ptr<Stream> stream) {
      auto recorder = std::make_shared<Recorder>(reaction_);
      MutexLock lock(mutex_);
      accepted_.emplace_back(std::move(stream), recorder);
      changed_.NotifyAll();
      return recorder;
    };
  }
  std::pair<std::shared_ptr<Stream>, std::shared_ptr<Recorder>> Wait(std::size_t index) {
    MutexLock lock(mutex_);
    TimePoint deadline = Clock::Real().Now() + kPatience;
    while (accepted_.size() <= index) {
      if (!changed_.WaitUntil(mutex_, deadline)) throw std::runtime_error("no stream was accepted");
    }
    return accepted_[index];
  }
  std::size_t count() {
    MutexLock lock(mutex_);
    return accepted_.size();
  }

 private:
  const Recorder::Reaction reaction_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::pair<std::shared_ptr<Stream>, std::shared_ptr<Recorder>>> accepted_;
};

// Something that happens once and can be waited for.
class Event {
 public:
  void Set() {
    MutexLock lock(mutex_);
    set_ = true;
    changed_.NotifyAll();
  }
  bool Wait() { return WaitFor(kPatience); }
  bool WaitFor(Duration time) {
    MutexLock lock(mutex_);
    const TimePoint deadline = Clock::Real().Now() + time;
    while (!set_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    return set_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ = false;
};

}  // namespace evenkeel
