#include "evenkeel/protocol/ways.h"

#include "absl/strings/str_cat.h"
#include "evenkeel.pb.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr int kMaxWays = 16;
constexpr std::size_t kMaxBytes = 64 << 10;

}  // namespace

std::string EncodeWays(const std::vector<Way>& ways) {
  v1::Ways message;
  for (const Way& way : ways) {
    v1::Way& added = *message.add_ways();
    added.set_name(way.name);
    added.set_reach(way.reach);
    added.set_offer(way.offer);
  }
  return message.SerializeAsString();
}

absl::StatusOr<std::vector<Way>> DecodeWays(std::span<const std::byte> bytes) {
  v1::Ways message;
  if (bytes.size() > kMaxBytes || !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("[ways] ", bytes.size(), " bytes are no list of ways"));
  }
  if (message.ways_size() > kMaxWays) {
    return absl::InvalidArgumentError(absl::StrCat("[ways] ", message.ways_size(), " ways; at most ", kMaxWays));
  }
  std::vector<Way> ways;
  for (const v1::Way& way : message.ways()) ways.push_back({way.name(), way.reach(), way.offer()});
  return ways;
}

}  // namespace evenkeel
