// Filling a shard from those of another layout.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "evenkeel/ps/shard.h"
#include "ps/snapshot_arena.h"
#include "ps/version_pool.h"

namespace evenkeel::ps {
namespace {

// Floats of a piece; what is asked for in one message.
constexpr std::int64_t kMovePieceFloats = 1 << 20;

}  // namespace

std::vector<std::vector<Shard::MovePiece>> Shard::PlanMove(const ParameterLayout& from, const Place& to) {
  std::vector<std::vector<MovePiece>> plan(from.servers());
  const auto slots = static_cast<std::uint32_t>(SlotNames(to.optimizer).size());
  for (std::size_t b = 0; b < from.buckets().size(); ++b) {
    const Stripe& mine = to.layout->StripeOf(static_cast<int>(b), to.server);
    const std::uint32_t arrays = from.buckets()[b].statistic ? 1 : 1 + slots;
    for (std::uint32_t server = 0; server < from.servers(); ++server) {
      const Stripe& theirs = from.StripeOf(static_cast<int>(b), ServerIndex(server));
      const std::int64_t end = std::min(mine.end, theirs.end);
      for (std::int64_t at = std::max(mine.begin, theirs.begin); at < end; at += kMovePieceFloats) {
        for (std::uint32_t array = 0; array < arrays; ++array) {
          plan[server].push_back({array, at, std::min(at + kMovePieceFloats, end)});
        }
      }
    }
  }
  return plan;
}

absl::StatusOr<std::pair<std::int64_t, std::int64_t>> Shard::Locate(std::uint32_t array, std::int64_t begin,
                                                                    std::int64_t end) const {
  const ParameterLayout& layout = *place_.layout;
  for (std::size_t b = 0; b < layout.buckets().size() && array <= optimizer_slots_.size(); ++b) {
    const Stripe& stripe = layout.StripeOf(static_cast<int>(b), place_.server);
    if (begin < stripe.begin || end > stripe.end || begin >= end) continue;
    if (array > 0 && layout.buckets()[b].statistic) break;
    return std::pair(stripe.local_offset + (begin - stripe.begin), end - begin);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("[ps] floats [", begin, ",", end, ") of array ", array, " are in none of this server's stripes"));
}

absl::StatusOr<std::span<const float>> Shard::Range(std::uint32_t array, std::int64_t begin, std::int64_t end) const {
  EK_ASSIGN_OR_RETURN(const auto at, Locate(array, begin, end));
  const std::span<const float> all = array == 0 ? versions_->current() : optimizer_slots_[array - 1];
  return all.subspan(static_cast<std::size_t>(at.first), static_cast<std::size_t>(at.second));
}

void Shard::BeginMove() {
  const VersionPool::Target target = versions_->BeginWrite();
  move_target_ = target.index;
  move_into_ = target.to;
}

absl::StatusOr<std::span<float>> Shard::MoveInto(std::uint32_t array, std::int64_t begin, std::int64_t end) {
  EK_ASSIGN_OR_RETURN(const auto at, Locate(array, begin, end));
  const std::span<float> all = array == 0 ? move_into_ : optimizer_slots_[array - 1];
  return all.subspan(static_cast<std::size_t>(at.first), static_cast<std::size_t>(at.second));
}

void Shard::FinishMove(Version version) {
  versions_->Publish(VersionPool::Target{move_target_, {}, {}}, version);
  move_into_ = {};
}

}  // namespace evenkeel::ps
