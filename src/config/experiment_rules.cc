#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "config/concat.h"
#include "config/json_text.h"
#include "config/rules.h"
#include "config/schema.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/status.h"
#include "experiment.pb.h"

namespace evenkeel {

bool MetricMaximizes(std::string_view metric) {
  return metric == "accuracy" || metric == "auc" || metric == "precision" || metric == "recall" ||
         metric.substr(0, 6) == "top_k:";
}

namespace config_internal {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

absl::Status Invalid(std::string_view path, std::string_view what) {
  return absl::InvalidArgumentError(Concat(path, ": ", what));
}

bool IsRegression(const config::Loss& loss) {
  return loss.type() == config::Loss::TYPE_MSE || loss.type() == config::Loss::TYPE_HUBER;
}

// ---- input

absl::Status CheckCsv(const config::Csv& csv, const std::string& path) {
  if (csv.separator().size() != 1 || static_cast<unsigned char>(csv.separator()[0]) >= 0x80 ||
      csv.separator()[0] == '"' || csv.separator()[0] == '\n' || csv.separator()[0] == '\r') {
    return Invalid(FieldPath(path, "separator"),
                   Concat("'", csv.separator(), "' is not one ASCII byte other than a quote or a line's end"));
  }
  std::set<std::string> columns;
  for (int i = 0; i < csv.columns_size(); ++i) {
    const std::string at = ItemPath(FieldPath(path, "columns"), i);
    if (csv.columns(i) == csv.label()) return Invalid(at, Concat("'", csv.label(), "' is the label"));
    if (!columns.insert(csv.columns(i)).second) return Invalid(at, Concat("'", csv.columns(i), "' comes twice"));
  }
  std::set<std::string> categorical;
  for (int i = 0; i < csv.categorical_size(); ++i) {
    const std::string& name = csv.categorical(i);
    const std::string at = ItemPath(FieldPath(path, "categorical"), i);
    if (name == csv.label()) return Invalid(at, Concat("'", name, "' is the label"));
    if (!columns.empty() && columns.count(name) == 0) {
      return Invalid(at, Concat("'", name, "' is not among columns: ", absl::StrJoin(csv.columns(), ", ")));
    }
    if (!categorical.insert(name).second) return Invalid(at, Concat("'", name, "' comes twice"));
  }
  if (csv.header()) return absl::OkStatus();
  std::vector<std::string> names = {csv.label()};
  names.insert(names.end(), csv.columns().begin(), csv.columns().end());
  names.insert(names.end(), csv.categorical().begin(), csv.categorical().end());
  for (const std::string& name : names) {
    std::uint32_t index = 0;
    if (absl::SimpleAtoi(name, &index)) continue;
    return Invalid(path, Concat("'", name, "' is no column's index, and without a header columns have no names"));
  }
  return absl::OkStatus();
}

absl::Status CheckSparse(const config::Experiment& experiment) {
  const config::Input& input = experiment.input();
  if (!input.sparse()) return absl::OkStatus();
  const auto fits = [](const config::Source& source) { return source.has_svmlight() || source.has_custom(); };
  if (!fits(input.train()) || (input.has_eval() && !fits(input.eval()))) {
    return Invalid("input.sparse", "only svmlight and custom sources have sparse rows");
  }
  if (input.normalize() != config::Input::NORMALIZE_NONE) {
    return Invalid("input.normalize", Concat("'", EnumName(input, "normalize"),
                                             "' would fill sparse rows; allowed with input.sparse: none"));
  }
  for (const config::Layer& layer : experiment.model().layers()) {
    const bool takes_sample = std::find(layer.inputs().begin(), layer.inputs().end(), "input") != layer.inputs().end();
    if (takes_sample && !layer.has_dense()) {
      return Invalid("input.sparse", Concat("layer '", layer.name(), "' (", LayerType(layer),
                                            ") takes the input, and only dense layers take sparse rows"));
    }
  }
  return absl::OkStatus();
}

bool IsImages(const config::Source& source) {
  return source.has_idx() || source.has_cifar10() || source.has_custom() ||
         (source.has_tfrecord() && source.tfrecord().shape_size() >= 2);
}

absl::Status CheckAugmentation(const config::Input& input) {
  if (IsImages(input.train())) return absl::OkStatus();
  if (input.flip_horizontal()) return Invalid("input.flip_horizontal", "true; only images can be mirrored");
  if (input.crop_padding() > 0) {
    return Invalid("input.crop_padding", Concat(input.crop_padding(), "; only images can be cropped"));
  }
  return absl::OkStatus();
}

absl::Status CheckLabels(const config::Experiment& experiment) {
  const config::Loss& loss = experiment.model().loss();
  const config::Input& input = experiment.input();
  if (loss.type() == config::Loss::TYPE_SOFTMAX_CROSS_ENTROPY && input.classes() < 2) {
    return Invalid("input.classes", Concat(input.classes(),
                                           " is out of range; the loss softmax_cross_entropy "
                                           "needs at least 2"));
  }
  if (IsRegression(loss) && input.classes() != 0) {
    return Invalid("input.classes", Concat(input.classes(), ", but the loss ", EnumName(loss, "type"),
                                           " is for regression, which has none: 0"));
  }
  if (input.label_normalize() == config::Input::LABEL_NORMALIZE_STANDARDIZE && !IsRegression(loss)) {
    return Invalid("input.label_normalize",
                   Concat("'standardize' goes with the losses mse and huber, not with ", EnumName(loss, "type")));
  }
  return absl::OkStatus();
}

// ---- train

// Servers compute in float32: what turns infinite or zero there is no usable setting.
absl::Status CheckFloats(const Message& message, const std::string& path) {
  const auto& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string field_path = FieldPath(path, field.name());
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!message.GetReflection()->HasField(message, &field)) continue;
      EK_RETURN_IF_ERROR(CheckFloats(message.GetReflection()->GetMessage(message, &field), field_path));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      const double value = message.GetReflection()->GetDouble(message, &field);
      const float narrow = static_cast<float>(value);
      if (!std::isfinite(narrow) || (value != 0 && narrow == 0) || (value < 1 && narrow == 1)) {
        return Invalid(field_path, Concat(value, " becomes ", narrow, " in float32, in which servers compute"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSync(const config::Sync& sync, const config::Membership& membership) {
  if (sync.backup_workers() > 0 && sync.mode() != config::Sync::MODE_BSP) {
    return Invalid("train.sync.backup_workers",
                   Concat(sync.backup_workers(), " goes with mode bsp, not with ", EnumName(sync, "mode")));
  }
  if (sync.staleness() > 0 && sync.mode() != config::Sync::MODE_SSP) {
    return Invalid("train.sync.staleness",
                   Concat(sync.staleness(), " goes with mode ssp, not with ", EnumName(sync, "mode")));
  }
  if (sync.backup_workers() >= membership.workers_max()) {
    return Invalid("train.sync.backup_workers",
                   Concat(sync.backup_workers(), " is out of range; allowed: below membership.workers_max, ",
                          membership.workers_max()));
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const config::Schedule& schedule) {
  if (schedule.has_step()) {
    const auto& boundaries = schedule.step().boundaries();
    for (int i = 1; i < boundaries.size(); ++i) {
      if (boundaries[i] <= boundaries[i - 1]) {
        return Invalid(ItemPath("train.schedule.step.boundaries", i),
                       Concat(boundaries[i], " does not lie above the one before, ", boundaries[i - 1]));
      }
    }
  }
  const double total = schedule.has_cosine()       ? schedule.cosine().total()
                       : schedule.has_polynomial() ? schedule.polynomial().total()
                                                   : 0;
  if (total > 0 && schedule.warmup().length() >= total) {
    return Invalid("train.schedule.warmup.length",
                   Concat(schedule.warmup().length(), " is out of range; allowed: below the decay's total, ", total));
  }
  return absl::OkStatus();
}

// ---- eval

absl::Status CheckMetric(const std::string& metric, const config::Experiment& experiment, const std::string& path) {
  const config::Loss& loss = experiment.model().loss();
  const std::int64_t classes = experiment.input().classes();
  static const std::vector<std::string> kNames = {"accuracy", "top_k:K", "auc",  "precision",
                                                  "recall",   "mse",     "rmse", "mae"};
  std::int64_t k = 0;
  const bool top_k = absl::StartsWith(metric, "top_k:") && absl::SimpleAtoi(metric.substr(6), &k);
  const bool regression = metric == "mse" || metric == "rmse" || metric == "mae";
  if (!top_k && (metric == "top_k:K" || std::find(kNames.begin(), kNames.end(), metric) == kNames.end())) {
    return Invalid(path, Concat("'", metric, "' is no metric", NearestHint(metric, kNames), "; allowed: loss, ",
                                absl::StrJoin(kNames, ", "), " (K a number, as top_k:5)"));
  }
  if (top_k && (k < 1 || k > std::max<std::int64_t>(classes, 1))) {
    return Invalid(path, Concat("'", metric, "': K is out of range; allowed: 1 to input.classes, ", classes));
  }
  if (IsRegression(loss) && !regression) {
    return Invalid(path, Concat("'", metric, "' is for classes, and the loss ", EnumName(loss, "type"),
                                " is for regression; allowed: loss, mse, rmse, mae"));
  }
  if (loss.type() == config::Loss::TYPE_SOFTMAX_CROSS_ENTROPY && regression) {
    return Invalid(path, Concat("'", metric, "' is for regression, and the loss softmax_cross_entropy for classes"));
  }
  if ((metric == "auc" || metric == "precision" || metric == "recall") && classes > 2) {
    return Invalid(path, Concat("'", metric, "' is for two classes; input.classes is ", classes));
  }
  return absl::OkStatus();
}

absl::Status CheckChosen(const std::string& metric, const config::Eval& eval, const std::string& path) {
  if (metric == "loss" || std::count(eval.metrics().begin(), eval.metrics().end(), metric) > 0) return absl::OkStatus();
  std::vector<std::string> names = {"loss"};
  names.insert(names.end(), eval.metrics().begin(), eval.metrics().end());
  return Invalid(path, Concat("'", metric, "' is not measured", NearestHint(metric, names), "; eval.metrics has ",
                              absl::StrJoin(names, ", ")));
}

}  // namespace

absl::Status CompleteInput(config::Experiment& experiment) {
  const config::Input& input = experiment.input();
  if (input.train().has_csv()) EK_RETURN_IF_ERROR(CheckCsv(input.train().csv(), "input.train.csv"));
  if (input.has_eval()) {
    if (input.eval().has_csv()) EK_RETURN_IF_ERROR(CheckCsv(input.eval().csv(), "input.eval.csv"));
    if (input.eval_fraction() > 0) {
      return Invalid("input.eval_fraction",
                     Concat(input.eval_fraction(), ", but input.eval names the held-out samples; give one"));
    }
  }
  EK_RETURN_IF_ERROR(CheckSparse(experiment));
  EK_RETURN_IF_ERROR(CheckAugmentation(input));
  return CheckLabels(experiment);
}

absl::Status CompleteTrain(config::Experiment& experiment) {
  config::Train& train = *experiment.mutable_train();
  if (train.epochs() == 0 && train.max_commits() == 0) {
    return Invalid("train", "says no end; give epochs or max_commits above 0");
  }
  if (train.bucket_bytes() % 64 != 0) {
    return Invalid("train.bucket_bytes", Concat(train.bucket_bytes(), " is not a multiple of 64"));
  }
  config::Optimizer& optimizer = *train.mutable_optimizer();
  if (!optimizer.has_weight_decay()) optimizer.set_weight_decay(optimizer.has_adamw() ? 0.01 : 0);
  EK_RETURN_IF_ERROR(CheckFloats(optimizer, "train.optimizer"));
  EK_RETURN_IF_ERROR(CheckSync(train.sync(), experiment.membership()));
  return CheckSchedule(train.schedule());
}

absl::Status CompleteEval(config::Experiment& experiment) {
  config::Eval& eval = *experiment.mutable_eval();
  if (!eval.has_best_metric()) eval.set_best_metric(eval.metrics().empty() ? "loss" : eval.metrics(0));

  std::vector<std::string> metrics;
  for (int i = 0; i < eval.metrics_size(); ++i) {
    const std::string& metric = eval.metrics(i);
    const std::string path = ItemPath("eval.metrics", i);
    if (metric == "loss") continue;
    EK_RETURN_IF_ERROR(CheckMetric(metric, experiment, path));
    if (std::count(metrics.begin(), metrics.end(), metric) > 0) {
      return Invalid(path, Concat("'", metric, "' comes twice"));
    }
    metrics.push_back(metric);
  }
  eval.mutable_metrics()->Assign(metrics.begin(), metrics.end());

  EK_RETURN_IF_ERROR(CheckChosen(eval.best_metric(), eval, "eval.best_metric"));
  if (!eval.has_best_maximize()) eval.set_best_maximize(MetricMaximizes(eval.best_metric()));
  if (!eval.has_early_stopping()) return absl::OkStatus();
  config::Eval::EarlyStopping& stopping = *eval.mutable_early_stopping();
  if (!stopping.has_metric()) stopping.set_metric(eval.best_metric());
  EK_RETURN_IF_ERROR(CheckChosen(stopping.metric(), eval, "eval.early_stopping.metric"));
  if (experiment.input().has_eval() || experiment.input().eval_fraction() > 0) return absl::OkStatus();
  return Invalid("eval.early_stopping", "needs held-out samples: input.eval or input.eval_fraction");
}

absl::Status CompleteNoiseScale(config::Experiment& experiment) {
  config::Batching& batching = *experiment.mutable_batching();
  if (!batching.global().has_noise_scale()) return absl::OkStatus();
  config::Batching::NoiseScale& noise = *batching.mutable_global()->mutable_noise_scale();
  const std::int64_t first = experiment.train().global_batch_size();
  if (noise.min() == 0) noise.set_min(first);
  if (noise.min() > first) {
    return Invalid("batching.global.noise_scale.min",
                   Concat(noise.min(), " is out of range; allowed: at most train.global_batch_size, ", first));
  }
  if (noise.max() < first) {
    return Invalid("batching.global.noise_scale.max",
                   Concat(noise.max(), " is out of range; allowed: at least train.global_batch_size, ", first));
  }
  if (noise.most_factor() < noise.least_factor()) {
    return Invalid(
        "batching.global.noise_scale.most_factor",
        Concat(noise.most_factor(), " is out of range; allowed: at least least_factor, ", noise.least_factor()));
  }
  if (experiment.train().sync().mode() != config::Sync::MODE_BSP) {
    return Invalid("batching.global.noise_scale",
                   "goes with train.sync.mode bsp: the noise is measured among updates of one commit");
  }
  if (batching.gradnorm_window() == 0) {
    return Invalid("batching.gradnorm_window", "0, but batching.global.noise_scale needs gradients to be measured");
  }
  return absl::OkStatus();
}

absl::Status CompleteBatching(config::Experiment& experiment) {
  config::Batching& batching = *experiment.mutable_batching();
  if (batching.max_batch_size() != 0 && batching.max_batch_size() < batching.min_batch_size()) {
    return Invalid("batching.max_batch_size",
                   Concat(batching.max_batch_size(), " is out of range; allowed: 0, or at least min_batch_size, ",
                          batching.min_batch_size()));
  }
  const bool is_static = batching.mode() == config::Batching::MODE_STATIC;
  const bool is_off = batching.mode() == config::Batching::MODE_OFF;
  if (is_static && batching.speeds().empty()) {
    return Invalid("batching.speeds", "mode static needs one a training task");
  }
  if (is_off && !batching.speeds().empty()) {
    return Invalid("batching.speeds", "go with mode static, proportional or model, not with off");
  }
  if (const double factor = batching.evict_slower_than(); factor != 0) {
    if (factor < 1) {
      return Invalid("batching.evict_slower_than", Concat(factor, " is out of range; allowed: 0, or at least 1"));
    }
    if (is_static || is_off) {
      return Invalid("batching.evict_slower_than", "goes with mode proportional or model, which measure steps");
    }
  }
  if (batching.asp_adjust_strategy() == config::Batching::ASP_ADJUST_STRATEGY_STALENESS &&
      (is_static || is_off || experiment.train().sync().mode() == config::Sync::MODE_BSP)) {
    return Invalid("batching.asp_adjust_strategy",
                   "staleness goes with train.sync.mode asp or ssp and batching.mode proportional or model");
  }
  return CompleteNoiseScale(experiment);
}

absl::Status CompleteRest(config::Experiment& experiment) {
  const config::Checkpoint& checkpoint = experiment.checkpoint();
  if (checkpoint.every_commits() > 0 && checkpoint.every_seconds() > 0) {
    return Invalid("checkpoint", "'every_commits' and 'every_seconds' exclude each other; give one");
  }
  const config::Membership& membership = experiment.membership();
  if (membership.workers_max() < membership.workers_min()) {
    return Invalid("membership.workers_max",
                   Concat(membership.workers_max(), " is out of range; allowed: at least workers_min, ",
                          membership.workers_min()));
  }
  if (membership.ps_replacement_timeout_ms() >= membership.ps_timeout_ms()) {
    return Invalid("membership.ps_replacement_timeout_ms",
                   Concat(membership.ps_replacement_timeout_ms(), " is out of range; allowed: below ps_timeout_ms, ",
                          membership.ps_timeout_ms()));
  }
  if (membership.renew_ms() >= membership.lease_ms()) {
    return Invalid("membership.renew_ms",
                   Concat(membership.renew_ms(), " is out of range; allowed: below lease_ms, ", membership.lease_ms()));
  }
  return CompleteBatching(experiment);
}

}  // namespace config_internal
}  // namespace evenkeel
