// What a model's outputs are worth, summed batch by batch.
//
//   loss       mean over the samples, in the training's units
//   accuracy   share of right answers: the largest output (the first of equal ones) for classes; output > 0 for binary
//              scores; of several independent sigmoid outputs, over all of them
//   top_k:K    share of samples whose class is among the K largest outputs
//   auc        area under the ROC curve, exact, ties count half; NaN where one of the two classes is missing
//   precision, recall   of the positive class for one or two outputs; with more outputs the plain mean over the
//              classes that occur as label or answer, a class without any answer (label) counting 0
//   mse, rmse, mae      over all output elements, in the data's own units; of a sigmoid output, its probability
//
// Several sigmoid outputs are as many binary questions: auc, precision and recall are plain means over them.
//
// Threading: one caller at a time. Memory: what Create reserves; Add allocates nothing more for `samples` samples.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel {

using MetricValues = std::vector<std::pair<std::string, double>>;

struct ScoredExample {
  float score = 0;
  bool positive = false;
};
// Sorts `examples`. NaN where a class is missing or a score is NaN.
double AreaUnderRoc(std::span<ScoredExample> examples);

struct MetricsOptions {
  std::vector<std::string> metrics;  // without loss
  std::string loss;                  // LossConfig::type
  std::int64_t outputs = 1;          // of one sample
  std::int64_t label_width = 1;
  LabelScale label_scale;
  std::int64_t samples = 0;  // expected
};

class Metrics {
 public:
  // Errors: kInvalidArgument names the metric, and the loss or the outputs that it does not go with.
  static absl::StatusOr<Metrics> Create(const MetricsOptions& options);

  void Reset();
  // outputs [n, outputs], labels [n, label_width]; loss_sum over the n samples.
  void Add(std::span<const float> outputs, std::span<const float> labels, double loss_sum);
  // Loss first, then the metrics as asked for.
  MetricValues Values();

 private:
  enum class Task : std::uint8_t { kBinary, kClasses, kLabels, kRegression };
  // How often a class (or a binary question's yes) was answered, was right, and both.
  struct Counts {
    std::int64_t answered = 0, actual = 0, both = 0;
  };
  explicit Metrics(const MetricsOptions& options, Task task);
  void AddClasses(std::span<const float> outputs, std::span<const float> labels);
  void AddBinary(std::span<const float> outputs, std::span<const float> labels);
  void AddErrors(std::span<const float> outputs, std::span<const float> labels);
  double PrecisionOrRecall(bool precision) const;
  double Value(const std::string& metric);

  MetricsOptions options_;
  Task task_;
  bool wants_auc_ = false, wants_errors_ = false;
  std::vector<std::int64_t> top_k_;  // the Ks

  double loss_sum_ = 0;
  std::int64_t samples_ = 0;
  std::int64_t answers_ = 0, right_ = 0;
  std::vector<std::int64_t> top_k_hits_;
  std::vector<Counts> counts_;                        // a class or a binary question
  std::vector<std::vector<ScoredExample>> examples_;  // a binary question
  double squared_ = 0, absolute_ = 0;
  std::int64_t elements_ = 0;
};

}  // namespace evenkeel
