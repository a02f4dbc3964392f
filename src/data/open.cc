#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "data/files.h"
#include "data/memory_dataset.h"
#include "data/readers.h"
#include "data/source_files.h"
#include "data/split.h"
#include "data/statistics.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/status.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel {
namespace {

using data::Part;
using data::Samples;
using data::Statistics;

std::map<std::string, DatasetFactory>& Registry() {
  static auto* registry = new std::map<std::string, DatasetFactory>;  // lives to the end: sets may be opened until then
  return *registry;
}

// The decoded rows of one part of a source, by format. With `fit` the statistics are the result, else they are given.
class Opener {
 public:
  Opener(const InputConfig& input, std::string_view data_folder, Part part, bool fit)
      : input_(input), data_folder_(data_folder), part_(part), fit_(fit) {}

  absl::StatusOr<OpenedData> Open(const SourceConfig& source, Statistics statistics) {
    EK_ASSIGN_OR_RETURN(std::vector<std::string> paths, data::ResolveFiles(data::FilesOf(source), data_folder_));
    Samples samples;
    if (const auto* csv = std::get_if<CsvSource>(&source)) {
      EK_ASSIGN_OR_RETURN(samples, OpenCsv(*csv, paths, statistics));
    } else {
      EK_ASSIGN_OR_RETURN(samples, Read(source, paths));
      EK_RETURN_IF_ERROR(CheckFormat(samples.format, statistics));
      EK_ASSIGN_OR_RETURN(std::vector<std::int64_t> rows, Rows(samples.size()));
      if (part_ != Part::kWhole) samples.Select(rows);
      if (samples.content == data::Content::kSparse) {
        EK_RETURN_IF_ERROR(ShapeSvmlight(std::get<SvmlightSource>(source), statistics, samples));
      }
    }
    return Finish(std::move(statistics), std::move(samples));
  }

 private:
  absl::StatusOr<Samples> Read(const SourceConfig& source, const std::vector<std::string>& paths) const {
    if (std::holds_alternative<IdxSource>(source)) return data::ReadIdx(paths[0], paths[1]);
    if (std::holds_alternative<Cifar10Source>(source)) return data::ReadCifar10(paths);
    if (const auto* svmlight = std::get_if<SvmlightSource>(&source)) return data::ReadSvmlight(*svmlight, paths);
    return data::ReadTfRecord(std::get<TfRecordSource>(source), paths);
  }

  absl::StatusOr<std::vector<std::int64_t>> Rows(std::int64_t size) const {
    return data::RowsOf(part_, size, input_.eval_fraction, input_.split_seed);
  }

  absl::Status CheckFormat(const std::string& format, Statistics& statistics) const {
    if (fit_) statistics.format = format;
    if (statistics.format == format) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("[data] input.eval is of format ", format, ", input.train was ",
                                                   statistics.format, "; they must be of one format"));
  }

  absl::StatusOr<Samples> OpenCsv(const CsvSource& source, const std::vector<std::string>& paths,
                                  Statistics& statistics) const {
    EK_RETURN_IF_ERROR(CheckFormat("csv", statistics));
    EK_ASSIGN_OR_RETURN(data::CsvTable table, data::ReadCsv(source, paths, statistics.columns));
    EK_ASSIGN_OR_RETURN(std::vector<std::int64_t> rows, Rows(static_cast<std::int64_t>(table.places.size())));
    if (part_ != Part::kWhole) table.Select(rows);
    if (fit_) EK_RETURN_IF_ERROR(data::FitTable(table, source.missing, statistics));
    return data::EncodeTable(std::move(table), statistics);
  }

  absl::Status ShapeSvmlight(const SvmlightSource& source, const Statistics& statistics, Samples& samples) const {
    std::int64_t columns = source.features > 0 ? source.features : data::CountColumns(samples);
    if (!fit_ && !statistics.features.empty()) columns = statistics.features[0];
    data::FitColumns(columns, samples);
    return input_.sparse ? absl::OkStatus() : data::ToDense(samples);
  }

  absl::StatusOr<OpenedData> Finish(Statistics statistics, Samples samples) const {
    samples.spec.classes = input_.classes;
    if (input_.sparse && !samples.spec.sparse) {
      return absl::InvalidArgumentError(
          absl::StrCat("[", samples.format, "] input.sparse is for svmlight; right is false"));
    }
    auto dims = samples.spec.features.dims();
    if (fit_) {
      statistics.features.assign(dims.begin(), dims.end());
    } else if (!std::equal(dims.begin(), dims.end(), statistics.features.begin(), statistics.features.end())) {
      return absl::InvalidArgumentError(absl::StrCat("[", samples.format, "] ", samples.files[0], ": samples are ",
                                                     samples.spec.features.ToString(), ", the training set's [",
                                                     absl::StrJoin(statistics.features, ","), "]"));
    }
    EK_RETURN_IF_ERROR(data::NormalizeLabels(fit_, statistics, samples));
    if (fit_) EK_RETURN_IF_ERROR(data::FitFeatures(samples, statistics));
    EK_RETURN_IF_ERROR(CheckGroups(statistics, samples));
    OpenedData opened;
    EK_ASSIGN_OR_RETURN(opened.statistics_json, data::ToJson(statistics));
    opened.fingerprint = data::FingerprintOf(samples, opened.statistics_json);
    opened.dataset = data::MakeDataset(std::move(samples), statistics);
    ReturnFreeMemory();  // files as read and as inflated, tables of text: twice the set and more
    return opened;
  }

  // Statistics may come from a file: their lengths must suit the shape before they index anything.
  static absl::Status CheckGroups(const Statistics& statistics, const Samples& samples) {
    std::size_t wanted = 0;
    if (statistics.normalize == "standardize") {
      const Shape& shape = samples.spec.features;
      wanted = static_cast<std::size_t>(samples.spec.image ? shape[-1] : shape.elements());
    }
    if (statistics.mean.size() == wanted && statistics.std.size() == wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("[data] the training data's statistics hold ",
                                                   statistics.mean.size(), " means and ", statistics.std.size(),
                                                   " deviations; right are ", wanted));
  }

  const InputConfig& input_;
  const std::string data_folder_;
  const Part part_;
  const bool fit_;
};

absl::StatusOr<OpenedData> OpenCustom(const CustomSource& source, const InputConfig& input, bool training, Part part,
                                      std::string_view data_folder) {
  auto found = Registry().find(source.type);
  if (found == Registry().end()) {
    std::string known =
        absl::StrJoin(Registry(), ", ", [](std::string* out, const auto& entry) { *out += entry.first; });
    return absl::InvalidArgumentError(absl::StrCat("[data] no data source is registered as '", source.type,
                                                   "'; registered are: ", known.empty() ? "none" : known));
  }
  if (input.normalize != "none" || input.label_normalize != "none") {
    return absl::InvalidArgumentError(absl::StrCat("[data] source ", source.type,
                                                   " normalises by itself; input.normalize and input.label_normalize "
                                                   "must be none"));
  }
  OpenedData opened;
  EK_ASSIGN_OR_RETURN(opened.dataset, found->second(source.attributes, training, data_folder));
  if (opened.dataset == nullptr || opened.dataset->size() < 1) {
    return absl::InvalidArgumentError(absl::StrCat("[data] source ", source.type, " has no samples"));
  }
  if (part != Part::kWhole) {
    EK_ASSIGN_OR_RETURN(std::vector<std::int64_t> rows,
                        data::RowsOf(part, opened.dataset->size(), input.eval_fraction, input.split_seed));
    opened.dataset = data::MakeSubset(std::move(opened.dataset), std::move(rows));
  }
  Statistics statistics;
  statistics.format = source.type;
  auto dims = opened.dataset->spec().features.dims();
  statistics.features.assign(dims.begin(), dims.end());
  EK_ASSIGN_OR_RETURN(opened.statistics_json, data::ToJson(statistics));
  EK_ASSIGN_OR_RETURN(opened.fingerprint, data::FingerprintBySampling(*opened.dataset));
  return opened;
}

}  // namespace

absl::StatusOr<OpenedData> OpenTrainingData(const InputConfig& input, std::string_view data_folder) {
  Part part = !input.eval && input.eval_fraction > 0 ? Part::kTraining : Part::kWhole;
  if (const auto* custom = std::get_if<CustomSource>(&input.train)) {
    return OpenCustom(*custom, input, /*training=*/true, part, data_folder);
  }
  Statistics statistics;
  statistics.normalize = input.normalize;
  statistics.label_normalize = input.label_normalize;
  return Opener(input, data_folder, part, /*fit=*/true).Open(input.train, std::move(statistics));
}

absl::StatusOr<OpenedData> OpenEvalData(const InputConfig& input, std::string_view data_folder,
                                        std::string_view statistics_json) {
  if (!input.eval && !(input.eval_fraction > 0)) {
    return absl::NotFoundError(
        "[data] the experiment has no evaluation data: neither input.eval nor input.eval_fraction");
  }
  Part part = input.eval ? Part::kWhole : Part::kEval;
  const SourceConfig& source = input.eval ? *input.eval : input.train;
  if (const auto* custom = std::get_if<CustomSource>(&source)) {
    return OpenCustom(*custom, input, /*training=*/!input.eval.has_value(), part, data_folder);
  }
  EK_ASSIGN_OR_RETURN(Statistics statistics, data::StatisticsFromJson(std::string(statistics_json)));
  return Opener(input, data_folder, part, /*fit=*/false).Open(source, std::move(statistics));
}

absl::StatusOr<LabelScale> LabelScaleFrom(std::string_view statistics_json) {
  EK_ASSIGN_OR_RETURN(Statistics statistics, data::StatisticsFromJson(std::string(statistics_json)));
  if (statistics.label_normalize == "none") return LabelScale{};
  return LabelScale{static_cast<float>(statistics.label_std), static_cast<float>(statistics.label_mean)};
}

void RegisterDataset(const std::string& type, DatasetFactory factory) { Registry()[type] = std::move(factory); }

}  // namespace evenkeel
