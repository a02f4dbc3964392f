// A change of membership reaches a server before the list that it changes.
#include <catch2/catch.hpp>

#include "unit/ps/harness.h"

namespace evenkeel::ps {
namespace {

// A server that takes a lost one's place joins while the job gathers; a worker's lease ends meanwhile. The chief brings
// it up afterwards, and another worker's pull is faster than the list of members.
TEST_CASE("a member is not called stale by a server that has heard of a fence and not yet of the members",
          "[regressions]") {
  Conversation talk;
  talk.Chief(Welcome{.incarnation = Incarnation(14), .job_id = kJob, .renew_ms = 1000});
  talk.Chief(Members{MembershipEpoch(23), false, {}, {Incarnation(7)}});
  REQUIRE(talk.ToChief<MembersAck>().size() == 1);
  CHECK(talk.ToChief<MembersAck>()[0].epoch == MembershipEpoch(23));
  Configure configure{.server = ServerIndex(0), .servers = 1, .tensors = SmallModel(), .bucket_bytes = 4 << 20};
  configure.version = At(0);
  talk.Chief(configure);
  Envelope member = talk.FromWorker(11);
  member.membership_epoch = MembershipEpoch(23);
  talk.WorkerSays(11, member, Hello{"worker:8"});
  REQUIRE(talk.ToWorker<HelloAck>(11).size() == 1);
  talk.WorkerSays(11, member, Pull{.request = 1, .at_least = At(0), .deadline_ms = 1000});
  CHECK(talk.ToWorker<Refuse>(11).empty());
  CHECK(talk.served.empty());
  talk.Chief(Members{MembershipEpoch(23), true, {{Incarnation(11), "worker:8"}}, {}});
  CHECK(talk.served.size() == 1);
  Envelope fenced = talk.FromWorker(7);
  fenced.membership_epoch = MembershipEpoch(22);
  talk.WorkerSays(7, fenced, Hello{"worker:4"});
  talk.WorkerSays(7, fenced, Pull{.request = 1, .at_least = At(0), .deadline_ms = 1000});
  CHECK(talk.Refused(7) == RefuseReason::kStaleIncarnation);
}

}  // namespace
}  // namespace evenkeel::ps
