// The files that a source lists, as the experiment writes them.
#pragma once

#include <string>
#include <vector>

#include "evenkeel/config/experiment.h"

namespace evenkeel::data {

// Empty for a custom source. IDX: images, then labels.
std::vector<std::string> FilesOf(const SourceConfig& source);

}  // namespace evenkeel::data
