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

Incarnation Chief::Impl::ConnectedHolder(Role role, const std::string& name) {
  if (role == Role::kPs) {
    const ServerState* server = FindServer(name);
    return server == nullptr || server->session == SessionId{} ? Incarnation{} : server->incarnation;
  }
  const WorkerState* worker = workers.ByName(name);
  return worker == nullptr || worker->session == SessionId{} ? Incarnation{} : worker->incarnation;
}

void Chief::Impl::RefuseClaim(const NameClaim& claim, const std::string& why) {
  Say(absl::StrCat("refused another ", claim.join.name, ": ", why), LogLevel::kWarning);
  RefuseSession(claim.session, RefuseReason::kNameTaken,
                absl::StrCat("another process has the name ", claim.join.name, ": ", why,
                             "; each process of a job needs its own"),
                true);
}

// It is welcomed when the holder's stream closes or its lease ends, and refused when that one proves to be alive.
void Chief::Impl::ClaimName(SessionId session, Join& join, Incarnation holder) {
  const MembershipConfig& membership = options.experiment.membership;
  NameClaim& claim = claims[{join.role == Role::kPs ? Role::kPs : Role::kWorker, join.name}];
  if (claim.session != SessionId{} && claim.join.nonce != join.nonce) {
    RefuseClaim(claim, "it waits for the name, too, and came later");
    claim = NameClaim{};
  }
  if (claim.session == SessionId{}) {
    claim.counted = now;
    // In any case beyond a lease that is not renewed.
    claim.until = std::max(now + (join.role == Role::kPs ? membership.ps_timeout : membership.join_timeout),
                           now + membership.lease + std::chrono::seconds(1));
    Say(absl::StrCat("another process came as ", join.name, "; incarnation ", holder.value(),
                     " has that name and is connected: its stream or its lease must end first"),
        LogLevel::kWarning);
  }
  claim.session = session;
  claim.join = std::move(join);
  Send(session, Waiting{absl::StrCat("the end of incarnation ", holder.value(), ", which has the name ",
                                     claim.join.name, " and is connected"),
                        std::max<std::int64_t>(1, (claim.until - now) / std::chrono::milliseconds(1))});
}

// Not called of one that leaves: it may renew its lease as often as it likes.
void Chief::Impl::HolderRenewed(Role role, const std::string& name) {
  const auto at = claims.find({role, name});
  if (at == claims.end()) return;
  NameClaim& claim = at->second;
  if (now - claim.counted < options.experiment.membership.renew / 2) return;
  claim.counted = now;
  if (++claim.renewals < kRenewalsOfTheLiving) return;
  RefuseClaim(claim,
              absl::StrCat("incarnation ", ConnectedHolder(role, name).value(), " is connected and renews its lease"));
  claims.erase(at);
}

void Chief::Impl::SettleClaims() {
  while (phase != Phase::kEnded) {
    const auto free = std::find_if(claims.begin(), claims.end(), [this](const auto& claim) {
      return ConnectedHolder(claim.first.first, claim.first.second) == Incarnation{};
    });
    if (free == claims.end()) return;
    NameClaim claim = std::move(free->second);
    claims.erase(free);
    OnJoin(claim.session, claim.join);
  }
}

void Chief::Impl::EndClaims() {
  for (auto at = claims.begin(); at != claims.end();) {
    const auto& [holder, claim] = *at;
    if (claim.until > now) {
      ++at;
      continue;
    }
    RefuseClaim(claim, absl::StrCat("incarnation ", ConnectedHolder(holder.first, holder.second).value(),
                                    " is still connected"));
    at = claims.erase(at);
  }
}

}  // namespace evenkeel
