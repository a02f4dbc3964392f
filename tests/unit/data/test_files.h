// Small data files that tests write, and checks of what was read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evenkeel/data/dataset.h"

namespace evenkeel::data_test {

// A folder that is removed at the end of the test.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string Write(const std::string& name, const std::string& bytes) const;  // gives the path
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string Gzip(const std::string& bytes);
std::string IdxImages(std::uint32_t count, std::uint32_t height, std::uint32_t width, const std::string& pixels);
std::string IdxLabels(const std::string& labels);

// Both of a source, opened; aborts the test when that fails.
OpenedData MustOpen(const InputConfig& input);
OpenedData MustOpenEval(const InputConfig& input, const std::string& statistics_json);
// The message of a source that must not open, after its code's name: "DATA_LOSS: ...".
std::string WhyNot(const InputConfig& input);
std::string WhyNotEval(const InputConfig& input, const std::string& statistics_json);

// All samples in index order.
Batch All(const Dataset& dataset);

bool Contains(const std::string& text, const std::string& part);

// EVENKEEL_DATA, or empty.
std::string DataFolder();

}  // namespace evenkeel::data_test
