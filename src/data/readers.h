// One reader a format: files in, decoded and checked samples out (labels' ranges are checked later, by
// NormalizeLabels).
//
// Errors: kDataLoss (truncated, wrong magic, wrong checksum), kInvalidArgument (a value that makes no sense); each
// names the file, the record (from 0) or line (from 1), the value and what would be right.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/samples.h"
#include "data/statistics.h"
#include "evenkeel/config/experiment.h"

namespace evenkeel::data {

// Unsigned bytes of three dimensions (magic 0x803) and their labels (0x801), big-endian; features [height, width, 1].
absl::StatusOr<Samples> ReadIdx(const std::string& images_path, const std::string& labels_path);

// Records of a label byte and three planes of 32 x 32 bytes, red, green, blue; features [32, 32, 3].
absl::StatusOr<Samples> ReadCifar10(const std::vector<std::string>& paths);

// Always as sparse rows; FitColumns and ToDense come after the split.
absl::StatusOr<Samples> ReadSvmlight(const SvmlightSource& source, const std::vector<std::string>& paths);
// One more than the largest column.
std::int64_t CountColumns(const Samples& samples);
// Sets the number of columns; entries beyond belong to features never seen in training and are dropped.
void FitColumns(std::int64_t columns, Samples& samples);
// Errors: kInvalidArgument above kMaxDenseFloats.
absl::Status ToDense(Samples& samples);

absl::StatusOr<Samples> ReadTfRecord(const TfRecordSource& source, const std::vector<std::string>& paths);

// A CSV file's cells: numbers (NaN: missing) and categories (empty: missing), one of the two a column.
struct CsvTable {
  struct Column {
    std::string name;  // from the header, or the index as a number
    bool categorical = false;
    std::vector<double> numbers;
    std::vector<std::string> texts;
  };
  std::vector<Column> columns;
  std::vector<double> labels;
  std::vector<std::string> files;
  std::vector<Place> places;
  void Select(std::span<const std::int64_t> rows);
};
// `names`: the feature columns wanted, in order (the training set's, for evaluation); empty: as the source says.
absl::StatusOr<CsvTable> ReadCsv(const CsvSource& source, const std::vector<std::string>& paths,
                                 const std::vector<std::string>& names);
// Categories and means of the rows held.
absl::Status FitTable(const CsvTable& table, const std::string& missing, Statistics& statistics);
// Numbers as they are, missing ones filled, categories one-hot; a category that training lacks is all zeros.
absl::StatusOr<Samples> EncodeTable(CsvTable table, const Statistics& statistics);

}  // namespace evenkeel::data
