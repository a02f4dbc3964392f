// What the benchmarks of the data path share: options, the ways of carrying streams by name, quantiles, the table.
//
// Threading: none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel::bench {

// The names that MakeBenchTransport knows.
const std::vector<std::string>& BenchTransports();
// Requires one of those names.
std::unique_ptr<Transport> MakeBenchTransport(const std::string& name);

struct Options {
  std::vector<std::int64_t> sizes{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  std::vector<std::string> transports = BenchTransports();
  std::vector<std::string> operations;
  int workers = 1;
  int servers = 1;
  int threads = 1;  // that apply, in each server
  std::int64_t bucket_bytes = 4 << 20;
  std::int64_t rounds = 0;  // of each side at each size; 0: as many as `seconds` take
  double seconds = 3;
  int intervals = 5;                            // each side's rounds come in so many, the sides in turn
  Duration timeout = std::chrono::seconds(60);  // of a round, of a process's start
  std::string json;
  bool hops = false;
  bool help = false;
};

// "--name value" and "--name=value", names as in `allowed` only; `operations` may name those given as default there.
// Errors: kInvalidArgument names the option and the value.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments, const std::vector<std::string>& allowed,
                                     Options defaults);
// The lines of --help for the options of `allowed`.
std::string DescribeOptions(const std::vector<std::string>& allowed, const Options& defaults);

std::string SizeText(std::int64_t bytes);  // "64K"

// One thing that is measured. Sides take turns.
struct Side {
  std::string name;        // "grpc", "raw tcp"
  std::string operation;   // "push"
  std::int64_t bytes = 0;  // of a round, counted once
  // Seconds of each of `rounds` rounds, after `warm` more that do not count; all within the duration.
  std::function<absl::StatusOr<std::vector<double>>(std::int64_t warm, std::int64_t rounds, Duration)> run;
};

struct Result {
  std::string name, operation;
  std::int64_t bytes = 0;
  std::size_t rounds = 0;
  double median = 0, p10 = 0, p90 = 0;  // seconds
  double to_yardstick = 0;              // median over the intervals of the rates' ratio
  double rate() const { return median > 0 ? static_cast<double>(bytes) / median * 1e-9 : 0; }  // GB/s
};

// Runs the sides in turn, interval by interval. `yardstick_of[i]` is the side that side i is compared with.
// Errors: those of the sides.
absl::StatusOr<std::vector<Result>> MeasureInTurn(const std::vector<Side>& sides,
                                                  const std::vector<std::size_t>& yardstick_of, const Options& options);

double Quantile(std::vector<double> values, double q);

void PrintTableHead();
void PrintTableLine(std::int64_t size, const Result& result);
// Errors: those of the file.
absl::Status WriteJson(const std::string& benchmark, const Options& options,
                       const std::vector<std::pair<std::int64_t, Result>>& results);

}  // namespace evenkeel::bench
