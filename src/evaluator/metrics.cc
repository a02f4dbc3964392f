#include "evaluator/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace evenkeel {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Labels of a binary question are {0, 1}, {-1, 1} or a probability.
bool IsPositive(float label) { return label >= 0.5f; }

double Ratio(double part, std::int64_t whole) { return whole > 0 ? part / static_cast<double>(whole) : kNaN; }

bool IsError(const std::string& metric) { return metric == "mse" || metric == "rmse" || metric == "mae"; }

// Outputs that come before `label` when sorted from the largest, equal ones by index; NaN beats everything, so that a
// broken output is never right.
std::int64_t RankOf(std::span<const float> outputs, std::int64_t label) {
  const float own = outputs[static_cast<std::size_t>(label)];
  if (std::isnan(own)) return static_cast<std::int64_t>(outputs.size());
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(outputs.size()); ++i) {
    const float other = outputs[static_cast<std::size_t>(i)];
    if (std::isnan(other) || other > own || (other == own && i < label)) ++before;
  }
  return before;
}

}  // namespace

double AreaUnderRoc(std::span<ScoredExample> examples) {
  for (const ScoredExample& example : examples) {
    if (std::isnan(example.score)) return kNaN;
  }
  std::sort(examples.begin(), examples.end(),
            [](const ScoredExample& a, const ScoredExample& b) { return a.score < b.score; });
  // Pairs of a negative below a positive, counted in halves: exact in 64 bits up to three billion examples.
  std::uint64_t halves = 0, negatives = 0, positives = 0;
  for (std::size_t begin = 0; begin < examples.size();) {
    std::uint64_t tied_positives = 0, tied_negatives = 0;
    std::size_t end = begin;
    for (; end < examples.size() && examples[end].score == examples[begin].score; ++end) {
      ++(examples[end].positive ? tied_positives : tied_negatives);
    }
    halves += tied_positives * (2 * negatives + tied_negatives);
    positives += tied_positives;
    negatives += tied_negatives;
    begin = end;
  }
  if (positives == 0 || negatives == 0) return kNaN;
  return static_cast<double>(halves) / (2.0 * static_cast<double>(positives) * static_cast<double>(negatives));
}

Metrics::Metrics(const MetricsOptions& options, Task task) : options_(options), task_(task) {}

absl::StatusOr<Metrics> Metrics::Create(const MetricsOptions& options) {
  Task task = Task::kRegression;
  if (options.loss == "softmax_cross_entropy" || (options.loss == "hinge" && options.outputs > 1)) {
    task = Task::kClasses;
  } else if (options.loss == "sigmoid_cross_entropy" || options.loss == "hinge") {
    task = options.outputs == 1 ? Task::kBinary : Task::kLabels;
  }
  Metrics result(options, task);
  for (const std::string& metric : options.metrics) {
    const auto refuse = [&](const std::string& why) {
      return absl::InvalidArgumentError(
          absl::StrCat("[metrics] ", metric, " with loss ", options.loss, " and ", options.outputs, " outputs: ", why));
    };
    std::int64_t k = 0;
    if (absl::StartsWith(metric, "top_k:")) {
      if (!absl::SimpleAtoi(metric.substr(6), &k) || k < 1) return refuse("K must be a number of at least 1");
      if (task != Task::kClasses && task != Task::kBinary) return refuse("it is for classes");
      result.top_k_.push_back(k);
    } else if (IsError(metric)) {
      if (task == Task::kClasses) return refuse("it is for regression");
      result.wants_errors_ = true;
    } else if (metric == "accuracy" || metric == "auc" || metric == "precision" || metric == "recall") {
      if (task == Task::kRegression) return refuse("it is for classes; regression has mse, rmse and mae");
      if (metric == "auc") {
        if (task == Task::kClasses && options.outputs != 2) return refuse("it is for two classes");
        result.wants_auc_ = true;
      }
    } else {
      return refuse("there is no such metric; there are accuracy, top_k:K, auc, precision, recall, mse, rmse, mae");
    }
  }
  const std::int64_t questions = task == Task::kLabels ? options.outputs : 1;
  result.top_k_hits_.resize(result.top_k_.size());
  result.counts_.resize(static_cast<std::size_t>(std::max<std::int64_t>(2, options.outputs)));
  if (result.wants_auc_) {
    result.examples_.resize(static_cast<std::size_t>(questions));
    for (auto& examples : result.examples_) examples.reserve(static_cast<std::size_t>(options.samples));
  }
  result.Reset();
  return result;
}

void Metrics::Reset() {
  loss_sum_ = squared_ = absolute_ = 0;
  samples_ = answers_ = right_ = elements_ = 0;
  std::fill(top_k_hits_.begin(), top_k_hits_.end(), 0);
  std::fill(counts_.begin(), counts_.end(), Counts{});
  for (auto& examples : examples_) examples.clear();
}

void Metrics::Add(std::span<const float> outputs, std::span<const float> labels, double loss_sum) {
  loss_sum_ += loss_sum;
  samples_ += static_cast<std::int64_t>(outputs.size()) / options_.outputs;
  if (task_ == Task::kClasses) AddClasses(outputs, labels);
  if (task_ == Task::kBinary || task_ == Task::kLabels) AddBinary(outputs, labels);
  if (wants_errors_) AddErrors(outputs, labels);
}

void Metrics::AddClasses(std::span<const float> outputs, std::span<const float> labels) {
  const auto width = static_cast<std::size_t>(options_.outputs);
  for (std::size_t row = 0; row * width < outputs.size(); ++row) {
    const std::span<const float> scores = outputs.subspan(row * width, width);
    const auto label = static_cast<std::int64_t>(labels[row]);
    const std::int64_t rank = RankOf(scores, label);
    const auto answer = static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
    ++answers_;
    if (rank == 0) ++right_;
    for (std::size_t i = 0; i < top_k_.size(); ++i) top_k_hits_[i] += rank < top_k_[i] ? 1 : 0;
    ++counts_[answer].answered;
    ++counts_[static_cast<std::size_t>(label)].actual;
    if (rank == 0) ++counts_[static_cast<std::size_t>(label)].both;
    if (wants_auc_) examples_[0].push_back({scores[1] - scores[0], label == 1});
  }
}

void Metrics::AddBinary(std::span<const float> outputs, std::span<const float> labels) {
  const auto width = static_cast<std::size_t>(options_.outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool answer = outputs[i] > 0;
    const bool label = IsPositive(labels[i]);
    const bool right = answer == label && !std::isnan(outputs[i]);
    ++answers_;
    right_ += right ? 1 : 0;
    // Of two classes either is among the two largest.
    for (std::size_t k = 0; k < top_k_.size(); ++k) top_k_hits_[k] += right || top_k_[k] > 1 ? 1 : 0;
    Counts& counts = counts_[i % width];
    counts.answered += answer ? 1 : 0;
    counts.actual += label ? 1 : 0;
    counts.both += answer && label ? 1 : 0;
    if (wants_auc_) examples_[i % width].push_back({outputs[i], label});
  }
}

void Metrics::AddErrors(std::span<const float> outputs, std::span<const float> labels) {
  const bool sigmoid = options_.loss == "sigmoid_cross_entropy";
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const double output = sigmoid ? 1 / (1 + std::exp(-static_cast<double>(outputs[i]))) : outputs[i];
    const double error = (output - labels[i]) * options_.label_scale.scale;
    squared_ += error * error;
    absolute_ += std::abs(error);
  }
  elements_ += static_cast<std::int64_t>(outputs.size());
}

double Metrics::PrecisionOrRecall(bool precision) const {
  const auto ratio = [precision](const Counts& counts) {
    const std::int64_t whole = precision ? counts.answered : counts.actual;
    return whole > 0 ? static_cast<double>(counts.both) / static_cast<double>(whole) : 0.0;
  };
  if (task_ == Task::kBinary) return ratio(counts_[0]);
  if (task_ == Task::kClasses && options_.outputs == 2) return ratio(counts_[1]);
  double sum = 0;
  std::int64_t classes = 0;
  for (const Counts& counts : counts_) {
    if (counts.answered == 0 && counts.actual == 0) continue;
    sum += ratio(counts);
    ++classes;
  }
  return Ratio(sum, classes);
}

double Metrics::Value(const std::string& metric) {
  if (metric == "accuracy") return Ratio(static_cast<double>(right_), answers_);
  if (metric == "precision" || metric == "recall") return PrecisionOrRecall(metric == "precision");
  if (metric == "mse") return Ratio(squared_, elements_);
  if (metric == "rmse") return std::sqrt(Ratio(squared_, elements_));
  if (metric == "mae") return Ratio(absolute_, elements_);
  double sum = 0;  // auc
  for (auto& examples : examples_) sum += AreaUnderRoc(examples);
  return Ratio(sum, static_cast<std::int64_t>(examples_.size()));
}

MetricValues Metrics::Values() {
  MetricValues values = {{"loss", Ratio(loss_sum_, samples_)}};
  std::size_t top_k = 0;
  for (const std::string& metric : options_.metrics) {
    if (absl::StartsWith(metric, "top_k:")) {
      values.emplace_back(metric, Ratio(static_cast<double>(top_k_hits_[top_k++]), samples_));
    } else {
      values.emplace_back(metric, Value(metric));
    }
  }
  return values;
}

}  // namespace evenkeel
