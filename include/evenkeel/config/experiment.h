// An experiment, validated: what proto/experiment.proto says, with every default filled in. Plain immutable data.
//
// Threading: none; every function is pure but for the file, and the environment variables, that it says it reads.
// Errors:    kInvalidArgument names the file, the JSON path, the offending value and what is allowed; kNotFound.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/bfloat16.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/shape.h"
#include "evenkeel/core/specs.h"

namespace evenkeel {

// A layer's or custom object's settings by field name, every built-in field present with its default.
using AttributeValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                    std::vector<double>, std::vector<std::string>>;
using Attributes = std::map<std::string, AttributeValue>;

// Attributes of the built-in layers. All of a type's attributes are always there. "int" is std::int64_t, "ints" is
// std::vector<std::int64_t>.
//
//   type             attribute           type     default           values
//   dense            units               int      required          >= 1
//                    use_bias            bool     true
//                    activation          string   none              none, relu, gelu, tanh, sigmoid
//                    kernel_initializer  string   glorot_uniform    see ParseInitializer
//   conv2d           filters             int      required          >= 1, a multiple of groups
//                    kernel              ints     required          [height, width], >= 1
//                    stride              ints     [1, 1]            [height, width], >= 1
//                    padding             string   valid             same, valid, explicit
//                    pads                ints     [0, 0, 0, 0]      [top, bottom, left, right]; for explicit
//                    groups              int      1                 >= 1
//                    use_bias            bool     true
//                    activation          string   none              as dense
//                    kernel_initializer  string   glorot_uniform    as dense
//   max_pool         kernel              ints     [2, 2]            as conv2d
//   avg_pool         stride              ints     the kernel's      as conv2d
//                    padding             string   valid             as conv2d
//                    pads                ints     [0, 0, 0, 0]      as conv2d
//   global_avg_pool  none
//   batch_norm       momentum            double   0.9               [0, 1), weight of the old moving statistic
//                    epsilon             double   1e-5              > 0
//   layer_norm       epsilon             double   1e-5              > 0
//   dropout          rate                double   required          [0, 1)
//   relu gelu tanh sigmoid               none
//   flatten          none
//   reshape          shape               ints     required          without the batch; at most one -1, others >= 1
//   add concat       none                                           two inputs or more
//
// padding "same": the output is ceil(input / stride), an odd total puts the larger half at the bottom and right.
// A custom layer's attributes are those of the file, as they are: a number without fraction or exponent is an
// std::int64_t, a list of numbers is ints unless one has a fraction or an exponent, an empty list is ints.
struct LayerConfig {
  std::string type;  // "dense", "conv2d", ...; a custom layer's registered name, never one of the above
  std::string name;  // unique; "dense_1" where the file gives none (type and count within the type, from 0)
  // Names of earlier layers, or "input". Filled in by the parser; code that builds one by hand may leave it empty for
  // the layer before.
  std::vector<std::string> inputs;
  Attributes attributes;
};

// "zeros", "glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_normal", "normal:STDDEV",
// "truncated_normal:STDDEV", "uniform:LIMIT", "constant:VALUE". Fans are left at 1 for the layer to fill in.
// Errors: kInvalidArgument with the text and the allowed forms.
absl::StatusOr<InitializerSpec> ParseInitializer(std::string_view text);

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
  std::string separator = ",";           // one byte
  std::string label;                     // column name, or index as a number where there is no header
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
  std::string feature;  // bytes_list (raw uint8), float_list or int64_list of shape's element count
  std::string label;    // int64_list or float_list
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
  double eval_fraction = 0;  // of train, where eval is absent; split by a permutation keyed with split_seed
  std::uint64_t split_seed = 0;
  // none: as read (bytes stay 0..255) | scale: bytes / 255 | standardize: (x - mean) / std per feature (tables) or per
  // channel (images), statistics over the training set
  std::string normalize = "none";
  std::string label_normalize = "none";  // none | standardize (regression; outputs are mapped back for metrics)
  bool flip_horizontal = false;          // training only, seeded by (seed, epoch, sample)
  std::int64_t crop_padding = 0;         // pixels of zero padding before a random crop to the same size; training only
  std::int64_t classes = 0;              // labels must lie in [0, classes); 0: regression or binary in {0, 1}/{-1, 1}
  bool sparse = false;                   // svmlight stays sparse (only a dense layer may take it)
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
  double learning_rate = 0.01;  // after warm-up, before decay
  double warmup = 0;            // in units; linear from warmup_start * learning_rate
  double warmup_start = 0;
  std::vector<double> boundaries;  // step: in units
  double decay_rate = 0.1;         // step and exponential: factor
  double decay_every = 1;          // exponential: units
  bool staircase = false;          // exponential
  double total = 0;                // cosine, polynomial: units; 0: the whole training
  double power = 1;                // polynomial
  double end_learning_rate = 0;    // cosine, polynomial
};

struct TrainConfig {
  std::int64_t epochs = 0;  // one of the two is > 0; with both, whichever comes first
  std::int64_t max_commits = 0;
  std::int64_t global_batch_size = 128;
  std::uint64_t seed = 1;
  SyncConfig sync;
  OptimizerSpec optimizer;
  ScheduleConfig schedule;
  std::int64_t bucket_bytes = 4 << 20;
  std::string backend = "cpu";                           // cpu | reference
  WireDtype wire_dtype = WireDtype::kFloat32;            // of gradients on their way to the servers
  WireDtype parameter_wire_dtype = WireDtype::kFloat32;  // of parameters on their way to the workers
};

// Whether more is better: true for accuracy, top_k:K, auc, precision and recall.
bool MetricMaximizes(std::string_view metric);

struct EvalConfig {
  // Without loss, which is always there: accuracy, top_k:5, auc, precision, recall, mse, rmse, mae.
  std::vector<std::string> metrics;
  std::int64_t every_commits = 0;  // scores checkpoints at least this many commits after the last scored; 0: each
  bool newest_only = false;        // skip to the newest checkpoint when behind
  std::int64_t batch_size = 256;
  std::string best_metric;    // filled in: the first metric, or loss
  bool best_maximize = true;  // filled in from the metric
  Duration final_timeout = std::chrono::seconds(60);
  Duration idle_timeout = std::chrono::seconds(60);  // alone on a model_dir: ends after so long without a checkpoint
  struct EarlyStopping {
    std::string metric;         // filled in from best_metric
    std::int64_t patience = 3;  // scores without an improvement of min_delta
    double min_delta = 0;
    bool maximize = false;  // filled in from the metric
  };
  std::optional<EarlyStopping> early_stopping;
};

struct CheckpointConfig {
  std::int64_t every_commits = 0;  // neither set: once an epoch
  double every_seconds = 0;
  std::int64_t keep_max = 3;    // the newest; commit 0 counts only while it is the newest
  std::int64_t keep_every = 0;  // also keeps those whose commit is a multiple; 0: none
};

struct MembershipConfig {
  std::int64_t workers_min = 1;
  std::int64_t workers_max = 1024;
  Duration lease = std::chrono::seconds(10);
  Duration renew = std::chrono::seconds(2);
  Duration join_timeout = std::chrono::seconds(60);
  Duration chief_timeout = std::chrono::seconds(60);
  Duration ps_timeout = std::chrono::seconds(60);
  Duration ps_replacement_timeout = std::chrono::seconds(30);  // below ps_timeout
  Duration drain = std::chrono::seconds(10);
  double ticket_deadline_factor = 20;  // times the predicted step time
  Duration ticket_deadline_floor = std::chrono::seconds(30);
};

struct BatchingConfig {
  enum class Mode { kOff, kStatic, kProportional, kModel };
  Mode mode = Mode::kOff;
  std::int64_t min_batch_size = 16;
  std::int64_t max_batch_size = 0;  // 0: none
  std::vector<double> speeds;       // one a training task, the chief first where it trains; static needs them
  double dead_band = 0.05;          // proportional, model: part of the step time that a change must gain
  std::int64_t window_size = 5;     // proportional: steps between decisions
  double smoothing = 0.3;           // proportional: weight of the newest step time
  std::int64_t hold_off_steps = 3;  // model: after a change
  Duration probe = std::chrono::milliseconds(500);  // model without speeds: a joiner times itself about so long; 0: not
  std::int64_t gradnorm_window = 0;                 // commits; 0: gradients are not measured
  // The global batch follows the gradient noise scale; absent: it is fixed.
  struct NoiseScale {
    enum class LearningRate { kNone, kLinear, kSquareRoot };
    std::int64_t min = 0, max = 0;                       // filled in: min <= train.global_batch_size <= max
    double least_factor = 1.25;                          // smaller changes are not made
    double most_factor = 2;                              // of one change
    LearningRate learning_rate = LearningRate::kLinear;  // with the global batch
  };
  std::optional<NoiseScale> noise_scale;
  double evict_slower_than = 0;  // times the median step time, at min_batch_size; 0: nobody is
  enum class AspAdjustStrategy { kIterationTime, kStaleness };
  AspAdjustStrategy asp_adjust_strategy = AspAdjustStrategy::kIterationTime;
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
  // Canonical JSON after --set, before ${VAR}, sorted keys, every default written out. It parses as an experiment.
  std::string canonical_json;
  // 64 hex digits over canonical_json.
  std::string spec_hash;
};

// Reads, overrides, validates. `overrides`: "train.sync.mode=asp", value as JSON, or a bare word for a string;
// "model.layers[2].dropout.rate=0.3"; the value null takes a field away.
// Errors: kInvalidArgument, "experiment fashion.json: train.sync.mode: 'bps' is not one of bsp, asp, ssp"; kNotFound.
absl::StatusOr<Experiment> LoadExperiment(const std::string& path, const std::vector<std::string>& overrides);
absl::StatusOr<Experiment> ParseExperiment(std::string_view json, std::string_view origin,
                                           const std::vector<std::string>& overrides);

// Replaces ${VAR} from the environment. EVENKEEL_DATA is `data_folder` where that is given. FASHION_MNIST, where the
// environment lacks it, is the data folder's fashion-mnist if there is one, else Debian's /usr/share/datasets one.
// Errors: kInvalidArgument names the variable.
absl::StatusOr<std::string> ExpandVariables(std::string_view text, std::string_view data_folder);

// Names of the fields whose values differ between two canonical JSON texts ("train.seed"), at most `limit`.
std::vector<std::string> DifferingFields(std::string_view canonical_a, std::string_view canonical_b, int limit = 8);

}  // namespace evenkeel
