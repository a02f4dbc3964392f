// A virtual server on its way to another layout: what it fetches of others, and what it gives them.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/server_process.h"

namespace evenkeel::sim {
namespace {

constexpr std::size_t kInFlight = 4;  // pieces asked of one source

}  // namespace

void ServerProcess::Finish(const ps::PreparePlace& work) {
  Forget(0);
  Preparation prepared;
  prepared.order = work;
  prepared.plan = ps::Shard::PlanMove(*work.from, work.place);
  prepared.sources.resize(prepared.plan.size());
  if (work.own) prepared.own = std::exchange(prepared.plan[work.own->value()], {});
  for (const Preparation::Pieces& pieces : prepared.plan) {
    prepared.missing += pieces.size();
    if (!pieces.empty()) ++prepared.closed;
  }
  prepared_ = std::move(prepared);
  if (prepared_->closed == 0) return Perform(server_->OnPrepared(work.number, absl::OkStatus(), now()));
  for (std::size_t source = 0; source < prepared_->plan.size(); ++source) {
    if (prepared_->plan[source].empty()) continue;
    const SessionId stream = environment_.network.Connect(*this, prepared_->order.sources[source].address);
    prepared_->sources[source].stream = stream;
    environment_.network.Send(*this, stream, {prepared_->order.envelope, Hello{machine()}});
  }
}

void ServerProcess::Finish(const ps::FillPlace& work) {
  if (!prepared_ || prepared_->order.number != work.number) return;  // dropped
  if (prepared_->ended) return Perform(server_->OnFilled(work.number, *prepared_->ended, now()));
  prepared_->version = work.version;
  for (const ps::Shard::MovePiece& piece : prepared_->own) {
    if (!shard_) return environment_.invariants.Break(absl::StrCat(machine(), " is to copy what it does not hold"));
    prepared_->filled.push_back({piece, shard_->fingerprint});
  }
  if (prepared_->missing == 0) return EndFetch(absl::OkStatus(), true);
  for (std::size_t source = 0; source < prepared_->plan.size(); ++source) AskMore(source);
}

std::optional<std::size_t> ServerProcess::SourceOf(SessionId stream) const {
  if (!prepared_ || stream == SessionId{}) return std::nullopt;
  for (std::size_t source = 0; source < prepared_->sources.size(); ++source) {
    if (prepared_->sources[source].stream == stream) return source;
  }
  return std::nullopt;
}

void ServerProcess::OnFetchMessage(std::size_t source, const Message& message, Payload payload) {
  if (std::holds_alternative<HelloAck>(message.body)) {
    if (--prepared_->closed == 0) Perform(server_->OnPrepared(prepared_->order.number, absl::OkStatus(), now()));
    return;
  }
  if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
    return EndFetch(absl::FailedPreconditionError(refuse->message), true);
  }
  const auto* data = std::get_if<FetchData>(&message.body);
  if (data == nullptr) return;
  Preparation& prepared = *prepared_;
  Preparation::Source& from = prepared.sources[source];
  if (data->request != from.here) return EndFetch(absl::InternalError("pieces came out of order"), true);
  const ps::Shard::MovePiece& piece = prepared.plan[source][from.here];
  const auto bytes = static_cast<std::size_t>(piece.end - piece.begin) * sizeof(float);
  if (data->version != prepared.version || payload.bytes != bytes) {
    return EndFetch(absl::InternalError("a piece of another version or length came"), true);
  }
  prepared.filled.push_back({piece, payload.value});
  ++from.here;
  if (--prepared.missing == 0) return EndFetch(absl::OkStatus(), true);
  AskMore(source);
  Perform(server_->OnPiece(prepared_->order.number, now()));
}

void ServerProcess::AskMore(std::size_t source) {
  Preparation& prepared = *prepared_;
  Preparation::Source& from = prepared.sources[source];
  const Preparation::Pieces& pieces = prepared.plan[source];
  while (from.asked < pieces.size() && from.asked - from.here < kInFlight) {
    Fetch fetch;
    fetch.request = from.asked;
    fetch.version = *prepared.version;
    fetch.array = pieces[from.asked].array;
    fetch.ranges = {{pieces[from.asked].begin, pieces[from.asked].end}};
    ++from.asked;
    environment_.network.Send(*this, from.stream, {prepared.order.envelope, std::move(fetch)});
  }
}

void ServerProcess::EndFetch(const absl::Status& status, bool tell) {
  if (!prepared_ || prepared_->ended) return;
  prepared_->ended = status;
  for (Preparation::Source& source : prepared_->sources) {
    const SessionId stream = std::exchange(source.stream, SessionId{});
    if (stream != SessionId{}) environment_.network.Close(*this, stream);
  }
  if (!tell) return;
  const std::uint64_t number = prepared_->order.number;
  if (prepared_->version) {
    Perform(server_->OnFilled(number, status, now()));
  } else if (prepared_->closed > 0) {
    Perform(server_->OnPrepared(number, status, now()));
  }
}

void ServerProcess::Forget(std::uint64_t number) {
  if (!prepared_ || (number != 0 && prepared_->order.number != number)) return;
  EndFetch(absl::CancelledError(), false);
  prepared_.reset();
}

void ServerProcess::Finish(const ps::DropPrepared& work) { Forget(work.number); }

void ServerProcess::Finish(const ps::AdoptPrepared& work) {
  if (!prepared_ || prepared_->order.number != work.number || !prepared_->version || prepared_->missing > 0) {
    return environment_.invariants.Break(
        absl::StrCat(machine(), " is to adopt preparation ", work.number, ", which is not there or not complete"));
  }
  const std::optional<std::uint64_t> fingerprint = FingerprintOf(*prepared_);
  if (!fingerprint) return;
  shard_ = Shard{prepared_->order.place, work.version, *fingerprint, *fingerprint, {}};
  Invariants::Held held = HeldNow();
  held.term =
      prepared_->order.envelope.term;  // a newer chief, whose log may have lost the layout, may be obeyed already
  Forget(work.number);
  environment_.invariants.ServerAdopts(index_, held);
  Perform(server_->OnConfigured(work.version, absl::OkStatus(), now()));
}

std::optional<std::uint64_t> ServerProcess::FingerprintOf(const Preparation& prepared) {
  const ps::Place& place = prepared.order.place;
  auto broken = [this](std::string what) {
    environment_.invariants.Break(absl::StrCat(machine(), " adopts a place, but ", std::move(what)));
    return std::nullopt;
  };
  // What is there of each array, by where it begins.
  std::map<std::tuple<std::uint32_t, std::int64_t>, std::int64_t> filled;
  std::set<std::uint64_t> fingerprints;
  for (const Preparation::Filled& part : prepared.filled) {
    if (!filled.emplace(std::tuple(part.piece.array, part.piece.begin), part.piece.end).second) {
      return broken(absl::StrCat("float ", part.piece.begin, " of array ", part.piece.array, " came twice"));
    }
    fingerprints.insert(part.fingerprint);
  }
  const auto slots = static_cast<std::uint32_t>(SlotNames(place.optimizer).size());
  for (std::size_t bucket = 0; bucket < place.layout->buckets().size(); ++bucket) {
    const Stripe& stripe = place.layout->StripeOf(static_cast<int>(bucket), place.server);
    const std::uint32_t arrays = place.layout->buckets()[bucket].statistic ? 1 : 1 + slots;
    for (std::uint32_t array = 0; array < arrays; ++array) {
      for (std::int64_t at = stripe.begin; at < stripe.end;) {
        const auto piece = filled.find({array, at});
        if (piece == filled.end()) return broken(absl::StrCat("float ", at, " of array ", array, " is missing"));
        at = piece->second;
        filled.erase(piece);
      }
    }
  }
  if (!filled.empty()) return broken("more came than belongs there");
  if (fingerprints.size() > 1) return broken("what it fetched is of several versions");
  // A place may own nothing.
  if (!fingerprints.empty()) return *fingerprints.begin();
  return environment_.invariants.FingerprintAt(server_->MakeEnvelope().term, *prepared.version).value_or(0);
}

void ServerProcess::Finish(const ps::ServeFetch& work) {
  if (!shard_) return;
  std::size_t bytes = 0;
  for (const PositionRange& range : work.fetch.ranges) {
    bool here = false;
    for (std::size_t bucket = 0; bucket < shard_->place.layout->buckets().size(); ++bucket) {
      const Stripe& stripe = shard_->place.layout->StripeOf(static_cast<int>(bucket), shard_->place.server);
      here |= range.begin >= stripe.begin && range.end <= stripe.end && range.begin < range.end;
    }
    if (!here) {
      Refuse refuse{RefuseReason::kMalformed, absl::StrCat(machine(), " does not hold ", range.begin), {}};
      return environment_.network.Send(*this, work.session, {server_->MakeEnvelope(), std::move(refuse)});
    }
    bytes += static_cast<std::size_t>(range.end - range.begin) * sizeof(float);
  }
  const std::uint64_t value = environment_.interposer.GivesFormer(index_) ? shard_->former : shard_->fingerprint;
  environment_.network.Send(*this, work.session,
                            {server_->MakeEnvelope(), FetchData{work.fetch.request, work.fetch.version}},
                            Payload{bytes, value});
}

}  // namespace evenkeel::sim
