// Splits CSV text into records of fields: RFC 4180, with any one-byte separator. Blank lines are skipped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evenkeel::data {

class CsvRecords {
 public:
  // `text` and `path` outlive the reader.
  CsvRecords(absl::string_view text, char separator, const std::string& path);
  // The next record's fields, unquoted. False at the end.
  // Errors: kInvalidArgument and kDataLoss name the line: a quote that never ends, or text after a closing quote.
  absl::StatusOr<bool> Next();
  const std::vector<std::string>& fields() const { return fields_; }
  std::int64_t line() const { return line_; }  // where the record begins, from 1

 private:
  absl::Status TakeQuoted();
  void TakePlain();

  absl::string_view text_;
  std::size_t at_ = 0;
  char separator_;
  const std::string& path_;
  std::vector<std::string> fields_;
  std::int64_t line_ = 0;
  std::int64_t next_line_ = 1;
};

}  // namespace evenkeel::data
