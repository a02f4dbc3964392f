// A commit log as it lies in a model_dir: one file a term, chief.wal.TERM, or several where it was cut,
// chief.wal.TERM.SEGMENT. What they hold is log_record.h's.
//
// Threading: free functions, thread-safe. A log that is being written is read as far as it goes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/log_record.h"

namespace evenkeel {

struct LogFile {
  Term term;
  std::uint64_t segment = 0;
  std::string name;  // in the model_dir
  friend bool operator==(const LogFile&, const LogFile&) = default;
};

// "chief.wal.3", "chief.wal.3.1"
std::string LogFileName(Term term, std::uint64_t segment = 0);

// In the order in which they were written: by term, then by segment. Errors: kNotFound when there is no such folder.
absl::StatusOr<std::vector<LogFile>> ListLogFiles(const Storage& storage, const std::string& model_dir);

// The record that the file begins with. Errors: kDataLoss where there is no whole one; reading.
absl::StatusOr<LogRecord> ReadFirstRecord(const Storage& storage, const std::string& model_dir, const LogFile& file);

// Hands over every record, oldest first, of files in ListLogFiles' order; an error of `visit` ends it. Holds one file
// in memory at a time. A torn tail is cut, with a line in the log. Errors: kDataLoss names the damaged file; kNotFound
// when there is no such folder.
absl::Status ReadLogFiles(const Storage& storage, const std::string& model_dir, std::span<const LogFile> files,
                          const std::function<absl::Status(const LogFile&, LogRecord)>& visit);
// Of all files.
absl::Status ReadLog(const Storage& storage, const std::string& model_dir,
                     const std::function<absl::Status(const LogFile&, LogRecord)>& visit);

}  // namespace evenkeel
