// Finds and reads data files: variables, the places where packages put well-known sets, gzip.
//
// Threading: thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace evenkeel::data {

// The whole file; contents that begin with gzip's magic bytes are inflated, whatever the name.
// Errors: kNotFound, kDataLoss (gzip cut short or damaged), kResourceExhausted above kMaxFileBytes.
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{16} << 30;
absl::StatusOr<std::string> ReadDataFile(const std::string& path);

// Where a path of an experiment leads: the first existing of the expanded path and, for sets below ${EVENKEEL_DATA},
// the folder of Debian's data set packages (and the other way round).
struct ResolvedFile {
  std::string path;  // the existing file, or the first place where it was looked for
  bool exists = false;
};
// Errors: kInvalidArgument names a variable that is not set.
absl::StatusOr<ResolvedFile> ResolveFile(const std::string& text, const std::string& data_folder);

// As ResolveFile for each. Errors: kNotFound for the first that is missing, with where the set is to be had.
absl::StatusOr<std::vector<std::string>> ResolveFiles(const std::vector<std::string>& texts,
                                                      const std::string& data_folder);

}  // namespace evenkeel::data
