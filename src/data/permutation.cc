#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "data/split.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel {
namespace {

// Four rounds of independent random functions give a strong pseudorandom permutation (Luby & Rackoff 1988); two more
// make up for a round function that is only a good mixer.
constexpr std::uint64_t kRounds = 6;

std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

}  // namespace

EpochPermutation::EpochPermutation(std::int64_t n, std::uint64_t seed, Epoch epoch)
    : n_(n), half_bits_(0), key_(MixKey(HashName("epoch permutation"), seed, epoch.value())) {
  EK_CHECK(n >= 1);
  // The smallest even number of bits that holds n: less than 4 n values, so fewer than four walks on average.
  while (half_bits_ < 31 && (std::uint64_t{1} << (2 * half_bits_)) < static_cast<std::uint64_t>(n)) ++half_bits_;
  EK_CHECK_MSG(static_cast<std::uint64_t>(n) <= (std::uint64_t{1} << (2 * half_bits_)), "more than 2^62 samples");
}

std::int64_t EpochPermutation::operator()(std::int64_t position) const {
  EK_CHECK(position >= 0 && position < n_);
  if (n_ == 1) return 0;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(position);
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      // The high bits of a product are the well-mixed ones.
      std::uint64_t f = Mix(right + key_ + round * 0x9e3779b97f4a7c15u) >> 32;
      std::uint64_t next = left ^ (f & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(value);
}

namespace data {

absl::StatusOr<std::vector<std::int64_t>> RowsOf(Part part, std::int64_t size, double fraction,
                                                 std::uint64_t split_seed) {
  std::vector<bool> for_eval(static_cast<std::size_t>(size), part == Part::kEval);
  if (part != Part::kWhole) {
    if (!(fraction > 0 && fraction < 1) || size < 2) {
      return absl::InvalidArgumentError(absl::StrCat("[data] input.eval_fraction ", fraction, " of ", size,
                                                     " samples leaves one side empty; it must lie between 0 and 1, of "
                                                     "at least 2 samples"));
    }
    auto count = static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(size)));
    count = std::clamp<std::int64_t>(count, 1, size - 1);
    EpochPermutation permutation(size, MixKey(HashName("eval split"), split_seed), Epoch(0));
    std::fill(for_eval.begin(), for_eval.end(), false);
    for (std::int64_t i = 0; i < count; ++i) for_eval[static_cast<std::size_t>(permutation(i))] = true;
  }
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < size; ++row) {
    if (for_eval[static_cast<std::size_t>(row)] == (part == Part::kEval)) rows.push_back(row);
  }
  return rows;
}

}  // namespace data
}  // namespace evenkeel
