#include "bench_support.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel::bench {
namespace {

constexpr std::int64_t kSizeMultiple = 64;  // what a stripe is cut at
constexpr std::int64_t kLargestSize = std::int64_t{4} << 30;
constexpr std::int64_t kLeastRounds = 3;       // of an interval
constexpr std::int64_t kMostRounds = 1 << 18;  // likewise: their times travel in one message
constexpr int kMostProcesses = 64;

absl::Status Bad(const std::string& option, const std::string& value, const std::string& right) {
  return absl::InvalidArgumentError(absl::StrCat("--", option, " is \"", value, "\"; right is ", right));
}

absl::StatusOr<std::int64_t> ParseSize(const std::string& option, const std::string& text) {
  std::string digits = text;
  std::int64_t unit = 1;
  if (!digits.empty()) {
    const std::size_t at = std::string("KMG").find(digits.back());
    if (at != std::string::npos) {
      unit = std::int64_t{1} << (10 * (at + 1));
      digits.pop_back();
    }
  }
  std::int64_t count = 0;
  if (!absl::SimpleAtoi(digits, &count) || count < 1 || count > kLargestSize / unit ||
      count * unit % kSizeMultiple != 0) {
    return Bad(option, text, "a multiple of 64 up to 4G, as 4K, 64K or 1M");
  }
  return count * unit;
}

absl::StatusOr<std::vector<std::string>> ParseNames(const std::string& option, const std::string& text,
                                                    const std::vector<std::string>& known) {
  std::vector<std::string> names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Bad(option, name, absl::StrCat("one or more of ", absl::StrJoin(known, ",")));
    }
  }
  return names;
}

template <class Number>
absl::Status ParseInteger(const std::string& option, const std::string& text, std::int64_t most, Number& out) {
  std::int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > most) {
    return Bad(option, text, absl::StrCat("a whole number from 1 to ", most));
  }
  out = static_cast<Number>(value);
  return absl::OkStatus();
}

absl::Status ParseSeconds(const std::string& option, const std::string& text, double& out) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !(value > 0) || value > 86400) {
    return Bad(option, text, "a number of seconds, more than 0 and at most 86400");
  }
  out = value;
  return absl::OkStatus();
}

absl::Status Take(const std::string& option, const std::string& value, const Options& defaults, Options& out) {
  if (option == "sizes") {
    out.sizes.clear();
    for (const auto& part : absl::StrSplit(value, ',')) {
      EK_ASSIGN_OR_RETURN(const std::int64_t size, ParseSize(option, std::string(part)));
      out.sizes.push_back(size);
    }
    return absl::OkStatus();
  }
  if (option == "bucket") {
    EK_ASSIGN_OR_RETURN(out.bucket_bytes, ParseSize(option, value));
    return absl::OkStatus();
  }
  if (option == "transport") {
    EK_ASSIGN_OR_RETURN(out.transports, ParseNames(option, value, BenchTransports()));
    return absl::OkStatus();
  }
  if (option == "op") {
    EK_ASSIGN_OR_RETURN(out.operations, ParseNames(option, value, defaults.operations));
    return absl::OkStatus();
  }
  if (option == "timeout_s") {
    double seconds = 0;
    EK_RETURN_IF_ERROR(ParseSeconds(option, value, seconds));
    out.timeout = FromSeconds(seconds);
    return absl::OkStatus();
  }
  if (option == "json") {
    if (value.empty()) return Bad(option, value, "the name of a file to write");
    out.json = value;
    return absl::OkStatus();
  }
  if (option == "workers") return ParseInteger(option, value, kMostProcesses, out.workers);
  if (option == "servers") return ParseInteger(option, value, kMostProcesses, out.servers);
  if (option == "threads") return ParseInteger(option, value, 256, out.threads);
  if (option == "intervals") return ParseInteger(option, value, 1000, out.intervals);
  if (option == "rounds") return ParseInteger(option, value, 1'000'000'000, out.rounds);
  return ParseSeconds(option, value, out.seconds);  // --seconds
}

std::string Describe(const std::string& option, const Options& o) {
  auto line = [&](const char* argument, const std::string& text) {
    std::string head = absl::StrCat("  --", option, " ", argument);
    head.resize(std::max<std::size_t>(head.size() + 1, 26), ' ');
    return absl::StrCat(head, text, "\n");
  };
  auto sizes = [](std::string* out, std::int64_t size) { *out += SizeText(size); };
  if (option == "sizes") {
    return line("LIST", absl::StrCat("bytes of a round's gradients, in all servers (",
                                     absl::StrJoin(o.sizes, ",", sizes), ")"));
  }
  if (option == "transport") {
    return line("LIST", absl::StrCat("ways to measure, of ", absl::StrJoin(BenchTransports(), ","), " (",
                                     absl::StrJoin(o.transports, ","), ")"));
  }
  if (option == "op") return line("LIST", absl::StrCat("what to measure (", absl::StrJoin(o.operations, ","), ")"));
  if (option == "workers") return line("N", absl::StrCat("worker processes (", o.workers, ")"));
  if (option == "servers") return line("N", absl::StrCat("server processes (", o.servers, ")"));
  if (option == "threads") return line("N", absl::StrCat("threads of a server that apply (", o.threads, ")"));
  if (option == "bucket") return line("SIZE", absl::StrCat("bytes of a bucket (", SizeText(o.bucket_bytes), ")"));
  if (option == "rounds") return line("N", "rounds of each side at each size (as many as --seconds take)");
  if (option == "seconds") return line("S", absl::StrCat("time of each side at each size (", o.seconds, ")"));
  if (option == "intervals") {
    return line("N", absl::StrCat("cuts that time into so many, in which the sides take turns (", o.intervals, ")"));
  }
  if (option == "timeout_s") {
    return line("S",
                absl::StrCat("gives up on a round, or a process's start, after so long (", ToSeconds(o.timeout), ")"));
  }
  if (option == "hops") return line("", "prints when a round passes each station on its way");
  return line("FILE", "writes the results there too");  // --json
}

}  // namespace

const std::vector<std::string>& BenchTransports() {
  static const std::vector<std::string> names{"grpc", "tcp", "shm"};
  return names;
}

std::unique_ptr<Transport> MakeBenchTransport(const std::string& name) {
  TransportOptions options;
  options.data_paths = {name == "grpc" ? DataPath::kGrpc : name == "tcp" ? DataPath::kTcp : DataPath::kShm};
  return MakeTransport(options);
}

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments, const std::vector<std::string>& allowed,
                                     Options defaults) {
  Options options = defaults;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      options.help = true;
      return options;
    }
    const std::size_t equals = argument.find('=');
    const std::string option = argument.substr(0, 2) == "--" ? argument.substr(2, equals - 2) : "";
    if (std::find(allowed.begin(), allowed.end(), option) == allowed.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", argument, "\" is no option here; there are --", absl::StrJoin(allowed, " --")));
    }
    if (option == "hops") {
      if (equals != std::string::npos) return Bad(option, argument.substr(equals + 1), "no value");
      options.hops = true;
      continue;
    }
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      return absl::InvalidArgumentError(absl::StrCat("--", option, " lacks its value"));
    }
    const std::string value = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    EK_RETURN_IF_ERROR(Take(option, value, defaults, options));
  }
  return options;
}

std::string DescribeOptions(const std::vector<std::string>& allowed, const Options& defaults) {
  std::string text;
  for (const std::string& option : allowed) text += Describe(option, defaults);
  return text;
}

std::string SizeText(std::int64_t bytes) {
  for (const auto& [shift, letter] : {std::pair(30, "G"), std::pair(20, "M"), std::pair(10, "K")}) {
    if (bytes % (std::int64_t{1} << shift) == 0) return absl::StrCat(bytes >> shift, letter);
  }
  return absl::StrCat(bytes);
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(std::llround(q * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

absl::StatusOr<std::vector<Result>> MeasureInTurn(const std::vector<Side>& sides,
                                                  const std::vector<std::size_t>& yardstick_of,
                                                  const Options& options) {
  std::vector<std::int64_t> rounds;
  std::vector<Duration> limits;
  for (const Side& side : sides) {
    // The first rounds of a connection are slow; they only tell how many to ask for.
    EK_ASSIGN_OR_RETURN(std::vector<double> first, side.run(3, 5, 8 * options.timeout));
    const double median = std::max(Quantile(std::move(first), 0.5), 1e-7);
    const double wanted = options.rounds > 0 ? static_cast<double>(options.rounds) : options.seconds / median;
    rounds.push_back(std::clamp(static_cast<std::int64_t>(std::ceil(wanted / options.intervals)),
                                options.rounds > 0 ? 1 : kLeastRounds, kMostRounds));
    limits.push_back(options.timeout + FromSeconds(20 * median * static_cast<double>(rounds.back())));
  }
  std::vector<std::vector<double>> all(sides.size()), medians(sides.size());
  for (int interval = 0; interval < options.intervals; ++interval) {
    for (std::size_t i = 0; i < sides.size(); ++i) {
      const std::int64_t warm = std::min<std::int64_t>(1 + rounds[i] / 10, 50);
      EK_ASSIGN_OR_RETURN(std::vector<double> times, sides[i].run(warm, rounds[i], limits[i]));
      medians[i].push_back(Quantile(times, 0.5));
      all[i].insert(all[i].end(), times.begin(), times.end());
    }
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    std::vector<double> ratios;
    for (std::size_t k = 0; k < medians[i].size(); ++k) {
      ratios.push_back(medians[yardstick_of[i]][k] / std::max(medians[i][k], 1e-12));
    }
    results.push_back(Result{.name = sides[i].name,
                             .operation = sides[i].operation,
                             .bytes = sides[i].bytes,
                             .rounds = all[i].size(),
                             .median = Quantile(all[i], 0.5),
                             .p10 = Quantile(all[i], 0.1),
                             .p90 = Quantile(all[i], 0.9),
                             .to_yardstick = Quantile(std::move(ratios), 0.5)});
  }
  return results;
}

void PrintTableHead() {
  std::printf("%6s  %-8s %-10s %8s %12s %12s %12s %8s %10s\n", "size", "way", "op", "rounds", "median us", "p10 us",
              "p90 us", "GB/s", "of raw tcp");
}

void PrintTableLine(std::int64_t size, const Result& result) {
  std::printf("%6s  %-8s %-10s %8zu %12.1f %12.1f %12.1f %8.3f %10.2f\n", SizeText(size).c_str(), result.name.c_str(),
              result.operation.c_str(), result.rounds, result.median * 1e6, result.p10 * 1e6, result.p90 * 1e6,
              result.rate(), result.to_yardstick);
  std::fflush(stdout);
}

absl::Status WriteJson(const std::string& benchmark, const Options& options,
                       const std::vector<std::pair<std::int64_t, Result>>& results) {
  nlohmann::json lines = nlohmann::json::array();
  for (const auto& [size, result] : results) {
    lines.push_back({{"size_bytes", size},
                     {"way", result.name},
                     {"op", result.operation},
                     {"bytes_counted", result.bytes},
                     {"rounds", result.rounds},
                     {"median_us", result.median * 1e6},
                     {"p10_us", result.p10 * 1e6},
                     {"p90_us", result.p90 * 1e6},
                     {"gb_per_s", result.rate()},
                     {"of_raw_tcp", result.to_yardstick}});
  }
  const nlohmann::json document{
      {"benchmark", benchmark},     {"workers", options.workers},           {"servers", options.servers},
      {"threads", options.threads}, {"bucket_bytes", options.bucket_bytes}, {"intervals", options.intervals},
      {"results", std::move(lines)}};
  const std::string text = document.dump(2) + "\n";
  return Storage::Posix().WriteAtomic(options.json, std::as_bytes(std::span(text)));
}

}  // namespace evenkeel::bench
