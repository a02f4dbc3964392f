// The manifest's text. Its last line is the CRC-32C of all bytes before that line, in a fixed form that every format
// version keeps, so that a flip of any byte shows.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "evenkeel/checkpoint/checkpoint.h"

namespace evenkeel {

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{256} << 20;

// Errors: kInvalidArgument for what could not be read back: text that is not UTF-8, numbers that are not finite,
// tensors that do not fit the floats.
absl::StatusOr<std::string> SerializeManifest(const Manifest& manifest);

// Errors: kDataLoss; kInvalidArgument for a format version that this program does not know. Messages name `path`.
absl::StatusOr<Manifest> ParseManifest(std::string_view text, const std::string& path);

std::string ManifestPath(const std::string& model_dir, Version version);

}  // namespace evenkeel
