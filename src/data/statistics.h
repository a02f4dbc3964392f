// What the training set says about how to read a sample: computed once, stored in the checkpoint, applied to every set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/samples.h"

namespace evenkeel::data {

struct Statistics {
  std::string format;
  std::string normalize = "none";
  std::vector<std::int64_t> features;  // shape of a sample
  // standardize: one each per channel (images) or feature (tables), in the source's own units; else empty.
  std::vector<double> mean, std;
  // The training labels were -1 and +1; they are read as 0 and 1.
  bool sign_labels = false;
  std::string label_normalize = "none";
  double label_mean = 0, label_std = 1;
  // CSV only, one each per feature column of the file.
  std::vector<std::string> columns;
  std::vector<bool> categorical;
  std::vector<std::vector<std::string>> categories;  // sorted; empty for a number
  std::vector<double> fill;                          // for a missing number
};

// Errors: kInvalidArgument when a name or category is not UTF-8.
absl::StatusOr<std::string> ToJson(const Statistics& statistics);
// Errors: kInvalidArgument says what is missing or of the wrong type.
absl::StatusOr<Statistics> StatisticsFromJson(const std::string& json);

// Normalises the labels: computes sign_labels, label_mean and label_std when `fit`, then applies them in place and
// checks every label. Errors: kInvalidArgument names the file, the record and the label.
absl::Status NormalizeLabels(bool fit, Statistics& statistics, Samples& samples);

// Computes mean and std of `samples` for statistics.normalize.
// Errors: kInvalidArgument when the normalisation does not suit the kind of samples.
absl::Status FitFeatures(const Samples& samples, Statistics& statistics);

}  // namespace evenkeel::data
