// An experiment, validated: what proto/experiment.proto says, with every default filled in. Plain immutable data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/shape.h"
#include "evenkeel/core/specs.h"

namespace evenkeel {

// A layer's or custom object's settings by field name, every built-in field present with its default.
using AttributeValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                    std::vector<double>, std::vector<std::string>>;
using Attributes = std::map<std::string, AttributeValue>;

struct LayerConfig {
  std::string type;  // "dense", "conv2d", ...; a custom layer's registered name
  std::string name;  // unique; "dense_1" where the file gives none (type and count within the type, from 0)
  std::vector<std::string> inputs;  // names of layers, or "input"; empty: the layer before
  Attributes attributes;
};

struct LossConfig {
  std::string type = "softmax_cross_entropy";  // sigmoid_cross_entropy, mse, huber, hinge
  double label_smoothing = 0;
  double huber_delta = 1;
};

struct ModelConfig {
  std::vector<LayerConfig> layers;  // in the file's order, a topological order; the last one gives the outputs
  LossConfig loss;
};

struct IdxSource {
  std::string images, labels;
};
struct Cifar10Source {
  std::vector<std::string> files;
};
struct CsvSource {
  std::vector<std::string> files;
  bool header = true;
  std::string separator = ",";  // one byte
  std::string label;            // column name, or index as a number where there is no header
  std::vector<std::string> columns;      // features; empty: all but the label
  std::vector<std::string> categorical;  // of those, one-hot by the values seen in training, sorted
  std::string missing = "error";         // error | mean | zero | drop_row, for empty cells and "?"/"NA"/"nan"
};
struct SvmlightSource {
  std::vector<std::string> files;
  std::int64_t features = 0;  // 0: the largest index seen in training
  bool zero_based = false;
};
struct TfRecordSource {
  std::vector<std::string> files;
  std::string feature;            // bytes_list (raw uint8), float_list or int64_list of shape's element count
  std::string label;              // int64_list or float_list
  std::vector<std::int64_t> shape;
};
struct CustomSource {
  std::string type;  // a registered data source
  Attributes attributes;
};
using SourceConfig = std::variant<IdxSource, Cifar10Source, CsvSource, SvmlightSource, TfRecordSource, CustomSource>;

struct InputConfig {
  SourceConfig train;
  std::optional<SourceConfig> eval;
  double eval_fraction = 0;      // of train, where eval is absent; split by a permutation keyed with split_seed
  std::uint64_t split_seed = 0;
  // none: as read (bytes stay 0..255) | scale: bytes / 255 | standardize: (x - mean) / std per feature (tables) or per
  // channel (images), statistics over the training set
  std::string normalize = "none";
  std::string label_normalize = "none";  // none | standardize (regression; outputs are mapped back for metrics)
  bool flip_horizontal = false;      // training only, seeded by (seed, epoch, sample)
  std::int64_t crop_padding = 0;     // pixels of zero padding before a random crop to the same size; training only
  std::int64_t classes = 0;          // labels must lie in [0, classes); 0: regression or binary in {0, 1}/{-1, 1}
  bool sparse = false;               // svmlight stays sparse (only a dense layer may take it)
};

struct SyncConfig {
  enum class Mode { kBsp, kAsp, kSsp };
  Mode mode = Mode::kBsp;
  std::int64_t backup_workers = 0;  // bsp
  std::int64_t staleness = 0;       // ssp: clocks
};
const char* ToString(SyncConfig::Mode mode);

struct ScheduleConfig {
  enum class Kind { kConstant, kStep, kExponential, kCosine, kPolynomial };
  enum class Unit { kCommits, kSamples, kEpochs };
  Kind kind = Kind::kConstant;
  Unit unit = Unit::kSamples;
  double learning_rate = 0.01;       // after warm-up, before decay
  double warmup = 0;                 // in units; linear from warmup_start * learning_rate
  double warmup_start = 0;
  std::vector<double> boundaries;    // step: in units
  double decay_rate = 0.1;           // step and exponential: factor
  double decay_every = 1;            // exponential: units
  bool staircase = false;            // exponential
  double total = 0;                  // cosine, polynomial: units; 0: the whole training
  double power = 1;                  // polynomial
  double end_learning_rate = 0;      // cosine, polynomial
};

struct TrainConfig {
  std::int64_t epochs = 0;           // one of the two is > 0; with both, whichever comes first
  std::int64_t max_commits = 0;
  std::int64_t global_batch_size = 128;
  std::uint64_t seed = 1;
  SyncConfig sync;
  OptimizerSpec optimizer;
  ScheduleConfig schedule;
  std::int64_t bucket_bytes = 4 << 20;
  std::string backend = "cpu";       // cpu | reference
};

struct EvalConfig {
  std::vector<std::string> metrics;  // loss is always there; accuracy, top_k:5, auc, precision, recall, mse, rmse, mae
  std::int64_t every_commits = 0;    // scores checkpoints whose commit is at least this far from the last scored; 0: each
  bool newest_only = false;          // skip to the newest checkpoint when behind
  std::int64_t batch_size = 256;
  std::string best_metric;           // empty: the first metric, or loss
  bool best_maximize = true;         // filled in from the metric
  Duration final_timeout = std::chrono::seconds(60);
  Duration idle_timeout = std::chrono::seconds(60);  // alone on a model_dir: ends after so long without a checkpoint
  struct EarlyStopping {
    std::string metric;
    std::int64_t patience = 3;  // scores without an improvement of min_delta
    double min_delta = 0;
  };
  std::optional<EarlyStopping> early_stopping;
};

struct CheckpointConfig {
  std::int64_t every_commits = 0;  // neither set: once an epoch
  double every_seconds = 0;
  std::int64_t keep_max = 3;       // the newest; commit 0 counts only while it is the newest
  std::int64_t keep_every = 0;     // also keeps those whose commit is a multiple; 0: none
};

struct MembershipConfig {
  std::int64_t workers_min = 1;
  std::int64_t workers_max = 1024;
  Duration lease = std::chrono::seconds(10);
  Duration renew = std::chrono::seconds(2);
  Duration join_timeout = std::chrono::seconds(60);
  Duration chief_timeout = std::chrono::seconds(60);
  Duration ps_timeout = std::chrono::seconds(60);
  Duration drain = std::chrono::seconds(10);
  double ticket_deadline_factor = 20;                      // times the predicted step time
  Duration ticket_deadline_floor = std::chrono::seconds(30);
};

struct BatchingConfig {
  enum class Mode { kOff, kStatic };
  Mode mode = Mode::kOff;
  std::int64_t min_batch_size = 16;
  std::int64_t max_batch_size = 0;  // 0: none
  std::vector<double> speeds;       // static: one a training task, the chief first where it trains
};

struct Experiment {
  std::string name;
  ModelConfig model;
  InputConfig input;
  TrainConfig train;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  MembershipConfig membership;
  BatchingConfig batching;
  // Canonical JSON after --set, before ${VAR}, sorted keys, every default written out.
  std::string canonical_json;
  // 64 hex digits over canonical_json.
  std::string spec_hash;
};

// Reads, overrides, validates. `overrides`: "train.sync.mode=asp", value as JSON, or a bare word for a string.
// Errors: kInvalidArgument, "experiment fashion.json: train.sync.mode: 'bps' is not one of bsp, asp, ssp"; kNotFound.
absl::StatusOr<Experiment> LoadExperiment(const std::string& path, const std::vector<std::string>& overrides);
absl::StatusOr<Experiment> ParseExperiment(std::string_view json, std::string_view origin,
                                           const std::vector<std::string>& overrides);

// Replaces ${VAR} from the environment; EVENKEEL_DATA falls back to `data_folder` when that is given.
// Errors: kInvalidArgument names the variable.
absl::StatusOr<std::string> ExpandVariables(std::string_view text, std::string_view data_folder);

// Names of the fields whose values differ between two canonical JSON texts ("train.seed"), at most `limit`.
std::vector<std::string> DifferingFields(std::string_view canonical_a, std::string_view canonical_b, int limit = 8);

}  // namespace evenkeel
