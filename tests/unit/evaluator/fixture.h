// y = 2 x + 1 on four samples, a linear model, and checkpoints of it in a folder on disk.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/random.h"
#include "evenkeel/data/dataset.h"
#include "evenkeel/evaluator/evaluator.h"
#include "evenkeel/model/model.h"
#include "evenkeel/protocol/layout.h"

namespace evenkeel::evaluator_test {

template <class T>
T Must(absl::StatusOr<T> value) {
  INFO(value.status().ToString());
  REQUIRE(value.ok());
  return *std::move(value);
}
inline void Must(const absl::Status& status) {
  INFO(status.ToString());
  REQUIRE(status.ok());
}

inline Version At(std::uint64_t generation, std::uint64_t commit) {
  return Version{Generation(generation), CommitNumber(commit)};
}

class LinearJob {
 public:
  explicit LinearJob(const std::string& eval = R"({"metrics": ["mse", "mae"], "batch_size": 3})", bool with_eval = true)
      : root_(std::filesystem::temp_directory_path() / absl::StrCat("evenkeel-test-", absl::Hex(RandomNonce()))) {
    std::filesystem::create_directories(root_ / "model");
    std::ofstream(root_ / "line.csv") << "x,y\n0,1\n1,3\n2,5\n3,7\n";
    const std::string source =
        absl::StrCat(R"({"csv": {"files": [")", (root_ / "line.csv").string(), R"("], "label": "y"}})");
    experiment = Must(ParseExperiment(
        absl::StrCat(R"({"name": "line", "model": {"layers": [{"dense": {"units": 1}, "name": "out"}],)",
                     R"("loss": {"type": "mse"}}, "input": {"train": )", source,
                     with_eval ? absl::StrCat(R"(, "eval": )", source) : "",
                     R"(}, "train": {"epochs": 1, "backend": "reference"}, "eval": )", eval, "}"),
        "line.json", {}));
    experiment.eval.idle_timeout = std::chrono::milliseconds(1);
    statistics_ = Must(OpenTrainingData(experiment.input, "")).statistics_json;
    std::unique_ptr<Backend> backend = MakeReferenceBackend(DType::kFloat32);
    auto model = Must(Model::Build(experiment.model, ModelOptions{Shape{1}, 1}, *backend));
    tensors_.assign(model->tensors().begin(), model->tensors().end());
  }
  ~LinearJob() { std::filesystem::remove_all(root_); }

  std::string model_dir() const { return (root_ / "model").string(); }
  std::string Path(const std::string& name) const { return JoinPath(model_dir(), name); }

  // A checkpoint of y = weight x + bias.
  void Write(Version version, float weight, float bias, bool final = false) {
    Storage& storage = Storage::Posix();
    const ParameterLayout layout = Must(ParameterLayout::Create(tensors_, 4 << 20, 1));
    std::vector<float> flat(static_cast<std::size_t>(layout.total_floats()));
    flat[static_cast<std::size_t>(layout.places()[0].offset)] = weight;
    flat[static_cast<std::size_t>(layout.places()[1].offset)] = bias;
    Manifest manifest;
    manifest.job_id = std::string(32, 'a');
    manifest.spec_hash = experiment.spec_hash;
    manifest.experiment_json = experiment.canonical_json;
    manifest.version = version;
    manifest.tensors = tensors_;
    manifest.parameter_floats = layout.parameter_floats();
    manifest.total_floats = layout.total_floats();
    manifest.data_statistics_json = statistics_;
    manifest.samples_trained = static_cast<std::int64_t>(version.commit.value()) * 2;
    manifest.epochs = static_cast<double>(version.commit.value()) / 2;
    manifest.final = final;
    const std::string folder = CheckpointFolder(model_dir(), version);
    Must(storage.MakeFolder(folder));
    manifest.parts.push_back(Must(WritePart(storage, folder, PartFileName(ServerIndex(0), 1),
                                            {PartArray{"parameters", {FlatSegment{0, flat}}}})));
    Must(WriteManifest(storage, model_dir(), manifest));
  }

  EvaluatorOptions Options() const {
    EvaluatorOptions options;
    options.experiment = experiment;
    options.model_dir = model_dir();
    return options;
  }

  // eval.csv without its header, cut into fields.
  std::vector<std::vector<std::string>> Rows() const {
    std::ifstream file(Path("eval.csv"));
    std::vector<std::vector<std::string>> rows;
    for (std::string line; std::getline(file, line);) rows.push_back(absl::StrSplit(line, ','));
    if (!rows.empty()) rows.erase(rows.begin());
    return rows;
  }
  // "generation.commit" of each row.
  std::string ScoredInOrder() const {
    std::string text;
    for (const auto& row : Rows()) absl::StrAppend(&text, text.empty() ? "" : " ", "g", row[1], "-c", row[0]);
    return text;
  }
  nlohmann::json Best() const {
    std::ifstream file(Path("best/best.json"));
    return nlohmann::json::parse(file);
  }

  Experiment experiment;

 private:
  std::filesystem::path root_;
  std::string statistics_;
  std::vector<TensorSpec> tensors_;
};

}  // namespace evenkeel::evaluator_test
