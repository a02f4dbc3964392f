// Two processes with one name. Whoever comes second may be the same machine again, which vanished without closing its
// stream, or a mistake: another job's process that was given this chief's address, a command that was started twice.
// The lease tells them apart, so that nobody can throw out a member that lives.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "chief/chief_impl.h"

namespace evenkeel {
namespace {

// A member that renews so often after another came with its name is alive.
constexpr int kRenewalsOfTheLiving = 2;

}  // namespace

Incarnation Chief::Impl::ConnectedHolder(const std::string& name) {
  if (const WorkerState* worker = workers.ByName(name)) {
    return worker->session == SessionId{} ? Incarnation{} : worker->incarnation;
  }
  const ServerState* server = FindServer(name);
  return server == nullptr || server->session == SessionId{} ? Incarnation{} : server->incarnation;
}

// It is welcomed when the holder's stream closes or its lease ends, and refused when that one proves to be alive.
void Chief::Impl::ClaimName(SessionId session, Join& join, Incarnation holder) {
  const std::string name = join.name;
  NameClaim& claim = claims[name];
  if (claim.session != SessionId{} && claim.join.nonce != join.nonce) {
    RefuseSession(claim.session, RefuseReason::kNameTaken, absl::StrCat("a newer process claims the name ", name),
                  true);
    claim = NameClaim{};
  }
  if (claim.session == SessionId{}) {
    claim.counted = now;
    Say(absl::StrCat("another process came as ", name, "; incarnation ", holder.value(),
                     " has that name and is connected: its stream or its lease must end first"),
        LogLevel::kWarning);
  }
  claim.session = session;
  claim.join = std::move(join);
  const Duration left = std::max<Duration>(leases.Until(holder) - now, std::chrono::milliseconds(1));
  Send(session, Waiting{absl::StrCat("the end of incarnation ", holder.value(), ", which has the name ", name,
                                     " and is connected"),
                        left / std::chrono::milliseconds(1)});
}

void Chief::Impl::HolderRenewed(const std::string& name) {
  const auto at = claims.find(name);
  if (at == claims.end()) return;
  NameClaim& claim = at->second;
  if (now - claim.counted < options.experiment.membership.renew / 2) return;
  claim.counted = now;
  if (++claim.renewals < kRenewalsOfTheLiving) return;
  const std::string text = absl::StrCat("another process has the name ", name,
                                        ", is connected and renews its lease; each process of a job needs its own");
  Say(absl::StrCat("refused another ", name, ": incarnation ", ConnectedHolder(name).value(), " renews its lease"),
      LogLevel::kWarning);
  RefuseSession(claim.session, RefuseReason::kNameTaken, text, true);
  claims.erase(at);
}

void Chief::Impl::SettleClaims() {
  while (phase != Phase::kEnded) {
    const auto free = std::find_if(claims.begin(), claims.end(),
                                   [this](const auto& claim) { return ConnectedHolder(claim.first) == Incarnation{}; });
    if (free == claims.end()) return;
    NameClaim claim = std::move(free->second);
    claims.erase(free);
    OnJoin(claim.session, claim.join);
  }
}

}  // namespace evenkeel
