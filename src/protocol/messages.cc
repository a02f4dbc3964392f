#include "evenkeel/protocol/messages.h"

#include <bit>

#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "protocol/bodies.h"

namespace evenkeel {

const char* ToString(RefuseReason reason) {
  switch (reason) {
    case RefuseReason::kRetry:
      return "retry";
    case RefuseReason::kForeignJob:
      return "foreign job";
    case RefuseReason::kOtherExperiment:
      return "other experiment";
    case RefuseReason::kOtherModel:
      return "other model";
    case RefuseReason::kOtherData:
      return "other data";
    case RefuseReason::kStaleIncarnation:
      return "stale incarnation";
    case RefuseReason::kStaleTerm:
      return "stale term";
    case RefuseReason::kStaleGeneration:
      return "stale generation";
    case RefuseReason::kStaleLayout:
      return "stale layout";
    case RefuseReason::kNameTaken:
      return "name taken";
    case RefuseReason::kJobEnded:
      return "job ended";
    case RefuseReason::kMalformed:
      return "malformed";
  }
  return "unknown";
}

const char* NameOf(const Body& body) {
#define EK_NAME(type, field) \
  if (std::holds_alternative<type>(body)) return #type;
  EK_FOR_EACH_BODY(EK_NAME)
#undef EK_NAME
  return "unknown";
}

std::vector<UpdateId> UpdateIds(const Decision& decision) {
  std::vector<UpdateId> ids;
  ids.reserve(decision.updates.size());
  for (const CommittedUpdate& update : decision.updates) ids.push_back(update.update);
  return ids;
}

std::uint64_t HashDecision(const Decision& decision) {
  std::uint64_t hash =
      MixKey(decision.previous_hash, decision.version.generation.value(), decision.version.commit.value());
  hash = MixKey(hash, decision.set.value(), decision.attempt);
  hash = MixKey(hash, decision.updates.size());
  for (const CommittedUpdate& update : decision.updates) {
    hash = MixKey(hash, update.update.term.value(), update.update.incarnation.value(), update.update.sequence);
    hash = MixKey(hash, update.rank.value(), update.epoch.value(), static_cast<std::uint64_t>(update.clock));
    for (const PositionRange& range : update.positions) {
      hash = MixKey(hash, static_cast<std::uint64_t>(range.begin), static_cast<std::uint64_t>(range.end));
    }
    hash = MixKey(hash, update.bound_at.value());
    for (const Version& version : update.computed_on) {
      hash = MixKey(hash, version.generation.value(), version.commit.value());
    }
    if (update.feedback > 0) hash = MixKey(hash, update.feedback);
  }
  hash = MixKey(hash, static_cast<std::uint64_t>(decision.samples), std::bit_cast<std::uint64_t>(decision.loss_sum));
  if (decision.global_batch_size > 0) hash = MixKey(hash, static_cast<std::uint64_t>(decision.global_batch_size));
  return MixKey(hash, std::bit_cast<std::uint64_t>(decision.learning_rate),
                std::bit_cast<std::uint64_t>(decision.clip_scale));
}

}  // namespace evenkeel
