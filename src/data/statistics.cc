#include "data/statistics.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel::data {
namespace {

constexpr int kVersion = 1;
// So many squares of bytes fit into 32 bits.
constexpr std::size_t kBlock = 1 << 15;

// A feature that never varies is centred and not scaled.
double UsableStd(double variance) { return variance > 0 ? std::sqrt(variance) : 1.0; }

// Exact integer sums, per channel.
void FitBytes(const Samples& samples, std::int64_t channels, Statistics& statistics) {
  std::vector<std::uint64_t> sum(static_cast<std::size_t>(channels)), squares(sum.size());
  std::size_t pixels = samples.bytes.size() / sum.size();
  const std::uint8_t* in = samples.Bytes().data();
  if (channels == 1) {
    std::size_t i = 0;
    for (; i + kBlock <= pixels; i += kBlock) {
      std::uint32_t s = 0, q = 0;
      for (std::size_t k = 0; k < kBlock; ++k) {  // of a known length, and so in vector instructions
        s += in[i + k];
        q += static_cast<std::uint32_t>(in[i + k]) * in[i + k];
      }
      sum[0] += s;
      squares[0] += q;
    }
    for (; i < pixels; ++i) {
      sum[0] += in[i];
      squares[0] += static_cast<std::uint32_t>(in[i]) * in[i];
    }
  } else {
    for (std::size_t i = 0; i < pixels; ++i) {
      for (std::size_t c = 0; c < sum.size(); ++c, ++in) {
        sum[c] += *in;
        squares[c] += static_cast<std::uint32_t>(*in) * *in;
      }
    }
  }
  for (std::size_t c = 0; c < sum.size(); ++c) {
    double count = static_cast<double>(pixels);
    double mean = static_cast<double>(sum[c]) / count;
    statistics.mean.push_back(mean);
    statistics.std.push_back(UsableStd(static_cast<double>(squares[c]) / count - mean * mean));
  }
}

// Two passes in double, per channel of an image or per feature of a table.
template <class T>
void FitValues(std::span<const T> values, std::int64_t groups, const std::vector<bool>& indicator,
               Statistics& statistics) {
  auto width = static_cast<std::size_t>(groups);
  std::size_t rows = values.size() / width;
  std::vector<double> mean(width), variance(width);
  for (std::size_t r = 0, i = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < width; ++c, ++i) mean[c] += values[i];
  }
  for (double& m : mean) m /= static_cast<double>(rows);
  for (std::size_t r = 0, i = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < width; ++c, ++i) {
      double difference = values[i] - mean[c];
      variance[c] += difference * difference;
    }
  }
  for (std::size_t c = 0; c < width; ++c) {
    bool keep = !indicator.empty() && indicator[c];
    statistics.mean.push_back(keep ? 0 : mean[c]);
    statistics.std.push_back(keep ? 1 : UsableStd(variance[c] / static_cast<double>(rows)));
  }
}

bool IsInteger(double value) { return value == std::floor(value); }

// True when the labels are -1 and +1. A few others among them are a mistake in the file and not a regression.
absl::StatusOr<bool> HaveSigns(const Samples& samples) {
  std::int64_t minus = 0, plus = 0;
  std::int64_t other = -1;
  for (std::int64_t i = 0; i < samples.size(); ++i) {
    double label = samples.labels[i];
    minus += label == -1;
    plus += label == 1;
    if (label != -1 && label != 1 && other < 0) other = i;
  }
  if (other < 0) return minus > 0;
  bool mistake = minus > 0 && plus > 0 && (minus + plus) * 10 >= samples.size() * 9;
  if (!mistake) return false;
  return absl::InvalidArgumentError(absl::StrCat(samples.Where(other), ": label ", samples.labels[other],
                                                 " among labels of -1 and +1; it must be one of the two"));
}

absl::Status CheckClasses(const Samples& samples) {
  std::int64_t classes = samples.spec.classes;
  for (std::int64_t i = 0; i < samples.size(); ++i) {
    double label = samples.labels[i];
    if (IsInteger(label) && label >= 0 && label < static_cast<double>(classes)) continue;
    return absl::InvalidArgumentError(absl::StrCat(samples.Where(i), ": label ", label,
                                                   " is out of range: input.classes is ", classes,
                                                   ", so labels are whole numbers from 0 to ", classes - 1));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ToJson(const Statistics& statistics) {
  nlohmann::json json = {{"version", kVersion},
                         {"format", statistics.format},
                         {"normalize", statistics.normalize},
                         {"features", statistics.features},
                         {"label_normalize", statistics.label_normalize},
                         {"sign_labels", statistics.sign_labels}};
  if (!statistics.mean.empty()) {
    json["mean"] = statistics.mean;
    json["std"] = statistics.std;
  }
  if (statistics.label_normalize != "none") {
    json["label_mean"] = statistics.label_mean;
    json["label_std"] = statistics.label_std;
  }
  if (!statistics.columns.empty()) {
    nlohmann::json columns = nlohmann::json::array();
    for (std::size_t i = 0; i < statistics.columns.size(); ++i) {
      nlohmann::json column = {{"name", statistics.columns[i]}};
      if (statistics.categorical[i]) {
        column["categories"] = statistics.categories[i];
      } else {
        column["fill"] = statistics.fill[i];
      }
      columns.push_back(std::move(column));
    }
    json["columns"] = std::move(columns);
  }
  try {
    return json.dump();
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("[", statistics.format, "] a column name or category is not UTF-8: ", error.what()));
  }
}

absl::StatusOr<Statistics> StatisticsFromJson(const std::string& text) {
  try {
    nlohmann::json json = nlohmann::json::parse(text);
    if (json.at("version").get<int>() != kVersion) {
      return absl::InvalidArgumentError(absl::StrCat("[data] the training data's statistics have version ",
                                                     json.at("version").dump(), "; this program reads ", kVersion));
    }
    Statistics statistics;
    json.at("format").get_to(statistics.format);
    json.at("normalize").get_to(statistics.normalize);
    json.at("features").get_to(statistics.features);
    json.at("label_normalize").get_to(statistics.label_normalize);
    json.at("sign_labels").get_to(statistics.sign_labels);
    statistics.mean = json.value("mean", std::vector<double>());
    statistics.std = json.value("std", std::vector<double>());
    statistics.label_mean = json.value("label_mean", 0.0);
    statistics.label_std = json.value("label_std", 1.0);
    for (const nlohmann::json& column : json.value("columns", nlohmann::json::array())) {
      bool categorical = column.contains("categories");
      statistics.columns.push_back(column.at("name").get<std::string>());
      statistics.categorical.push_back(categorical);
      statistics.categories.push_back(categorical ? column.at("categories").get<std::vector<std::string>>()
                                                  : std::vector<std::string>());
      statistics.fill.push_back(categorical ? 0 : column.at("fill").get<double>());
    }
    return statistics;
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("[data] the training data's statistics are no JSON of ours: ", error.what()));
  }
}

absl::Status NormalizeLabels(bool fit, Statistics& statistics, Samples& samples) {
  if (samples.spec.classes > 0) {
    if (samples.spec.label_width != 1 || statistics.label_normalize != "none") {
      return absl::InvalidArgumentError(
          absl::StrCat("[", samples.format, "] input.classes is ", samples.spec.classes,
                       "; class labels are one number a sample and take no input.label_normalize"));
    }
    return CheckClasses(samples);
  }
  if (statistics.label_normalize == "none") {
    if (samples.spec.label_width != 1) return absl::OkStatus();
    if (fit) {
      EK_ASSIGN_OR_RETURN(statistics.sign_labels, HaveSigns(samples));
    }
    if (!statistics.sign_labels) return absl::OkStatus();
    for (std::int64_t i = 0; i < samples.size(); ++i) {
      double& label = samples.labels[i];
      if (label != -1 && label != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(samples.Where(i), ": label ", label, ", but the training labels are -1 and +1"));
      }
      label = label > 0 ? 1 : 0;
    }
    return absl::OkStatus();
  }
  if (statistics.label_normalize != "standardize" || samples.spec.label_width != 1) {
    return absl::InvalidArgumentError(absl::StrCat("[", samples.format, "] input.label_normalize: '",
                                                   statistics.label_normalize, "' for ", samples.spec.label_width,
                                                   " labels a sample; right are none, and standardize for one label"));
  }
  if (fit) {
    Statistics labels;
    FitValues<double>(samples.labels, 1, {}, labels);
    statistics.label_mean = labels.mean[0];
    statistics.label_std = labels.std[0];
  }
  for (double& label : samples.labels) label = (label - statistics.label_mean) / statistics.label_std;
  return absl::OkStatus();
}

absl::Status FitFeatures(const Samples& samples, Statistics& statistics) {
  statistics.mean.clear();
  statistics.std.clear();
  const std::string& normalize = statistics.normalize;
  if (normalize == "none") return absl::OkStatus();
  if (normalize == "scale") {
    if (samples.content == Content::kBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("[", samples.format,
                                                   "] input.normalize: scale divides bytes by 255, and these samples "
                                                   "are no bytes; right are none and standardize"));
  }
  if (normalize != "standardize") {
    return absl::InvalidArgumentError(
        absl::StrCat("[data] input.normalize: '", normalize, "' is not one of none, scale, standardize"));
  }
  if (samples.content == Content::kSparse) {
    return absl::InvalidArgumentError(absl::StrCat("[", samples.format,
                                                   "] input.normalize: standardize would fill sparse rows; right is "
                                                   "none, or input.sparse false"));
  }
  const Shape& shape = samples.spec.features;
  std::int64_t groups = samples.spec.image ? shape[-1] : shape.elements();
  if (samples.content == Content::kDense) {
    FitValues<float>(samples.values, groups, samples.indicator, statistics);
  } else if (samples.spec.image) {
    FitBytes(samples, groups, statistics);
  } else {
    FitValues<std::uint8_t>(samples.Bytes(), groups, {}, statistics);
  }
  return absl::OkStatus();
}

}  // namespace evenkeel::data
