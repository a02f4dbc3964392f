#include "chief/sample_ledger.h"

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

SampleLedger::SampleLedger(std::int64_t samples, std::int64_t epochs) : samples_(samples), epochs_(epochs) {
  EK_CHECK(samples >= 1);
  OpenNext();
}

void SampleLedger::OpenNext() {
  const std::uint64_t epoch = first_open_ + open_.size();
  if (!MayOpen(epoch)) return;
  open_.emplace_back();
  open_.back().free.Add(PositionRange{0, samples_});
  if (spent_per_epoch_.size() <= epoch) spent_per_epoch_.resize(epoch + 1, 0);
}

std::optional<Epoch> SampleLedger::NextEpoch() const {
  for (std::size_t i = 0; i < open_.size(); ++i) {
    if (!open_[i].free.empty()) return Epoch(first_open_ + i);
  }
  if (open_.size() < 2 && MayOpen(first_open_ + open_.size())) return Epoch(first_open_ + open_.size());
  return std::nullopt;
}

std::int64_t SampleLedger::FreeIn(Epoch epoch) const {
  const std::uint64_t index = epoch.value() - first_open_;
  if (index < open_.size()) return open_[index].free.size();
  return index == open_.size() && open_.size() < 2 && MayOpen(epoch.value()) ? samples_ : 0;
}

std::int64_t SampleLedger::FreeTotal() const {
  std::int64_t total = 0;
  for (std::uint64_t i = 0; i < 2; ++i) total += FreeIn(Epoch(first_open_ + i));
  return total;
}

SampleLedger::Open& SampleLedger::At(Epoch epoch) {
  EK_CHECK_MSG(epoch.value() >= first_open_ && epoch.value() - first_open_ < open_.size(),
               absl::StrCat("epoch ", epoch.value(), " is not open"));
  return open_[epoch.value() - first_open_];
}

RangeList SampleLedger::Take(Epoch epoch, std::int64_t count) {
  if (epoch.value() == first_open_ + open_.size() && open_.size() < 2) OpenNext();
  Open& open = At(epoch);
  RangeList taken = open.free.TakeLowest(count);
  open.leased.Add(taken);
  return taken;
}

void SampleLedger::Return(Epoch epoch, const RangeList& positions) {
  Open& open = At(epoch);
  open.leased.Remove(positions);
  open.free.Add(positions);
  ++returns_;
}

void SampleLedger::Spend(Epoch epoch, const RangeList& positions) {
  Open& open = At(epoch);
  open.leased.Remove(positions);
  open.spent.Add(positions);
  spent_per_epoch_[epoch.value()] += TotalSize(positions);
  CloseSpent();
}

absl::Status SampleLedger::Adopt(Epoch epoch, const RangeList& positions) {
  if (epoch.value() == first_open_ + open_.size() && open_.size() < 2) OpenNext();
  const std::uint64_t index = epoch.value() - first_open_;
  for (const PositionRange& range : positions) {
    if (epoch.value() >= first_open_ && index < open_.size() && open_[index].free.Contains(range)) {
      open_[index].free.Remove(range);
      open_[index].spent.Add(range);
      continue;
    }
    return absl::DataLossError(
        absl::StrCat("[ledger] positions ", ToString(RangeList{range}), " of epoch ", epoch.value(), " are not free"));
  }
  spent_per_epoch_[epoch.value()] += TotalSize(positions);
  CloseSpent();
  return absl::OkStatus();
}

void SampleLedger::CloseSpent() {
  while (!open_.empty() && open_.front().spent.size() == samples_) {
    open_.pop_front();
    ++first_open_;
  }
  if (open_.empty()) OpenNext();
}

bool SampleLedger::AnythingLeased() const {
  for (const Open& open : open_) {
    if (!open.leased.empty()) return true;
  }
  return false;
}

SampleLedger::Snapshot SampleLedger::Save() const {
  Snapshot snapshot;
  snapshot.first_open = first_open_;
  for (const Open& open : open_) snapshot.spent.push_back(open.spent.ranges());
  snapshot.spent_per_epoch = spent_per_epoch_;
  return snapshot;
}

absl::StatusOr<SampleLedger> SampleLedger::Load(std::int64_t samples, std::int64_t epochs, const Snapshot& snapshot) {
  SampleLedger ledger(samples, epochs);
  ledger.open_.clear();
  ledger.first_open_ = snapshot.first_open;
  ledger.spent_per_epoch_ = snapshot.spent_per_epoch;
  if (snapshot.spent.size() > 2) {
    return absl::DataLossError(absl::StrCat("[ledger] ", snapshot.spent.size(), " open epochs; at most 2 can be"));
  }
  for (const RangeList& spent : snapshot.spent) {
    Open open;
    open.free.Add(PositionRange{0, samples});
    for (const PositionRange& range : spent) {
      if (range.size() <= 0 || !open.free.Contains(range)) {
        return absl::DataLossError(absl::StrCat("[ledger] spent positions ", ToString(RangeList{range}),
                                                " do not fit an epoch of ", samples, " samples"));
      }
      open.free.Remove(range);
      open.spent.Add(range);
    }
    ledger.open_.push_back(std::move(open));
  }
  ledger.spent_per_epoch_.resize(
      std::max<std::size_t>(ledger.spent_per_epoch_.size(), ledger.first_open_ + ledger.open_.size()), 0);
  if (ledger.open_.empty()) ledger.OpenNext();
  ledger.CloseSpent();
  return ledger;
}

}  // namespace evenkeel
