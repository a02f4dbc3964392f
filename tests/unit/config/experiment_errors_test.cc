#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "evenkeel/config/experiment.h"
#include "unit/config/experiments.h"

namespace evenkeel {
namespace {

struct Case {
  std::vector<std::string> overrides;
  std::string error;
};

void CheckRefused(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    INFO(c.overrides.back());
    CHECK_THAT(Refused(c.overrides), Catch::Contains(c.error));
  }
}

TEST_CASE("text that is no experiment is refused with its place", "[config]") {
  CHECK_THAT(Refused({}, ""), Catch::Contains("experiment small.json: not JSON: the text is empty"));
  CHECK_THAT(Refused({}, "{\"train\": {\n  \"epochs\": 1,\n}}"), Catch::Contains("not JSON: line 3, column 1"));
  CHECK_THAT(Refused({}, "{\"train\": 1e999}"), Catch::Contains("not JSON"));
  CHECK_THAT(Refused({}, "[1]"), Catch::Contains("experiment small.json: [1] is a list; expected an object"));
  CHECK_THAT(Refused({}, R"({"a": [{}, {"train": {"seed": 1, "seed": 2}}]})"),
             Catch::Contains("a[1].train.seed: the key appears twice"));
  CHECK_THAT(Refused({}, "{}"), Catch::Contains("model: is required"));
  CHECK(LoadExperiment("/nowhere/x.json", {}).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("unknown fields are refused with the allowed names and the nearest", "[config]") {
  CheckRefused({
      {{"trian={}"}, "experiment small.json: trian: unknown field, did you mean 'train'?; allowed: name, model, input"},
      {{"batching.global_batch_size=64"},
       "batching.global_batch_size: unknown field, did you mean 'train.global_batch_size'?; allowed: mode,"},
      {{"train.sync.mod=asp"}, "train.sync.mod: unknown field, did you mean 'mode'?; allowed: mode, backup_workers"},
      {{"model.layers[0]={\"conv3d\": {}}"}, "model.layers[0].conv3d: unknown field, did you mean 'conv2d'?"},
      {{"model.layers[0].flatten.axis=1"}, "model.layers[0].flatten.axis: unknown field; there are none here"},
      {{"zzz=1"}, "zzz: unknown field; allowed: name"},
  });
}

TEST_CASE("values of the wrong type are refused with the type that is right", "[config]") {
  CheckRefused({
      {{"train.epochs=ten"}, "train.epochs: 'ten' is a string; expected a whole number"},
      {{"train.epochs=1.5"}, "train.epochs: 1.5 is not a whole number"},
      {{"train.epochs=1e30"}, "train.epochs: 1e+30 is not a whole number"},
      {{"train.epochs=18446744073709551615"}, "train.epochs: 18446744073709551615 is too large"},
      {{"train.seed=-1"}, "train.seed: -1 is out of range; allowed: at least 0"},
      {{"train.sync=[]"}, "train.sync: [] is a list; expected an object"},
      {{"train.sync.mode=bps"}, "experiment small.json: train.sync.mode: 'bps' is not one of bsp, asp, ssp"},
      {{"train.sync.mode=3"}, "train.sync.mode: 3 is a number; expected one of bsp, asp, ssp"},
      {{"train.sync.mode=BSP"}, "train.sync.mode: 'BSP' is not one of bsp, asp, ssp, did you mean 'bsp'?"},
      {{"train.sync.mode=unspecified"}, "is not one of bsp, asp, ssp"},
      {{"train.schedule.learning_rate=\"0.1\""}, "train.schedule.learning_rate: '0.1' is a string; expected a number"},
      {{"model.layers[1].dense.use_bias=1"}, "model.layers[1].dense.use_bias: 1 is a number; expected true or false"},
      {{"model.layers={}"}, "model.layers: {} is an object; expected a list"},
      {{"model.layers[1]=null"}, "model.layers[1]: null is null; expected an object"},
      {{"name=5"}, "name: 5 is a number; expected a string"},
      {{"name=\"\""}, "name: may not be empty"},
      {{"input.train={\"custom\": {\"type\": \"t\", \"attributes\": {\"a\": {}}}}"},
       "input.train.custom.attributes.a: {} is an object; expected a boolean"},
      {{"input.train={\"custom\": {\"type\": \"t\", \"attributes\": {\"a\": [1, \"b\"]}}}"},
       "input.train.custom.attributes.a[1]: 'b' is a string; expected a number"},
  });
}

TEST_CASE("values out of range are refused with the range", "[config]") {
  CheckRefused({
      {{"train.schedule.learning_rate=-0.1"},
       "train.schedule.learning_rate: -0.1 is out of range; allowed: at least 0"},
      {{"train.global_batch_size=0"}, "train.global_batch_size: 0 is out of range; allowed: at least 1 and at most"},
      {{"train.optimizer={\"momentum\": {\"momentum\": 1}}"},
       "train.optimizer.momentum.momentum: 1 is out of range; allowed: at least 0 and below 1"},
      {{"train.optimizer={\"adam\": {\"beta2\": 1.0}}"}, "train.optimizer.adam.beta2: 1.0 is out of range"},
      {{"train.optimizer={\"adam\": {\"epsilon\": 0}}"},
       "train.optimizer.adam.epsilon: 0 is out of range; allowed: above 0"},
      {{"train.optimizer={\"adam\": {\"epsilon\": 1e-60}}"},
       "train.optimizer.adam.epsilon: 1e-60 becomes 0 in float32"},
      {{"train.optimizer.l2=-1"}, "train.optimizer.l2: -1 is out of range"},
      {{"train.optimizer.clip_norm=1e300"}, "train.optimizer.clip_norm: 1e+300 becomes inf in float32"},
      {{"train.sync.staleness=-1"}, "train.sync.staleness: -1 is out of range"},
      {{"train.bucket_bytes=100"}, "train.bucket_bytes: 100 is not a multiple of 64"},
      {{"checkpoint.keep_max=0"}, "checkpoint.keep_max: 0 is out of range"},
      {{"input.eval_fraction=1"}, "input.eval_fraction: 1 is out of range"},
      {{"model.layers[1].dense.units=0"}, "model.layers[1].dense.units: 0 is out of range"},
      {{"model.layers[0]={\"dropout\": {\"rate\": 1}}"}, "model.layers[0].dropout.rate: 1 is out of range"},
      {{"model.layers[0]={\"conv2d\": {\"filters\": 1, \"kernel\": [3, 0]}}"},
       "model.layers[0].conv2d.kernel[1]: 0 is out of range"},
      {{"model.layers[0]={\"conv2d\": {\"filters\": 1, \"kernel\": [3, 3, 3]}}"},
       "model.layers[0].conv2d.kernel: 3 values; expected one, or 2"},
      {{"train.schedule.step.boundaries=[]"}, "train.schedule.step.boundaries: 0 values; expected at least 1"},
      {{"membership.lease_ms=1"}, "membership.lease_ms: 1 is out of range"},
      {{"eval.early_stopping.patience=0"}, "eval.early_stopping.patience: 0 is out of range"},
      {{"batching={\"mode\": \"static\", \"speeds\": [1, 0]}"},
       "batching.speeds[1]: 0 is out of range; allowed: at least 1e-06 and at most 1000000"},
  });
}

TEST_CASE("what is missing or chosen twice is refused", "[config]") {
  CheckRefused({
      {{"train=null"}, "train: is required"},
      {{"input.train=null"}, "input.train: is required"},
      {{"input.train={}"}, "input.train: one of these is required: idx, cifar10, csv, svmlight, tfrecord, custom"},
      {{"input.train.idx.labels=null"}, "input.train.idx.labels: is required"},
      {{"input.train.csv={}"}, "input.train.csv.files: is required"},
      {{"train.optimizer={\"adam\": {}, \"sgd\": {}}"}, "train.optimizer: 'adam' and 'sgd' exclude each other"},
      {{"model.layers=[]"}, "model.layers: at least one layer is required"},
      {{"model.layers[0]={}"}, "model.layers[0]: one of these is required: dense, conv2d"},
      {{"model.nodes=[{\"relu\": {}}]"}, "model: 'layers' and 'nodes' are the same; give one"},
      {{"train.epochs=0"}, "train: says no end; give epochs or max_commits"},
      {{"checkpoint={\"every_commits\": 1, \"every_seconds\": 1}"}, "checkpoint: 'every_commits' and 'every_seconds'"},
      {{"train.schedule.exponential={}"}, "train.schedule.exponential.decay_every: is required"},
  });
  CHECK_THAT(Refused({R"(input.train={"idx": {"images": "i", "labels": "l"}, "cifar10": {"files": "f"}})"}),
             Catch::Contains("input.train: 'cifar10' and 'idx' exclude each other; give one"));
}

TEST_CASE("a graph that does not hold together is refused", "[config]") {
  CheckRefused({
      {{"model.layers[1].name=flatten_0"}, "model.layers[1].name: 'flatten_0' is also the name of model.layers[0]"},
      {{"model.layers[0].name=input"}, "model.layers[0].name: 'input' is the sample's own name"},
      {{"model.layers[0].name=a/b"}, "model.layers[0].name: 'a/b' may hold letters"},
      {{"model.layers[1].inputs=[\"flaten_0\"]"},
       "model.layers[1].inputs: 'flaten_0' is no layer, did you mean 'flatten_0'?"},
      {{"model.layers[0].inputs=[\"dense_0\"]"}, "model.layers[0].inputs: 'dense_0' does not come before 'flatten_0'"},
      {{"model.layers[1].inputs=[\"dense_0\"]"}, "'dense_0' does not come before 'dense_0'"},
      {{"model.layers[1].inputs=[\"input\"]"}, "model.layers[0]: no layer takes the output of 'flatten_0'"},
      {{"model.layers[1].inputs=[\"input\", \"flatten_0\"]"},
       "model.layers[1].inputs: dense has 2 inputs; it takes one"},
      {{"model.layers[1]={\"add\": {}}"}, "model.layers[1].inputs: add has one input; it takes two or more"},
      {{"model.layers[0]={\"custom\": {\"type\": \"relu\"}}"},
       "model.layers[0].custom.type: 'relu' is a built-in layer"},
      {{"model.layers[0]={\"conv2d\": {\"filters\": 5, \"kernel\": 1, \"groups\": 2}}"},
       "model.layers[0].conv2d.filters: 5 is not a multiple of groups, 2"},
      {{"model.layers[0]={\"conv2d\": {\"filters\": 5, \"kernel\": 1, \"padding\": \"explicit\"}}"},
       "model.layers[0].conv2d.padding: 'explicit' needs pads"},
      {{"model.layers[0]={\"max_pool\": {\"padding\": \"same\", \"pads\": 1}}"},
       "model.layers[0].max_pool.pads: go with padding 'explicit', not with 'same'"},
      {{"model.layers[0]={\"max_pool\": {\"pads\": 2}}"}, "model.layers[0].max_pool.pads: 2 is out of range"},
      {{"model.layers[0]={\"reshape\": {\"shape\": [-1, -1]}}"}, "model.layers[0].reshape.shape: more than one -1"},
      {{"model.layers[0]={\"reshape\": {\"shape\": [0]}}"}, "model.layers[0].reshape.shape: 0 is out of range"},
      {{"model.layers[1].dense.kernel_initializer=normal"}, "model.layers[1].dense.kernel_initializer: 'normal' is no"},
  });
  CHECK_THAT(Refused({R"(model={"nodes": [{"relu": {}}, {"dense": {"units": 0}}]})"}),
             Catch::Contains("model.nodes[1].dense.units"));
  CHECK_THAT(Refused({R"(model={"nodes": [{"relu": {}}, {"relu": {}, "inputs": ["x"]}]})"}),
             Catch::Contains("model.nodes[1].inputs: 'x' is no layer"));
}

TEST_CASE("fields that do not fit each other are refused", "[config]") {
  const std::string csv = R"(input.train={"csv": {"files": "f", "label": "y")";
  CheckRefused({
      {{"train.sync.mode=asp", "train.sync.backup_workers=1"},
       "train.sync.backup_workers: 1 goes with mode bsp, not with asp"},
      {{"train.sync.staleness=2"}, "train.sync.staleness: 2 goes with mode ssp, not with bsp"},
      {{"membership.workers_max=2", "train.sync.backup_workers=2"}, "train.sync.backup_workers: 2 is out of range"},
      {{"membership.renew_ms=10000"}, "membership.renew_ms: 10000 is out of range; allowed: below lease_ms, 10000"},
      {{"membership.workers_max=2", "membership.workers_min=3"}, "membership.workers_max: 2 is out of range"},
      {{"train.schedule.step.boundaries=[2, 2]"}, "train.schedule.step.boundaries[1]: 2 does not lie above"},
      {{"train.schedule={\"cosine\": {\"total\": 5}, \"warmup\": {\"length\": 5}}"},
       "train.schedule.warmup.length: 5 is out of range; allowed: below the decay's total, 5"},
      {{"batching.mode=off", "batching.speeds=[1]"},
       "batching.speeds: go with mode static, proportional or model, not with off"},
      {{"batching.mode=static"}, "batching.speeds: mode static needs one a training task"},
      {{"batching.max_batch_size=8"},
       "batching.max_batch_size: 8 is out of range; allowed: 0, or at least min_batch_size, 16"},
      {{"batching.global={\"noise_scale\": {}}"}, "batching.global.noise_scale.max: is required"},
      {{"train.global_batch_size=64", "batching.global.noise_scale.max=32"},
       "batching.global.noise_scale.max: 32 is out of range; allowed: at least train.global_batch_size, 64"},
      {{"train.global_batch_size=64", "batching.global.noise_scale={\"min\": 65, \"max\": 99}"},
       "batching.global.noise_scale.min: 65 is out of range; allowed: at most train.global_batch_size, 64"},
      {{"batching.global.noise_scale={\"max\": 4096, \"least_factor\": 3}"},
       "batching.global.noise_scale.most_factor: 2 is out of range; allowed: at least least_factor, 3"},
      {{"batching.global.noise_scale.max=4096", "train.sync.mode=asp"},
       "batching.global.noise_scale: goes with train.sync.mode bsp"},
      {{"batching.global.noise_scale.max=4096", "batching.gradnorm_window=0"}, "batching.gradnorm_window: 0, but"},
      {{"batching.evict_slower_than=0.5"},
       "batching.evict_slower_than: 0.5 is out of range; allowed: 0, or at least 1"},
      {{"batching.asp_adjust_strategy=staleness", "batching.mode=model"},
       "batching.asp_adjust_strategy: staleness goes with train.sync.mode asp or ssp"},
      {{"batching.asp_adjust_strategy=staleness", "train.sync.mode=asp", "batching.mode=off"},
       "batching.asp_adjust_strategy: staleness goes with train.sync.mode asp or ssp"},
      {{"batching.mode=off", "batching.evict_slower_than=2"},
       "batching.evict_slower_than: goes with mode proportional or model"},
      {{"input.classes=1"}, "input.classes: 1 is out of range; the loss softmax_cross_entropy needs at least 2"},
      {{"model.loss=mse"}, "input.classes: 10, but the loss mse is for regression"},
      {{"input.label_normalize=standardize"},
       "input.label_normalize: 'standardize' goes with the losses mse and huber"},
      {{"input.eval={\"cifar10\": {\"files\": \"f\"}}", "input.eval_fraction=0.1"},
       "input.eval_fraction: 0.1, but input.eval"},
      {{"model.loss={\"type\": \"hinge\", \"label_smoothing\": 0.1}"},
       "model.loss.label_smoothing: goes with the cross"},
      {{"input.sparse=true"}, "input.sparse: only svmlight and custom sources have sparse rows"},
      {{"input.train={\"svmlight\": {\"files\": \"f\"}}", "input.sparse=true"},
       "input.sparse: layer 'flatten_0' (flatten) takes the input"},
      {{"input.train={\"svmlight\": {\"files\": \"f\"}}", "input.sparse=true", "input.normalize=scale"},
       "input.normalize: 'scale' would fill sparse rows"},
      {{"input.train={\"svmlight\": {\"files\": \"f\"}}", "input.flip_horizontal=true"},
       "input.flip_horizontal: true; only"},
      {{csv + "}}", "input.crop_padding=4"}, "input.crop_padding: 4; only images can be cropped"},
      {{csv + R"(, "separator": ";;"}})"}, "input.train.csv.separator: ';;' is not one ASCII byte"},
      {{csv + R"(, "columns": ["a", "y"]}})"}, "input.train.csv.columns[1]: 'y' is the label"},
      {{csv + R"(, "columns": ["a", "a"]}})"}, "input.train.csv.columns[1]: 'a' comes twice"},
      {{csv + R"(, "columns": ["a"], "categorical": ["b"]}})"},
       "input.train.csv.categorical[0]: 'b' is not among columns: a"},
      {{csv + R"(, "header": false}})"}, "input.train.csv: 'y' is no column's index"},
      {{"eval.metrics=[\"acuracy\"]"}, "eval.metrics[0]: 'acuracy' is no metric, did you mean 'accuracy'?"},
      {{"eval.metrics=[\"top_k:11\"]"},
       "eval.metrics[0]: 'top_k:11': K is out of range; allowed: 1 to input.classes, 10"},
      {{"eval.metrics=[\"top_k:K\"]"}, "eval.metrics[0]: 'top_k:K' is no metric"},
      {{"eval.metrics=[\"rmse\"]"}, "eval.metrics[0]: 'rmse' is for regression"},
      {{"eval.metrics=[\"auc\"]"}, "eval.metrics[0]: 'auc' is for two classes; input.classes is 10"},
      {{"model.loss=mse", "input.classes=0", "eval.metrics=[\"accuracy\"]"},
       "eval.metrics[0]: 'accuracy' is for classes"},
      {{"eval.metrics=[\"accuracy\", \"accuracy\"]"}, "eval.metrics[1]: 'accuracy' comes twice"},
      {{"eval.best_metric=auc"}, "eval.best_metric: 'auc' is not measured; eval.metrics has loss"},
      {{"eval.early_stopping.metric=auc"}, "eval.early_stopping.metric: 'auc' is not measured"},
      {{"eval.early_stopping={}"}, "eval.early_stopping: needs held-out samples"},
  });
}

TEST_CASE("--set that leads nowhere is refused", "[config]") {
  CheckRefused({
      {{"train.epochs"}, "--set train.epochs: expected PATH=VALUE"},
      {{"=1"}, "--set =1: '' is no path"},
      {{"train..epochs=1"}, "'train..epochs' is no path"},
      {{"train.=1"}, "'train.' is no path"},
      {{"model.layers[x]=1"}, "'model.layers[x]' is no path"},
      {{"model.layers[0=1"}, "'model.layers[0' is no path"},
      {{"model.layers[0]x=1"}, "'model.layers[0]x' is no path"},
      {{"model.layers[2].name=a"}, "model.layers: index 2 is out of range; the list has 2 items"},
      {{"train[0]=1"}, "train is an object; it has no item 0"},
      {{"train.epochs.x=1"}, "train.epochs is a number; it has no field 'x'"},
  });
}

}  // namespace
}  // namespace evenkeel
