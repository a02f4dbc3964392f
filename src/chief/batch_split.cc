#include "chief/batch_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>

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

// b_i(T): the largest share of each that is done by `seconds`, within its range.
class Fill {
 public:
  Fill(std::span<const StepTimeLine> lines, std::span<const ShareRange> ranges)
      : lines_(lines), ranges_(ranges), rate_(lines.size()) {
    for (std::size_t i = 0; i < lines.size(); ++i) rate_[i] = 1 / lines[i].per_sample;
  }

  std::int64_t Share(std::size_t i, double seconds) const {
    const auto floor = static_cast<double>(ranges_[i].floor), ceiling = static_cast<double>(ranges_[i].ceiling);
    return static_cast<std::int64_t>(std::min(std::max((seconds - lines_[i].fixed) * rate_[i], floor), ceiling));
  }

  std::int64_t Sum(double seconds) const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < lines_.size(); ++i) sum += Share(i, seconds);
    return sum;
  }

 private:
  std::span<const StepTimeLine> lines_;
  std::span<const ShareRange> ranges_;
  std::vector<double> rate_;
};

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

std::vector<std::int64_t> MinMaxSplit(std::int64_t total, std::span<const StepTimeLine> lines,
                                      std::span<const ShareRange> ranges) {
  EK_CHECK(ranges.size() == lines.size());
  const std::size_t n = lines.size();
  std::vector<std::int64_t> shares(n, 0);
  if (n == 0) return shares;
  double low = std::numeric_limits<double>::infinity(), high = 0;  // seconds
  for (std::size_t i = 0; i < n; ++i) {
    EK_CHECK(lines[i].per_sample > 0 && std::isfinite(lines[i].per_sample) && std::isfinite(lines[i].fixed));
    low = std::min(low, lines[i].At(static_cast<double>(ranges[i].floor)));
    high = std::max(high, lines[i].At(static_cast<double>(std::min(ranges[i].ceiling, total))));
  }
  const Fill fill(lines, ranges);
  // Bisection keeps Sum(low) <= total. Its end need not be precise: giving one sample after another to whoever is done
  // first reaches every Share(T) on its way, so the rounds below continue exactly from there.
  const auto near = static_cast<std::int64_t>(n);
  for (int round = 0; round < 100 && total - fill.Sum(low) > near; ++round) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (fill.Sum(middle) <= total ? low : high) = middle;
  }

  std::int64_t left = total;
  for (std::size_t i = 0; i < n; ++i) left -= shares[i] = fill.Share(i, low);
  struct Next {
    double seconds;  // once it has one sample more
    std::size_t index;
    bool operator>(const Next& other) const {
      return seconds != other.seconds ? seconds > other.seconds : index > other.index;
    }
  };
  std::vector<Next> room;
  for (std::size_t i = 0; i < n; ++i) {
    if (shares[i] < ranges[i].ceiling) room.push_back({lines[i].At(static_cast<double>(shares[i] + 1)), i});
  }
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue(std::greater<>(), std::move(room));
  for (; left > 0 && !queue.empty(); --left) {
    const std::size_t i = queue.top().index;
    queue.pop();
    if (++shares[i] < ranges[i].ceiling) queue.push({lines[i].At(static_cast<double>(shares[i] + 1)), i});
  }
  EK_CHECK_MSG(left == 0, "the ranges do not hold the total");
  return shares;
}

}  // namespace evenkeel
