#include "evaluator/metrics.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace evenkeel {
namespace {

MetricValues Evaluate(MetricsOptions options, const std::vector<float>& outputs, const std::vector<float>& labels,
                      double loss_sum = 0) {
  absl::StatusOr<Metrics> metrics = Metrics::Create(options);
  INFO(metrics.status().ToString());
  REQUIRE(metrics.ok());
  metrics->Reset();
  // In two batches, since that is how they come.
  const auto outputs_width = static_cast<std::size_t>(options.outputs);
  const auto label_width = static_cast<std::size_t>(options.label_width);
  const std::span<const float> o(outputs), l(labels);
  metrics->Add(o.first(outputs_width), l.first(label_width), loss_sum / 2);
  metrics->Add(o.subspan(outputs_width), l.subspan(label_width), loss_sum / 2);
  return metrics->Values();
}

TEST_CASE("binary metrics agree with a hand count, and a logit of 0 is a no", "[evaluator]") {
  MetricsOptions options{{"accuracy", "auc", "precision", "recall"}, "sigmoid_cross_entropy"};
  //                answered yes: 0, 1, 4;  yes in truth: 0, 2, 4, 5
  const std::vector<float> outputs = {2, 1, -1, -2, 3, 0};
  const std::vector<float> labels = {1, 0, 1, 0, 1, 1};
  const MetricValues values = Evaluate(options, outputs, labels, 9);
  CHECK(values[0] == std::pair<std::string, double>("loss", 1.5));
  CHECK(values[1].second == Approx(3.0 / 6));
  // Negatives 1 and -2; positives above 1: 2, 3; above -2: all four. 6 of 8 pairs.
  CHECK(values[2].second == Approx(6.0 / 8));
  CHECK(values[3].second == Approx(2.0 / 3));
  CHECK(values[4].second == Approx(2.0 / 4));
}

TEST_CASE("hinge labels of -1 and 0 are both the negative class", "[evaluator]") {
  MetricsOptions options{{"accuracy"}, "hinge"};
  CHECK(Evaluate(options, {1, -1, 1, -1}, {1, -1, -1, 1})[1].second == 0.5);
  CHECK(Evaluate(options, {1, -1, 1, -1}, {1, 0, 0, 1})[1].second == 0.5);
}

TEST_CASE("tied scores count half in the area under the curve", "[evaluator]") {
  std::vector<ScoredExample> examples = {{1, true}, {1, false}, {2, true}, {0, false}, {1, false}};
  // Positives 1 and 2, negatives 1, 0, 1: (0.5 + 1 + 0.5) + 3 of 6 pairs.
  CHECK(AreaUnderRoc(examples) == Approx(5.0 / 6));
  std::vector<ScoredExample> one_class = {{1, true}, {2, true}};
  CHECK(std::isnan(AreaUnderRoc(one_class)));
  std::vector<ScoredExample> broken = {{NAN, true}, {2, false}};
  CHECK(std::isnan(AreaUnderRoc(broken)));
}

TEST_CASE("the largest output is a class's answer, the first of equal ones", "[evaluator]") {
  MetricsOptions options{{"accuracy", "top_k:2", "precision", "recall"}, "softmax_cross_entropy", 3};
  const std::vector<float> outputs = {
      3,   1, 2,  // answers 0
      5,   5, 0,  // answers 0, the first of equal ones
      0,   1, 2,  // answers 2
      9,   2, 1,  // answers 0
      NAN, 7, 1,  // answers nothing
  };
  const std::vector<float> labels = {0, 1, 2, 2, 0};
  const MetricValues values = Evaluate(options, outputs, labels);
  CHECK(values[1].second == Approx(2.0 / 5));
  CHECK(values[2].second == Approx(3.0 / 5));
  // precision by class: 1/4 (NaN is not greater than anything, so class 0 keeps the row), 0, 1; recall: 1/2, 0, 1/2
  CHECK(values[3].second == Approx((1.0 / 4 + 0 + 1) / 3));
  CHECK(values[4].second == Approx((1.0 / 2 + 0 + 1.0 / 2) / 3));
}

TEST_CASE("two softmax outputs have an area under the curve and a positive class", "[evaluator]") {
  MetricsOptions options{{"auc", "precision", "recall"}, "softmax_cross_entropy", 2};
  // Differences 2, -1, 1, 1.
  const MetricValues values = Evaluate(options, {0, 2, 1, 0, 3, 4, 1, 2}, {1, 0, 0, 1});
  CHECK(values[1].second == Approx((2 + 1.5) / 4));
  CHECK(values[2].second == Approx(2.0 / 3));
  CHECK(values[3].second == Approx(1));
}

TEST_CASE("errors come back in the data's own units, the loss does not", "[evaluator]") {
  MetricsOptions options{{"mse", "rmse", "mae"}, "mse", 1, 1, LabelScale{2, 10}};
  const MetricValues values = Evaluate(options, {1, 0, -1}, {0, 0, 2}, 10.0);
  CHECK(values[0].second == Approx(10.0 / 3));
  CHECK(values[1].second == Approx((4.0 + 0 + 36) / 3));
  CHECK(values[2].second == Approx(std::sqrt(40.0 / 3)));
  CHECK(values[3].second == Approx((2.0 + 0 + 6) / 3));
}

TEST_CASE("a metric that does not go with the loss is refused by name", "[evaluator]") {
  const auto refused = [](MetricsOptions options, const std::string& word) {
    const absl::Status status = Metrics::Create(options).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains(word));
  };
  refused({{"accuracy"}, "mse"}, "accuracy");
  refused({{"rmse"}, "softmax_cross_entropy", 3}, "rmse");
  refused({{"auc"}, "softmax_cross_entropy", 3}, "two classes");
  refused({{"f1"}, "hinge"}, "f1");
}

}  // namespace
}  // namespace evenkeel
