#include "chief/batch_split.h"

#include <algorithm>
#include <cmath>
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
  std::vector<std::int64_t> shares(weights.size(), 0);
  if (n == 0) return shares;
  for (double weight : weights) EK_CHECK(weight > 0 && std::isfinite(weight));
  const std::int64_t floor = bounds.floor * n <= total ? bounds.floor : 0;
  const std::int64_t ceiling = bounds.ceiling > 0 && bounds.ceiling * n >= total ? bounds.ceiling : total;

  std::vector<std::size_t> open(weights.size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  std::int64_t left = total;
  // Each round pins the side that breaks its bound by more in sum, which keeps the other side's decision right
  // (the usual water-filling argument); at most n rounds.
  while (!open.empty()) {
    Proportional(left, weights, open, shares);
    std::int64_t under = 0, over = 0;
    for (std::size_t i : open) {
      under += std::max<std::int64_t>(0, floor - shares[i]);
      over += std::max<std::int64_t>(0, shares[i] - ceiling);
    }
    if (under == 0 && over == 0) break;
    const bool raise = under >= over;
    std::erase_if(open, [&](std::size_t i) {
      const bool pin = raise ? shares[i] < floor : shares[i] > ceiling;
      if (pin) {
        shares[i] = raise ? floor : ceiling;
        left -= shares[i];
      }
      return pin;
    });
  }
  return shares;
}

}  // namespace evenkeel
