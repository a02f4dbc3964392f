#include "chief/batch_split.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

// Largest remainder over the indices in `open`.
void Proportional(std::int64_t total, std::span<const double> weights, const std::vector<std::size_t>& open,
                  std::vector<std::int64_t>& shares) {
  double sum = 0;
  for (std::size_t i : open) sum += weights[i];
  std::vector<double> fraction(weights.size(), 0);
  std::int64_t given = 0;
  for (std::size_t i : open) {
    const double exact = static_cast<double>(total) * weights[i] / sum;
    shares[i] = static_cast<std::int64_t>(std::floor(exact));
    fraction[i] = exact - std::floor(exact);
    given += shares[i];
  }
  std::vector<std::size_t> order = open;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return fraction[a] > fraction[b]; });
  for (std::size_t k = 0; given < total; k = (k + 1) % order.size(), ++given) ++shares[order[k]];
  for (std::size_t k = order.size(); given > total; --given) {  // floor of a rounded-up product
    k = k == 0 ? order.size() - 1 : k - 1;
    --shares[order[k]];
  }
}

}  // namespace

std::vector<std::int64_t> SplitBatch(std::int64_t total, std::span<const double> weights, SplitBounds bounds) {
  const auto n = static_cast<std::int64_t>(weights.size());
  const std::int64_t floor = bounds.floor * n <= total ? bounds.floor : 0;
  const std::int64_t ceiling = bounds.ceiling > 0 && bounds.ceiling * n >= total ? bounds.ceiling : total;
  const std::vector<ShareRange> ranges(weights.size(), ShareRange{floor, ceiling});
  return SplitBatch(total, weights, ranges);
}

std::vector<std::int64_t> SplitBatch(std::int64_t total, std::span<const double> weights,
                                     std::span<const ShareRange> ranges) {
  EK_CHECK(ranges.size() == weights.size());
  std::vector<std::int64_t> shares(weights.size(), 0);
  for (double weight : weights) EK_CHECK(weight > 0 && std::isfinite(weight));

  std::vector<std::size_t> open(weights.size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  std::int64_t left = total;
  // Each round pins the side that breaks its bound by more in sum, which keeps the other side's decision right
  // (the usual water-filling argument); at most n rounds.
  while (!open.empty()) {
    Proportional(left, weights, open, shares);
    std::int64_t under = 0, over = 0;
    for (std::size_t i : open) {
      under += std::max<std::int64_t>(0, ranges[i].floor - shares[i]);
      over += std::max<std::int64_t>(0, shares[i] - ranges[i].ceiling);
    }
    if (under == 0 && over == 0) break;
    const bool raise = under >= over;
    std::erase_if(open, [&](std::size_t i) {
      const bool pin = raise ? shares[i] < ranges[i].floor : shares[i] > ranges[i].ceiling;
      if (pin) {
        shares[i] = raise ? ranges[i].floor : ranges[i].ceiling;
        left -= shares[i];
      }
      return pin;
    });
  }
  return shares;
}

// The largest that is done by `seconds`, within its range.
inline double MinMaxSplitter::Fill::Share(double seconds) const {
  return std::min(std::max((seconds - fixed) * rate, floor), ceiling);
}

std::int64_t MinMaxSplitter::Sum(double seconds) const {
  std::int64_t sum = 0;
  for (const Fill& fill : fills_) sum += static_cast<std::int64_t>(fill.Share(seconds));
  return sum;
}

// Narrows low and high, with Sum(low) <= total <= Sum(high), until few samples are between them, or none can be.
// Between them the sum is nearly a line, so that two thirds of the rounds go where that line meets the total; the third
// halves.
void MinMaxSplitter::Narrow(std::int64_t total, double& low, double& high) const {
  constexpr int kRounds = 60;  // equal lines have all their samples at one time, which no round can part
  const std::int64_t few = 64 + static_cast<std::int64_t>(fills_.size()) / 32;
  std::int64_t below = Sum(low), above = Sum(high);
  for (int round = 0; round < kRounds && above - below > few; ++round) {
    const double part = static_cast<double>(total - below) / static_cast<double>(above - below);
    // Every second time a little to the side where there is more room, so that both ends move.
    const double aside = round % 3 == 1 ? (part < 0.5 ? 0.01 : -0.01) : 0;
    const double middle = low + (high - low) * (round % 3 == 2 ? 0.5 : part + aside);
    if (middle <= low || middle >= high) {
      if (round % 3 == 2) break;
      continue;
    }
    const std::int64_t sum = Sum(middle);
    (sum <= total ? low : high) = middle;
    (sum <= total ? below : above) = sum;
  }
}

const std::vector<std::int64_t>& MinMaxSplitter::Split(std::int64_t total, std::span<const StepTimeLine> lines,
                                                       std::span<const ShareRange> ranges) {
  EK_CHECK(ranges.size() == lines.size());
  const std::size_t n = lines.size();
  fills_.clear();
  double low = std::numeric_limits<double>::infinity(), high = 0;  // seconds
  for (std::size_t i = 0; i < n; ++i) {
    EK_CHECK(lines[i].per_sample > 0 && std::isfinite(lines[i].per_sample) && std::isfinite(lines[i].fixed));
    low = std::min(low, lines[i].At(static_cast<double>(ranges[i].floor)));
    high = std::max(high, lines[i].At(static_cast<double>(std::min(ranges[i].ceiling, total) + 1)));
    fills_.push_back({lines[i].fixed, 1 / lines[i].per_sample, static_cast<double>(ranges[i].floor),
                      static_cast<double>(ranges[i].ceiling)});
  }
  Narrow(total, low, high);

  // Giving one sample after another to whoever is done first reaches every Share(T) on its way, so the rounds below
  // continue exactly from Share(low), and nobody passes Share(high).
  shares_.resize(n);
  queue_.clear();
  std::int64_t left = total;
  for (std::size_t i = 0; i < n; ++i) {
    left -= shares_[i] = static_cast<std::int64_t>(fills_[i].Share(low));
    if (shares_[i] < static_cast<std::int64_t>(fills_[i].Share(high))) {
      queue_.push_back({lines[i].At(static_cast<double>(shares_[i] + 1)), i});
    }
  }
  std::make_heap(queue_.begin(), queue_.end(), std::greater<>());
  for (; left > 0 && !queue_.empty(); --left) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    Next& next = queue_.back();
    if (++shares_[next.index] < ranges[next.index].ceiling) {
      next.seconds = lines[next.index].At(static_cast<double>(shares_[next.index] + 1));
      std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
    } else {
      queue_.pop_back();
    }
  }
  EK_CHECK_MSG(left == 0, "the ranges do not hold the total");
  return shares_;
}

std::vector<std::int64_t> MinMaxSplit(std::int64_t total, std::span<const StepTimeLine> lines,
                                      std::span<const ShareRange> ranges) {
  return MinMaxSplitter().Split(total, lines, ranges);
}

}  // namespace evenkeel
