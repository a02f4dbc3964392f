// The parameters of past versions, as long as an update that is still to come was computed on them.
//
// Threading: one owner; what Get gave may be read by any thread.
// Limits: as many versions as the log's later commits need: at most one a worker and server.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "evenkeel/core/bfloat16.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/ps/shard.h"

namespace evenkeel::replay {

// A whole flat vector in the layout's order.
using FlatVector = std::vector<float>;

// The newest version of a shard that holds all parameters.
void CopyFlat(const ps::Shard& shard, std::span<float> out);
// The same of one of its optimizer slots: the parameters segment.
void CopyFlatSlot(const ps::Shard& shard, int slot, std::span<float> out);

class VersionWindow {
 public:
  // `last_use`: for each version that an update was computed on, the last commit that holds such an update.
  // `wire`: parameters are as they came to the workers.
  VersionWindow(std::map<CommitNumber, CommitNumber> last_use, WireDtype wire)
      : last_use_(std::move(last_use)), wire_(wire) {}

  // Keeps the shard's newest version if anybody will need it.
  void Publish(CommitNumber commit, const ps::Shard& shard);
  // Requires that it was published and is still needed.
  std::shared_ptr<const FlatVector> Get(CommitNumber commit) const { return versions_.at(commit); }
  // Lets go of what no commit after this one needs.
  void Applied(CommitNumber commit);

 private:
  std::map<CommitNumber, CommitNumber> last_use_;
  WireDtype wire_;
  std::vector<std::uint16_t> rounded_;
  std::map<CommitNumber, std::shared_ptr<FlatVector>> versions_;
  std::vector<std::shared_ptr<FlatVector>> spare_;
};

}  // namespace evenkeel::replay
