#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <vector>

#include "data/split.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel {
namespace {

std::vector<std::int64_t> Order(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) {
  EpochPermutation permutation(n, seed, Epoch(epoch));
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < n; ++i) order.push_back(permutation(i));
  return order;
}

TEST_CASE("an epoch's order visits every sample exactly once, whatever their number", "[data][permutation]") {
  std::vector<std::int64_t> sizes = {63, 64, 65, 255, 256, 257, 1000, 4096, 4097, 60000, 65537};
  for (std::int64_t n = 1; n <= 40; ++n) sizes.push_back(n);
  for (std::int64_t n : sizes) {
    for (std::uint64_t epoch : {0, 1, 7}) {
      std::vector<bool> seen(static_cast<std::size_t>(n));
      for (std::int64_t sample : Order(n, 5, epoch)) {
        REQUIRE(sample >= 0);
        REQUIRE(sample < n);
        REQUIRE_FALSE(seen[static_cast<std::size_t>(sample)]);
        seen[static_cast<std::size_t>(sample)] = true;
      }
    }
  }
}

TEST_CASE("a permutation works for sets too large to list", "[data][permutation]") {
  const std::int64_t n = (std::int64_t{1} << 40) + 12345;
  EpochPermutation permutation(n, 1, Epoch(0));
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 10000; ++i) {
    std::int64_t sample = permutation(n - 1 - i);
    REQUIRE(sample >= 0);
    REQUIRE(sample < n);
    seen.insert(sample);
  }
  CHECK(seen.size() == 10000);
}

TEST_CASE("orders differ between epochs and between seeds, and repeat for the same", "[data][permutation]") {
  CHECK(Order(1000, 1, 0) == Order(1000, 1, 0));
  CHECK(Order(1000, 1, 0) != Order(1000, 1, 1));
  CHECK(Order(1000, 1, 0) != Order(1000, 2, 0));
  // Two random orders agree in about one place.
  std::vector<std::int64_t> a = Order(1000, 1, 0), b = Order(1000, 1, 1), c = Order(1000, 2, 0);
  int same_epoch = 0, same_seed = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    same_epoch += a[i] == b[i];
    same_seed += a[i] == c[i];
  }
  CHECK(same_epoch < 10);
  CHECK(same_seed < 10);
}

TEST_CASE("every order of three samples comes up", "[data][permutation]") {
  std::set<std::vector<std::int64_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 200; ++epoch) orders.insert(Order(3, 9, epoch));
  CHECK(orders.size() == 6);
}

// Over many epochs sample s should be at position p equally often. Chi-square over n^2 cells with (n-1)^2 degrees of
// freedom; six standard deviations allowed.
TEST_CASE("no position favours a sample", "[data][permutation]") {
  for (std::int64_t n : {5, 16, 37}) {
    const int epochs = 4000;
    std::vector<double> counts(static_cast<std::size_t>(n * n));
    for (int epoch = 0; epoch < epochs; ++epoch) {
      std::vector<std::int64_t> order = Order(n, 3, static_cast<std::uint64_t>(epoch));
      for (std::int64_t p = 0; p < n; ++p)
        ++counts[static_cast<std::size_t>(p * n + order[static_cast<std::size_t>(p)])];
    }
    double expected = static_cast<double>(epochs) / static_cast<double>(n);
    double chi_square = 0;
    for (double count : counts) chi_square += (count - expected) * (count - expected) / expected;
    double freedom = static_cast<double>((n - 1) * (n - 1));
    INFO("n " << n << " chi-square " << chi_square << " of " << freedom);
    CHECK(std::abs(chi_square - freedom) < 6 * std::sqrt(2 * freedom));
  }
}

// Neighbours in the order must not be neighbours in the set.
TEST_CASE("neighbouring positions hold unrelated samples", "[data][permutation]") {
  std::vector<std::int64_t> order = Order(60000, 1, 0);
  double covariance = 0, variance = 0;
  const double mean = (60000 - 1) / 2.0;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    covariance += (static_cast<double>(order[i]) - mean) * (static_cast<double>(order[i + 1]) - mean);
    variance += (static_cast<double>(order[i]) - mean) * (static_cast<double>(order[i]) - mean);
  }
  CHECK(std::abs(covariance / variance) < 6 / std::sqrt(60000.0));
}

TEST_CASE("a split is disjoint, covers the set, and follows its seed", "[data][split]") {
  auto eval = *data::RowsOf(data::Part::kEval, 1001, 0.2, 7);
  auto training = *data::RowsOf(data::Part::kTraining, 1001, 0.2, 7);
  CHECK(eval.size() == 200);
  std::set<std::int64_t> all(eval.begin(), eval.end());
  all.insert(training.begin(), training.end());
  CHECK(eval.size() + training.size() == 1001);
  CHECK(all.size() == 1001);
  CHECK(eval == *data::RowsOf(data::Part::kEval, 1001, 0.2, 7));
  CHECK(eval != *data::RowsOf(data::Part::kEval, 1001, 0.2, 8));
  CHECK(data::RowsOf(data::Part::kEval, 2, 0.001, 7)->size() == 1);
  CHECK(data::RowsOf(data::Part::kEval, 2, 0.999, 7)->size() == 1);
  CHECK_FALSE(data::RowsOf(data::Part::kEval, 1, 0.5, 7).ok());
  CHECK_FALSE(data::RowsOf(data::Part::kEval, 10, 1.0, 7).ok());
}

}  // namespace
}  // namespace evenkeel
