#include "config/convert.h"

#include <cstdint>
#include <string>
#include <vector>

#include "config/rules.h"
#include "config/schema.h"
#include "evenkeel/core/status.h"
#include "experiment.pb.h"
#include "google/protobuf/descriptor.h"

namespace evenkeel::config_internal {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::RepeatedField;
using google::protobuf::RepeatedPtrField;

std::vector<std::string> ToList(const RepeatedPtrField<std::string>& items) { return {items.begin(), items.end()}; }
template <typename T>
std::vector<T> ToList(const RepeatedField<T>& items) {
  return {items.begin(), items.end()};
}

AttributeValue ToAttribute(const config::Attribute& attribute) {
  switch (attribute.kind_case()) {
    case config::Attribute::kFlag:
      return attribute.flag();
    case config::Attribute::kInteger:
      return std::int64_t{attribute.integer()};
    case config::Attribute::kReal:
      return attribute.real();
    case config::Attribute::kText:
      return attribute.text();
    case config::Attribute::kIntegers:
      return std::vector<std::int64_t>(attribute.integers().values().begin(), attribute.integers().values().end());
    case config::Attribute::kReals:
      return ToList(attribute.reals().values());
    case config::Attribute::kTexts:
      return ToList(attribute.texts().values());
    case config::Attribute::KIND_NOT_SET:
      break;
  }
  EK_CHECK_MSG(false, "an attribute without a value");
}

Attributes ToAttributes(const config::Custom& custom) {
  Attributes out;
  for (const auto& [name, value] : custom.attributes()) out[name] = ToAttribute(value);
  return out;
}

// The settings of a built-in layer, whatever its message.
Attributes ToAttributes(const Message& settings) {
  Attributes out;
  const auto& reflection = *settings.GetReflection();
  const auto& type = *settings.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    AttributeValue& value = out[field.name()];
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        value = reflection.GetBool(settings, &field);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        if (field.is_repeated()) {
          std::vector<std::int64_t> items;
          for (int k = 0; k < reflection.FieldSize(settings, &field); ++k) {
            items.push_back(reflection.GetRepeatedInt64(settings, &field, k));
          }
          value = std::move(items);
        } else {
          value = std::int64_t{reflection.GetInt64(settings, &field)};
        }
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        value = reflection.GetDouble(settings, &field);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        value = reflection.GetString(settings, &field);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        value = EnumName(settings, field);
        break;
      default:
        EK_CHECK_MSG(false, field.full_name());
    }
  }
  return out;
}

LayerConfig ToLayer(const config::Layer& layer) {
  LayerConfig out;
  out.type = LayerType(layer);
  out.name = layer.name();
  out.inputs = ToList(layer.inputs());
  if (layer.has_custom()) {
    out.attributes = ToAttributes(layer.custom());
  } else {
    const auto& reflection = *layer.GetReflection();
    const auto* kind = reflection.GetOneofFieldDescriptor(layer, layer.GetDescriptor()->FindOneofByName("kind"));
    out.attributes = ToAttributes(reflection.GetMessage(layer, kind));
  }
  return out;
}

ModelConfig ToModel(const config::Model& model) {
  ModelConfig out;
  for (const config::Layer& layer : model.layers()) out.layers.push_back(ToLayer(layer));
  out.loss = {.type = EnumName(model.loss(), "type"),
              .label_smoothing = model.loss().label_smoothing(),
              .huber_delta = model.loss().huber_delta()};
  return out;
}

SourceConfig ToSource(const config::Source& source) {
  switch (source.kind_case()) {
    case config::Source::kIdx:
      return IdxSource{.images = source.idx().images(), .labels = source.idx().labels()};
    case config::Source::kCifar10:
      return Cifar10Source{.files = ToList(source.cifar10().files())};
    case config::Source::kCsv: {
      const config::Csv& csv = source.csv();
      return CsvSource{.files = ToList(csv.files()),
                       .header = csv.header(),
                       .separator = csv.separator(),
                       .label = csv.label(),
                       .columns = ToList(csv.columns()),
                       .categorical = ToList(csv.categorical()),
                       .missing = EnumName(csv, "missing")};
    }
    case config::Source::kSvmlight:
      return SvmlightSource{.files = ToList(source.svmlight().files()),
                            .features = source.svmlight().features(),
                            .zero_based = source.svmlight().zero_based()};
    case config::Source::kTfrecord: {
      const config::TfRecord& record = source.tfrecord();
      return TfRecordSource{.files = ToList(record.files()),
                            .feature = record.feature(),
                            .label = record.label(),
                            .shape = {record.shape().begin(), record.shape().end()}};
    }
    case config::Source::kCustom:
      return CustomSource{.type = source.custom().type(), .attributes = ToAttributes(source.custom())};
    case config::Source::KIND_NOT_SET:
      break;
  }
  EK_CHECK_MSG(false, "a source without a kind");
}

InputConfig ToInput(const config::Input& input) {
  InputConfig out;
  out.train = ToSource(input.train());
  if (input.has_eval()) out.eval = ToSource(input.eval());
  out.eval_fraction = input.eval_fraction();
  out.split_seed = input.split_seed();
  out.normalize = EnumName(input, "normalize");
  out.label_normalize = EnumName(input, "label_normalize");
  out.flip_horizontal = input.flip_horizontal();
  out.crop_padding = input.crop_padding();
  out.classes = input.classes();
  out.sparse = input.sparse();
  return out;
}

OptimizerSpec ToOptimizer(const config::Optimizer& optimizer) {
  using Kind = OptimizerSpec::Kind;
  OptimizerSpec out;
  const auto narrow = [](double value) { return static_cast<float>(value); };
  const auto adam = [&](const config::Adam& settings, Kind kind) {
    out.kind = kind;
    out.beta1 = narrow(settings.beta1());
    out.beta2 = narrow(settings.beta2());
    out.epsilon = narrow(settings.epsilon());
  };
  switch (optimizer.kind_case()) {
    case config::Optimizer::kSgd:
    case config::Optimizer::KIND_NOT_SET:
      out.kind = Kind::kSgd;
      break;
    case config::Optimizer::kMomentum:
      out.kind = Kind::kMomentum;
      out.momentum = narrow(optimizer.momentum().momentum());
      break;
    case config::Optimizer::kNesterov:
      out.kind = Kind::kNesterov;
      out.momentum = narrow(optimizer.nesterov().momentum());
      break;
    case config::Optimizer::kAdagrad:
      out.kind = Kind::kAdagrad;
      out.initial_accumulator = narrow(optimizer.adagrad().initial_accumulator());
      out.epsilon = narrow(optimizer.adagrad().epsilon());
      break;
    case config::Optimizer::kRmsprop:
      out.kind = Kind::kRmsprop;
      out.rho = narrow(optimizer.rmsprop().rho());
      out.momentum = narrow(optimizer.rmsprop().momentum());
      out.epsilon = narrow(optimizer.rmsprop().epsilon());
      break;
    case config::Optimizer::kAdam:
      adam(optimizer.adam(), Kind::kAdam);
      break;
    case config::Optimizer::kAdamw:
      adam(optimizer.adamw(), Kind::kAdamW);
      break;
    case config::Optimizer::kFtrl:
      out.kind = Kind::kFtrl;
      out.ftrl_l1 = narrow(optimizer.ftrl().l1());
      out.ftrl_l2 = narrow(optimizer.ftrl().l2());
      out.initial_accumulator = narrow(optimizer.ftrl().initial_accumulator());
      out.ftrl_learning_rate_power = narrow(optimizer.ftrl().learning_rate_power());
      break;
  }
  out.l2 = narrow(optimizer.l2());
  out.weight_decay = narrow(optimizer.weight_decay());
  out.clip_value = narrow(optimizer.clip_value());
  out.clip_norm = narrow(optimizer.clip_norm());
  return out;
}

ScheduleConfig::Unit ToUnit(config::Schedule::Unit unit) {
  switch (unit) {
    case config::Schedule::UNIT_COMMITS:
      return ScheduleConfig::Unit::kCommits;
    case config::Schedule::UNIT_EPOCHS:
      return ScheduleConfig::Unit::kEpochs;
    default:
      return ScheduleConfig::Unit::kSamples;
  }
}

ScheduleConfig ToSchedule(const config::Schedule& schedule) {
  using Kind = ScheduleConfig::Kind;
  ScheduleConfig out;
  out.unit = ToUnit(schedule.unit());
  out.learning_rate = schedule.learning_rate();
  out.warmup = schedule.warmup().length();
  out.warmup_start = schedule.warmup().start();
  switch (schedule.kind_case()) {
    case config::Schedule::kConstant:
    case config::Schedule::KIND_NOT_SET:
      out.kind = Kind::kConstant;
      break;
    case config::Schedule::kStep:
      out.kind = Kind::kStep;
      out.boundaries = ToList(schedule.step().boundaries());
      out.decay_rate = schedule.step().decay_rate();
      break;
    case config::Schedule::kExponential:
      out.kind = Kind::kExponential;
      out.decay_rate = schedule.exponential().decay_rate();
      out.decay_every = schedule.exponential().decay_every();
      out.staircase = schedule.exponential().staircase();
      break;
    case config::Schedule::kCosine:
      out.kind = Kind::kCosine;
      out.total = schedule.cosine().total();
      out.end_learning_rate = schedule.cosine().end_learning_rate();
      break;
    case config::Schedule::kPolynomial:
      out.kind = Kind::kPolynomial;
      out.total = schedule.polynomial().total();
      out.power = schedule.polynomial().power();
      out.end_learning_rate = schedule.polynomial().end_learning_rate();
      break;
  }
  return out;
}

SyncConfig ToSync(const config::Sync& sync) {
  SyncConfig out;
  switch (sync.mode()) {
    case config::Sync::MODE_ASP:
      out.mode = SyncConfig::Mode::kAsp;
      break;
    case config::Sync::MODE_SSP:
      out.mode = SyncConfig::Mode::kSsp;
      break;
    default:
      out.mode = SyncConfig::Mode::kBsp;
  }
  out.backup_workers = sync.backup_workers();
  out.staleness = sync.staleness();
  return out;
}

WireDtype ToWireDtype(config::Train::WireDtype dtype) {
  return dtype == config::Train::WIRE_DTYPE_BFLOAT16 ? WireDtype::kBfloat16 : WireDtype::kFloat32;
}

TrainConfig ToTrain(const config::Train& train) {
  TrainConfig out;
  out.epochs = train.epochs();
  out.max_commits = train.max_commits();
  out.global_batch_size = train.global_batch_size();
  out.seed = train.seed();
  out.sync = ToSync(train.sync());
  out.optimizer = ToOptimizer(train.optimizer());
  out.schedule = ToSchedule(train.schedule());
  out.bucket_bytes = train.bucket_bytes();
  out.backend = EnumName(train, "backend");
  out.wire_dtype = ToWireDtype(train.wire_dtype());
  out.parameter_wire_dtype = ToWireDtype(train.parameter_wire_dtype());
  return out;
}

EvalConfig ToEval(const config::Eval& eval) {
  EvalConfig out;
  out.metrics = ToList(eval.metrics());
  out.every_commits = eval.every_commits();
  out.newest_only = eval.newest_only();
  out.batch_size = eval.batch_size();
  out.best_metric = eval.best_metric();
  out.best_maximize = eval.best_maximize();
  out.final_timeout = Milliseconds(eval.final_timeout_ms());
  out.idle_timeout = Milliseconds(eval.idle_timeout_ms());
  if (eval.has_early_stopping()) {
    const auto& stopping = eval.early_stopping();
    const bool maximize =
        stopping.metric() == eval.best_metric() ? eval.best_maximize() : MetricMaximizes(stopping.metric());
    out.early_stopping = EvalConfig::EarlyStopping{.metric = stopping.metric(),
                                                   .patience = stopping.patience(),
                                                   .min_delta = stopping.min_delta(),
                                                   .maximize = maximize};
  }
  return out;
}

BatchingConfig::Mode ToBatchingMode(config::Batching::Mode mode) {
  switch (mode) {
    case config::Batching::MODE_STATIC:
      return BatchingConfig::Mode::kStatic;
    case config::Batching::MODE_PROPORTIONAL:
      return BatchingConfig::Mode::kProportional;
    case config::Batching::MODE_MODEL:
      return BatchingConfig::Mode::kModel;
    default:
      return BatchingConfig::Mode::kOff;
  }
}

BatchingConfig::NoiseScale ToNoiseScale(const config::Batching::NoiseScale& message) {
  using Rule = BatchingConfig::NoiseScale::LearningRate;
  BatchingConfig::NoiseScale out;
  out.min = message.min();
  out.max = message.max();
  out.least_factor = message.least_factor();
  out.most_factor = message.most_factor();
  out.learning_rate = message.learning_rate() == config::Batching::NoiseScale::LEARNING_RATE_NONE ? Rule::kNone
                      : message.learning_rate() == config::Batching::NoiseScale::LEARNING_RATE_SQUARE_ROOT
                          ? Rule::kSquareRoot
                          : Rule::kLinear;
  return out;
}

BatchingConfig ToBatching(const config::Batching& message) {
  BatchingConfig out;
  out.mode = ToBatchingMode(message.mode());
  out.min_batch_size = message.min_batch_size();
  out.max_batch_size = message.max_batch_size();
  out.speeds = ToList(message.speeds());
  out.dead_band = message.dead_band();
  out.window_size = message.window_size();
  out.smoothing = message.smoothing();
  out.hold_off_steps = message.hold_off_steps();
  out.probe = Milliseconds(message.probe_ms());
  out.gradnorm_window = message.gradnorm_window();
  if (message.global().has_noise_scale()) out.noise_scale = ToNoiseScale(message.global().noise_scale());
  out.evict_slower_than = message.evict_slower_than();
  if (message.asp_adjust_strategy() == config::Batching::ASP_ADJUST_STRATEGY_STALENESS) {
    out.asp_adjust_strategy = BatchingConfig::AspAdjustStrategy::kStaleness;
  }
  return out;
}

MembershipConfig ToMembership(const config::Membership& membership) {
  MembershipConfig out;
  out.workers_min = membership.workers_min();
  out.workers_max = membership.workers_max();
  out.lease = Milliseconds(membership.lease_ms());
  out.renew = Milliseconds(membership.renew_ms());
  out.join_timeout = Milliseconds(membership.join_timeout_ms());
  out.chief_timeout = Milliseconds(membership.chief_timeout_ms());
  out.ps_timeout = Milliseconds(membership.ps_timeout_ms());
  out.ps_replacement_timeout = membership.ps_replacement_timeout_ms() > 0
                                   ? Milliseconds(membership.ps_replacement_timeout_ms())
                                   : out.ps_timeout / 2;
  out.drain = Milliseconds(membership.drain_ms());
  out.ticket_deadline_factor = membership.ticket_deadline_factor();
  out.ticket_deadline_floor = Milliseconds(membership.ticket_deadline_floor_ms());
  return out;
}

}  // namespace

Experiment ToExperiment(const config::Experiment& message) {
  Experiment out;
  out.name = message.name();
  out.model = ToModel(message.model());
  out.input = ToInput(message.input());
  out.train = ToTrain(message.train());
  out.eval = ToEval(message.eval());
  out.checkpoint = {.every_commits = message.checkpoint().every_commits(),
                    .every_seconds = message.checkpoint().every_seconds(),
                    .keep_max = message.checkpoint().keep_max(),
                    .keep_every = message.checkpoint().keep_every()};
  out.membership = ToMembership(message.membership());
  out.batching = ToBatching(message.batching());
  return out;
}

}  // namespace evenkeel::config_internal
