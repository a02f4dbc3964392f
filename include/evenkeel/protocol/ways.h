// What client and server say of the ways besides gRPC: evenkeel.v1.Ways of proto/evenkeel.proto.
//
// Threading: thread-safe. Bytes come from strangers: anything malformed is an error, never a crash.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace evenkeel {

struct Way {
  std::string name;   // "shm"
  std::string reach;  // only within it the way works; empty: anywhere
  std::string offer;  // bytes; empty in a question, and in an answer that only says that there is this way
};

std::string EncodeWays(const std::vector<Way>& ways);
// Errors: kInvalidArgument: not such a message, or more than 16 ways.
absl::StatusOr<std::vector<Way>> DecodeWays(std::span<const std::byte> bytes);

}  // namespace evenkeel
