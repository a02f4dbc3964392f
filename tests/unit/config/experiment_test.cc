#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "evenkeel/config/experiment.h"
#include "evenkeel/core/digest.h"
#include "unit/config/experiments.h"

namespace evenkeel {
namespace {

using Ints = std::vector<std::int64_t>;

TEST_CASE("the schema's defaults are the structs' defaults", "[config]") {
  const Experiment e = Accepted();
  CHECK(e.name == "experiment");
  const LossConfig loss;
  CHECK(e.model.loss.type == loss.type);
  CHECK(e.model.loss.label_smoothing == loss.label_smoothing);
  CHECK(e.model.loss.huber_delta == loss.huber_delta);
  const InputConfig input;
  CHECK(e.input.normalize == input.normalize);
  CHECK(e.input.label_normalize == input.label_normalize);
  CHECK(e.input.eval_fraction == input.eval_fraction);
  CHECK(e.input.split_seed == input.split_seed);
  CHECK_FALSE(e.input.eval.has_value());
  const TrainConfig train;
  CHECK(e.train.epochs == 1);
  CHECK(e.train.max_commits == 0);
  CHECK(e.train.global_batch_size == train.global_batch_size);
  CHECK(e.train.seed == train.seed);
  CHECK(e.train.sync.mode == train.sync.mode);
  CHECK(e.train.optimizer == train.optimizer);
  CHECK(e.train.bucket_bytes == train.bucket_bytes);
  CHECK(e.train.backend == train.backend);
  CHECK(e.train.schedule.kind == train.schedule.kind);
  CHECK(e.train.schedule.unit == train.schedule.unit);
  CHECK(e.train.schedule.learning_rate == train.schedule.learning_rate);
  CHECK(e.train.schedule.warmup == train.schedule.warmup);
  const EvalConfig eval;
  CHECK(e.eval.batch_size == eval.batch_size);
  CHECK(e.eval.final_timeout == eval.final_timeout);
  CHECK(e.eval.idle_timeout == eval.idle_timeout);
  CHECK(e.eval.best_metric == "loss");
  CHECK_FALSE(e.eval.best_maximize);
  CHECK_FALSE(e.eval.early_stopping.has_value());
  const CheckpointConfig checkpoint;
  CHECK(e.checkpoint.keep_max == checkpoint.keep_max);
  CHECK(e.checkpoint.keep_every == checkpoint.keep_every);
  const MembershipConfig membership;
  CHECK(e.membership.workers_min == membership.workers_min);
  CHECK(e.membership.workers_max == membership.workers_max);
  CHECK(e.membership.lease == membership.lease);
  CHECK(e.membership.renew == membership.renew);
  CHECK(e.membership.join_timeout == membership.join_timeout);
  CHECK(e.membership.chief_timeout == membership.chief_timeout);
  CHECK(e.membership.ps_timeout == membership.ps_timeout);
  CHECK(e.membership.drain == membership.drain);
  CHECK(e.membership.ticket_deadline_factor == membership.ticket_deadline_factor);
  CHECK(e.membership.ticket_deadline_floor == membership.ticket_deadline_floor);
  const BatchingConfig batching;
  CHECK(e.batching.mode == batching.mode);
  CHECK(e.batching.probe == batching.probe);
  CHECK(e.batching.min_batch_size == batching.min_batch_size);
  CHECK(e.batching.max_batch_size == batching.max_batch_size);
}

TEST_CASE("layers carry every attribute of their type, in one form", "[config]") {
  const Experiment e = Accepted({R"(model={"nodes": [
      {"conv2d": {"filters": 8, "kernel": [3, 5], "stride": 2, "padding": "same", "groups": 4}, "name": "c"},
      {"conv2d": {"filters": 8, "kernel": 3, "pads": [1, 2, 3, 4], "activation": "gelu"}},
      {"max_pool": {"kernel": [2, 3]}},
      {"avg_pool": {"stride": [1]}},
      {"batch_norm": {"momentum": 0}},
      {"layer_norm": {}},
      {"dropout": {"rate": 0.25}},
      {"relu": {}, "name": "r"},
      {"add": {}, "inputs": ["r", "dropout_0"]},
      {"reshape": {"shape": [-1, 4]}},
      {"custom": {"type": "shift", "attributes": {"on": true, "by": 3, "scale": 1.0, "who": "x", "ints": [1, 2],
          "reals": [1, 2.5], "words": ["a"], "none": []}}},
      {"flatten": {}},
      {"dense": {"units": 3, "kernel_initializer": "normal:0.01", "use_bias": false}}]})"});
  const auto& layers = e.model.layers;
  REQUIRE(layers.size() == 13);
  CHECK(layers[0].name == "c");
  CHECK(layers[0].inputs == std::vector<std::string>{"input"});
  CHECK(layers[0].attributes == Attributes{{"filters", std::int64_t{8}},
                                           {"kernel", Ints{3, 5}},
                                           {"stride", Ints{2, 2}},
                                           {"padding", std::string("same")},
                                           {"pads", Ints{0, 0, 0, 0}},
                                           {"groups", std::int64_t{4}},
                                           {"use_bias", true},
                                           {"activation", std::string("none")},
                                           {"kernel_initializer", std::string("glorot_uniform")}});
  CHECK(layers[1].name == "conv2d_1");
  CHECK(layers[1].inputs == std::vector<std::string>{"c"});
  CHECK(layers[1].attributes.at("padding") == AttributeValue(std::string("explicit")));
  CHECK(layers[1].attributes.at("pads") == AttributeValue(Ints{1, 2, 3, 4}));
  CHECK(layers[1].attributes.at("kernel") == AttributeValue(Ints{3, 3}));
  CHECK(layers[1].attributes.at("activation") == AttributeValue(std::string("gelu")));
  CHECK(layers[2].attributes == Attributes{{"kernel", Ints{2, 3}},
                                           {"stride", Ints{2, 3}},
                                           {"padding", std::string("valid")},
                                           {"pads", Ints{0, 0, 0, 0}}});
  CHECK(layers[3].attributes.at("kernel") == AttributeValue(Ints{2, 2}));
  CHECK(layers[3].attributes.at("stride") == AttributeValue(Ints{1, 1}));
  CHECK(layers[4].attributes == Attributes{{"momentum", 0.0}, {"epsilon", 1e-5}});
  CHECK(layers[5].attributes == Attributes{{"epsilon", 1e-5}});
  CHECK(layers[6].attributes == Attributes{{"rate", 0.25}});
  CHECK(layers[7].attributes.empty());
  CHECK(layers[8].inputs == std::vector<std::string>{"r", "dropout_0"});
  CHECK(layers[9].attributes == Attributes{{"shape", Ints{-1, 4}}});
  CHECK(layers[10].type == "shift");
  CHECK(layers[10].name == "shift_0");
  CHECK(layers[10].attributes == Attributes{{"on", true},
                                            {"by", std::int64_t{3}},
                                            {"scale", 1.0},
                                            {"who", std::string("x")},
                                            {"ints", Ints{1, 2}},
                                            {"reals", std::vector<double>{1, 2.5}},
                                            {"words", std::vector<std::string>{"a"}},
                                            {"none", Ints{}}});
  CHECK(layers[12].attributes == Attributes{{"units", std::int64_t{3}},
                                            {"use_bias", false},
                                            {"activation", std::string("none")},
                                            {"kernel_initializer", std::string("normal:0.01")}});
}

TEST_CASE("every source is read", "[config]") {
  const auto train = [](const std::string& source) { return Accepted({"input.train=" + source}).input.train; };
  CHECK(std::get<Cifar10Source>(train(R"({"cifar10": {"files": "a"}})")).files == std::vector<std::string>{"a"});
  const auto csv = std::get<CsvSource>(train(
      R"({"csv": {"files": ["a", "b"], "separator": ";", "label": "y", "columns": ["u", "v"], "categorical": ["v"],
          "missing": "drop_row"}})"));
  CHECK(csv.files.size() == 2);
  CHECK(csv.header);
  CHECK(csv.separator == ";");
  CHECK(csv.label == "y");
  CHECK(csv.columns == std::vector<std::string>{"u", "v"});
  CHECK(csv.categorical == std::vector<std::string>{"v"});
  CHECK(csv.missing == "drop_row");
  const auto svmlight = std::get<SvmlightSource>(train(R"({"svmlight": {"files": ["a"], "features": 9}})"));
  CHECK(svmlight.features == 9);
  CHECK_FALSE(svmlight.zero_based);
  const auto record = std::get<TfRecordSource>(
      train(R"({"tfrecord": {"files": ["a"], "feature": "x", "label": "y", "shape": [2, 3]}})"));
  CHECK(record.feature == "x");
  CHECK(record.label == "y");
  CHECK(record.shape == Ints{2, 3});
  const auto custom = std::get<CustomSource>(train(R"({"custom": {"type": "mine", "attributes": {"n": 5}}})"));
  CHECK(custom.type == "mine");
  CHECK(custom.attributes == Attributes{{"n", std::int64_t{5}}});
}

TEST_CASE("optimizers, schedules and the other sections are read", "[config]") {
  using Kind = OptimizerSpec::Kind;
  const auto optimizer = [](const std::string& json) { return Accepted({"train.optimizer=" + json}).train.optimizer; };
  CHECK(optimizer(R"({"momentum": {"momentum": 0.5}, "l2": 0.25, "clip_norm": 2})") ==
        OptimizerSpec{.kind = Kind::kMomentum, .momentum = 0.5f, .l2 = 0.25f, .clip_norm = 2});
  CHECK(optimizer(R"({"nesterov": {}, "clip_value": 1})") == OptimizerSpec{.kind = Kind::kNesterov, .clip_value = 1});
  CHECK(optimizer(R"({"adagrad": {"initial_accumulator": 0}})") ==
        OptimizerSpec{.kind = Kind::kAdagrad, .initial_accumulator = 0});
  CHECK(optimizer(R"({"rmsprop": {"rho": 0.5}})") == OptimizerSpec{.kind = Kind::kRmsprop, .momentum = 0, .rho = 0.5f});
  CHECK(optimizer(R"({"adam": {"beta1": 0.5, "beta2": 0.75, "epsilon": 0.125}})") ==
        OptimizerSpec{.kind = Kind::kAdam, .beta1 = 0.5f, .beta2 = 0.75f, .epsilon = 0.125f});
  CHECK(optimizer(R"({"adamw": {}})") == OptimizerSpec{.kind = Kind::kAdamW, .weight_decay = 0.01f});
  CHECK(optimizer(R"({"adamw": {}, "weight_decay": 0})") == OptimizerSpec{.kind = Kind::kAdamW});
  CHECK(optimizer(R"({"ftrl": {"l1": 1, "l2": 2}, "l2": 3})") ==
        OptimizerSpec{.kind = Kind::kFtrl, .ftrl_l1 = 1, .ftrl_l2 = 2, .l2 = 3});

  const auto schedule = [](const std::string& json) { return Accepted({"train.schedule=" + json}).train.schedule; };
  const auto step = schedule(R"({"learning_rate": 1, "step": {"boundaries": [1, 2.5]}, "unit": "epochs",
                                 "warmup": {"length": 3, "start": 0.5}})");
  CHECK(step.kind == ScheduleConfig::Kind::kStep);
  CHECK(step.unit == ScheduleConfig::Unit::kEpochs);
  CHECK(step.learning_rate == 1);
  CHECK(step.boundaries == std::vector<double>{1, 2.5});
  CHECK(step.decay_rate == 0.1);
  CHECK(step.warmup == 3);
  CHECK(step.warmup_start == 0.5);
  const auto exponential = schedule(R"({"exponential": {"decay_every": 7, "staircase": true}, "unit": "commits"})");
  CHECK(exponential.kind == ScheduleConfig::Kind::kExponential);
  CHECK(exponential.unit == ScheduleConfig::Unit::kCommits);
  CHECK(exponential.decay_every == 7);
  CHECK(exponential.staircase);
  CHECK(schedule(R"({"cosine": {"total": 9}})").total == 9);
  const auto polynomial = schedule(R"({"polynomial": {"power": 2, "end_learning_rate": 0.5}})");
  CHECK(polynomial.kind == ScheduleConfig::Kind::kPolynomial);
  CHECK(polynomial.power == 2);
  CHECK(polynomial.end_learning_rate == 0.5);

  const Experiment e =
      Accepted({"train.sync.mode=ssp", "train.sync.staleness=3", "membership.lease_ms=50", "membership.renew_ms=20",
                "eval.final_timeout_ms=1500", "checkpoint.every_seconds=0.5",
                R"(batching={"mode": "static", "speeds": [1, 2]})", "train.seed=18446744073709551615"});
  CHECK(e.train.sync.mode == SyncConfig::Mode::kSsp);
  CHECK(e.train.sync.staleness == 3);
  CHECK(e.membership.lease == std::chrono::milliseconds(50));
  CHECK(e.membership.renew == std::chrono::milliseconds(20));
  CHECK(e.eval.final_timeout == std::chrono::milliseconds(1500));
  CHECK(e.checkpoint.every_seconds == 0.5);
  CHECK(e.batching.mode == BatchingConfig::Mode::kStatic);
  CHECK(e.batching.speeds == std::vector<double>{1, 2});
  CHECK(e.train.seed == 18446744073709551615u);
}

TEST_CASE("batches follow speeds where the experiment has a batching section and names no mode", "[config]") {
  CHECK(Accepted({}).batching.mode == BatchingConfig::Mode::kOff);
  const Experiment given = Accepted({"batching.speeds=[1, 2]", "batching.probe_ms=0"});
  CHECK(given.batching.mode == BatchingConfig::Mode::kModel);
  CHECK(given.batching.probe == Duration::zero());
  CHECK(Accepted({"batching.min_batch_size=4", "batching.mode=off"}).batching.mode == BatchingConfig::Mode::kOff);
}

TEST_CASE("gradients are measured where the experiment has a batching section, unless it says otherwise", "[config]") {
  CHECK(Accepted({}).batching.gradnorm_window == 0);
  CHECK(Accepted({"batching.mode=off"}).batching.gradnorm_window == 50);
  CHECK(Accepted({"batching.gradnorm_window=0"}).batching.gradnorm_window == 0);
}

TEST_CASE("a global batch that follows the noise scale begins at the experiment's, and by itself does not shrink",
          "[config]") {
  using NoiseScale = BatchingConfig::NoiseScale;
  CHECK_FALSE(Accepted({"batching.global={\"fixed\": {}}"}).batching.noise_scale.has_value());
  const auto plain =
      Accepted({"train.global_batch_size=256", "batching.global.noise_scale.max=4096"}).batching.noise_scale;
  REQUIRE(plain.has_value());
  CHECK(plain->min == 256);
  CHECK(plain->max == 4096);
  CHECK(plain->least_factor == NoiseScale{}.least_factor);
  CHECK(plain->most_factor == NoiseScale{}.most_factor);
  CHECK(plain->learning_rate == NoiseScale::LearningRate::kLinear);
  const auto full = Accepted({R"(batching.global={"noise_scale": {"min": 32, "max": 512, "least_factor": 1.5,
      "most_factor": 4, "learning_rate": "square_root"}})",
                              "batching.evict_slower_than=2.5"})
                        .batching;
  CHECK(full.noise_scale->min == 32);
  CHECK(full.noise_scale->most_factor == 4);
  CHECK(full.noise_scale->learning_rate == NoiseScale::LearningRate::kSquareRoot);
  CHECK(full.evict_slower_than == 2.5);
  CHECK(full.asp_adjust_strategy == BatchingConfig::AspAdjustStrategy::kIterationTime);
  const auto asp = Accepted({"train.sync.mode=asp", "batching.asp_adjust_strategy=staleness"}).batching;
  CHECK(asp.asp_adjust_strategy == BatchingConfig::AspAdjustStrategy::kStaleness);
}

TEST_CASE("the best metric and its direction follow from the metrics", "[config]") {
  const auto eval = [](std::vector<std::string> more) {
    more.push_back("input.eval_fraction=0.5");
    return Accepted(more).eval;
  };
  CHECK(eval({"eval.metrics=[\"top_k:3\", \"loss\", \"accuracy\"]"}).best_metric == "top_k:3");
  CHECK(eval({"eval.metrics=[\"top_k:3\", \"loss\"]"}).metrics == std::vector<std::string>{"top_k:3"});
  CHECK(eval({"eval.metrics=accuracy"}).best_maximize);
  CHECK(eval({"eval.metrics=[\"loss\", \"accuracy\"]"}).best_metric == "loss");
  CHECK_FALSE(eval({"eval.metrics=accuracy", "eval.best_metric=loss"}).best_maximize);
  CHECK_FALSE(eval({"eval.metrics=accuracy", "eval.best_maximize=false"}).best_maximize);
  const auto stopping = eval({"eval.metrics=accuracy", "eval.early_stopping.patience=2"}).early_stopping;
  REQUIRE(stopping.has_value());
  CHECK(stopping->metric == "accuracy");
  CHECK(stopping->maximize);
  CHECK(stopping->patience == 2);
  const auto on_loss = eval({"eval.metrics=accuracy", "eval.early_stopping={\"metric\": \"loss\"}"}).early_stopping;
  CHECK_FALSE(on_loss->maximize);
}

TEST_CASE("--set changes fields, items of lists and whole sections, in order", "[config]") {
  CHECK(Accepted({"train.epochs=2", "train.epochs=3"}).train.epochs == 3);
  CHECK(Accepted({"train.sync.mode=asp"}).train.sync.mode == SyncConfig::Mode::kAsp);
  CHECK(Accepted({"name=\"7\""}).name == "7");
  CHECK(Accepted({"name=a=b"}).name == "a=b");
  const Experiment e = Accepted({"model.layers[1].dense.units=12", "model.layers[1].name=out", "input.classes=12"});
  CHECK(e.model.layers[1].attributes.at("units") == AttributeValue(std::int64_t{12}));
  CHECK(e.model.layers[1].name == "out");
  CHECK(Accepted({"model.loss=hinge"}).model.loss.type == "hinge");
  CHECK(Accepted({"train.epochs=null", "train.max_commits=5"}).train.epochs == 0);
  CHECK(Accepted({"train.optimizer={\"adam\": {}}", "train.optimizer.adam=null"}).train.optimizer.kind ==
        OptimizerSpec::Kind::kSgd);
}

TEST_CASE("equal experiments have one canonical form and one hash, however they are written", "[config]") {
  const Experiment small = Accepted();
  CHECK(small.spec_hash == Sha256Hex(small.canonical_json));
  const Experiment other = Accepted({}, R"({"train": {"epochs": 1.0, "seed": 1, "optimizer": {"sgd": {}, "l2": 0e3}},
      "input": {"classes": 1e1, "train": {"idx": {"labels": "l", "images": "i"}}},
      "model": {"loss": "softmax_cross_entropy", "nodes": [{"flatten": {}, "inputs": "input"},
          {"name": "dense_0", "dense": {"units": 10, "activation": "none"}}]}, "name": null})");
  CHECK(small.canonical_json == other.canonical_json);
  CHECK(small.spec_hash == other.spec_hash);
  CHECK(Accepted({"train.seed=2"}).spec_hash != small.spec_hash);
  // Before ${VAR}: hosts keep their data where they like.
  CHECK_THAT(Accepted({"input.train.idx.images=${NOWHERE}/x"}).canonical_json, Catch::Contains("${NOWHERE}/x"));
}

TEST_CASE("the canonical form parses to itself", "[config]") {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"input.eval_fraction=0.5", "eval.early_stopping={}", "eval.metrics=[\"loss\", \"accuracy\"]"},
      {R"(model.layers[0]={"custom": {"type": "x", "attributes": {"a": 1, "b": 1.0, "c": [], "d": [1.0], "e": "s"}}})"},
      {R"(model.layers[0]={"max_pool": {"pads": 1}})", "train.optimizer={\"adamw\": {}}"},
      {R"(input.train={"csv": {"files": "a", "label": "0", "header": false}})"}};
  for (const auto& overrides : cases) {
    const Experiment once = Accepted(overrides);
    const Experiment twice = Accepted({}, once.canonical_json.c_str());
    CHECK(once.canonical_json == twice.canonical_json);
    CHECK(once.model.layers[0].attributes == twice.model.layers[0].attributes);
  }
}

TEST_CASE("differing fields are named by their paths", "[config]") {
  const Experiment a = Accepted();
  CHECK(DifferingFields(a.canonical_json, a.canonical_json).empty());
  const Experiment b = Accepted({"train.seed=2", "model.layers[1].dense.units=11", "train.optimizer={\"adam\": {}}"});
  CHECK(DifferingFields(a.canonical_json, b.canonical_json) ==
        std::vector<std::string>{"model.layers[1].dense.units", "train.optimizer.adam", "train.optimizer.sgd",
                                 "train.seed"});
  CHECK(DifferingFields(a.canonical_json, b.canonical_json, 2).size() == 2);
  CHECK(DifferingFields("{}", "oops").size() == 1);
  CHECK(DifferingFields(R"({"a": [1, 2]})", R"({"a": [1]})") == std::vector<std::string>{"a"});
}

TEST_CASE("initialisers are read from text", "[config]") {
  using Kind = InitializerSpec::Kind;
  CHECK(ParseInitializer("zeros")->kind == Kind::kZeros);
  CHECK(ParseInitializer("he_normal")->kind == Kind::kHeNormal);
  CHECK(*ParseInitializer("uniform:0.5") == InitializerSpec{.kind = Kind::kUniform, .scale = 0.5f});
  CHECK(*ParseInitializer("truncated_normal:0.25") == InitializerSpec{.kind = Kind::kTruncatedNormal, .scale = 0.25f});
  CHECK(*ParseInitializer("constant:-1") == InitializerSpec{.kind = Kind::kConstant, .value = -1});
  for (const char* text : {"", "normal", "normal:", "normal:x", "normal:-1", "normal:nan", "uniform:inf", "zeros:1",
                           "glorot", "constant:1e99"}) {
    INFO(text);
    CHECK_FALSE(ParseInitializer(text).ok());
  }
}

}  // namespace
}  // namespace evenkeel
