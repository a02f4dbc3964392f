// Moving to another layout: a place is prepared beside the one that rules, then takes its place; and leaving.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "evenkeel/ps/server.h"

namespace evenkeel::ps {

void Server::DropPreparation() {
  if (!prepared_) return;
  actions_.push_back(DropPrepared{prepared_->number});
  prepared_.reset();
}

// An order for a layout to come, from a time before the one that rules here.
bool Server::Overtaken(const Envelope& envelope, LayoutNumber to_come) const {
  const auto ours = std::pair(generation_, layout_number_);
  return std::pair(envelope.generation, envelope.layout) < ours || std::pair(envelope.generation, to_come) <= ours;
}

void Server::OnPrepare(const Envelope& envelope, const Prepare& prepare) {
  auto refuse = [&](std::string why) {
    Say(LogLevel::kWarning, absl::StrCat("cannot prepare layout ", prepare.layout.value(), ": ", why));
    ToChief(Prepared{prepare.layout, std::move(why)});
  };
  if (Overtaken(envelope, prepare.layout)) return;
  if (prepared_ && prepared_->layout == prepare.layout && prepared_->generation == envelope.generation) {
    if (prepared_->ready) ToChief(Prepared{prepare.layout, ""});
    return;
  }
  if (prepare.server.value() >= prepare.servers || prepare.sources.empty()) {
    return refuse(absl::StrCat("place ", prepare.server.value(), " of ", prepare.servers, " from ",
                               prepare.sources.size(), " servers"));
  }
  auto layout = ParameterLayout::Create(prepare.tensors, prepare.bucket_bytes, prepare.servers);
  auto from = ParameterLayout::Create(prepare.tensors, prepare.bucket_bytes,
                                      static_cast<std::uint32_t>(prepare.sources.size()));
  if (!layout.ok() || !from.ok()) return refuse(std::string((layout.ok() ? from : layout).status().message()));
  DropPreparation();
  PreparePlace action;
  action.number = ++preparations_;
  action.place = Place{std::make_shared<const ParameterLayout>(*std::move(layout)), prepare.server, prepare.optimizer,
                       prepare.measure_gradients, prepare.stage_slots};
  action.from = std::make_shared<const ParameterLayout>(*std::move(from));
  action.sources = prepare.sources;
  action.envelope = MakeEnvelope();
  action.envelope.generation = envelope.generation;
  action.envelope.layout = envelope.layout;
  const bool rules = std::pair(envelope.generation, envelope.layout) == std::pair(generation_, layout_number_);
  if (rules && configured_) action.own = place_.server;
  prepared_ = Preparation{.number = action.number,
                          .generation = envelope.generation,
                          .layout = prepare.layout,
                          .place = action.place,
                          .own = action.own.has_value()};
  Say(LogLevel::kInfo, absl::StrCat("prepares place ", prepare.server.value(), " of ", prepare.servers, ", layout ",
                                    prepare.layout.value()));
  actions_.push_back(std::move(action));
}

template <class Answer>
void Server::EndPreparing(std::uint64_t number, bool Preparation::*done, const absl::Status& status) {
  if (ended_ || !prepared_ || prepared_->number != number) return;
  const LayoutNumber layout = prepared_->layout;
  (*prepared_).*done = status.ok();
  if (!status.ok()) {
    DropPreparation();
    Say(LogLevel::kWarning, absl::StrCat("cannot prepare layout ", layout.value(), ": ", status.message()));
  }
  ToChief(Answer{layout, std::string(status.message())});
}

Actions Server::OnPrepared(std::uint64_t number, const absl::Status& status, TimePoint now) {
  EndPreparing<Prepared>(number, &Preparation::ready, status);
  return Take(now);
}

Actions Server::OnPiece(std::uint64_t number, TimePoint now) {
  if (!ended_ && prepared_ && prepared_->number == number) ++prepared_->pieces;
  return Take(now);
}

Actions Server::OnFilled(std::uint64_t number, const absl::Status& status, TimePoint now) {
  EndPreparing<Filled>(number, &Preparation::filled, status);
  return Take(now);
}

void Server::OnFill(const Envelope& envelope, const Fill& fill) {
  auto refuse = [&](std::string why) {
    Say(LogLevel::kWarning, absl::StrCat("cannot fill its place in layout ", fill.layout.value(), ": ", why));
    ToChief(Filled{fill.layout, std::move(why)});
  };
  if (Overtaken(envelope, fill.layout)) return;
  if (!prepared_ || !prepared_->ready || prepared_->layout != fill.layout ||
      prepared_->generation != envelope.generation) {
    return refuse("it was not prepared");
  }
  if (prepared_->version) {
    if (*prepared_->version != fill.version) {
      return refuse(
          absl::StrCat("it is filled with ", ToString(*prepared_->version), ", not ", ToString(fill.version)));
    }
    if (prepared_->filled) ToChief(Filled{fill.layout, ""});
    return;
  }
  if (prepared_->own && (published_ != fill.version || !applying_.empty())) {
    return refuse(absl::StrCat("it is at ", ToString(published_), ", not ", ToString(fill.version)));
  }
  prepared_->version = fill.version;
  actions_.push_back(FillPlace{prepared_->number, fill.version});
}

void Server::OnSwitch(const Envelope& envelope, const Switch& order) {
  const auto theirs = std::pair(envelope.generation, envelope.layout);
  if (theirs == std::pair(generation_, layout_number_) && configuration_ > 0) {
    if (configured_) SendConfigured();
    return;
  }
  if (theirs < std::pair(generation_, layout_number_)) return;
  const bool fits = prepared_ && prepared_->filled && prepared_->layout == envelope.layout &&
                    prepared_->generation == envelope.generation && prepared_->version == order.version;
  if (!fits) {
    Fail(absl::InternalError(absl::StrCat("[ps] layout ", envelope.layout.value(), " rules, but was not filled here")));
    return;
  }
  Preparation ready = *std::exchange(prepared_, std::nullopt);
  // The chain of decisions goes on, where this server has followed it.
  const bool followed = generation_ == envelope.generation && configured_ && published_ == order.version;
  std::deque<Decision> kept = followed ? std::move(kept_) : std::deque<Decision>();
  const std::uint64_t hash = decided_hash_;
  const bool known = followed && chain_known_;
  ResetPlace();
  SetPlace(envelope, std::move(ready.place), order.version);
  kept_ = std::move(kept);
  decided_ = order.version.commit;
  decided_hash_ = known ? hash : 0;
  chain_known_ = known;
  actions_.push_back(AdoptPrepared{ready.number, order.version});
}

void Server::OnFetch(SessionId session, const Envelope& envelope, const Fetch& fetch) {
  auto it = sessions_.find(session);
  auto refusal = CheckJob(envelope);
  if (!refusal && (it == sessions_.end() || it->second.incarnation != envelope.sender)) {
    refusal = Refusal{RefuseReason::kMalformed, "Fetch on a stream without Hello"};
  }
  if (!refusal) refusal = CheckPlace(envelope);
  if (!refusal && (fetch.version != published_ || !applying_.empty())) {
    refusal =
        Refusal{RefuseReason::kRetry, absl::StrCat("is at ", ToString(published_), ", not ", ToString(fetch.version))};
  }
  if (refusal) return RefuseWorker(session, refusal->reason, refusal->text);
  actions_.push_back(ServeFetch{session, fetch});
}

Actions Server::AskToLeave(const std::string& reason, TimePoint now) {
  if (ended_ || !leave_asked_.empty()) return Take(now);
  leave_asked_ = reason;
  if (welcomed_) ToChief(Leave{reason, true});
  return Take(now);
}

void Server::OnLeaveNow(const LeaveNow& order) {
  Say(LogLevel::kInfo, absl::StrCat("leaves: ", order.reason));
  ToChief(Leave{order.reason});
  actions_.push_back(Finish{absl::OkStatus()});
  ended_ = released_ = true;
}

}  // namespace evenkeel::ps
