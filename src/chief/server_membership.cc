// Servers join, are given their places, and are lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "chief/chief_impl.h"
#include "evenkeel/core/plural.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

ServerState* Chief::Impl::ServerBySession(SessionId session) {
  if (session == SessionId{}) return nullptr;
  for (auto* list : {&servers, &spares}) {
    for (ServerState& server : *list) {
      if (server.session == session) return &server;
    }
  }
  return nullptr;
}

// A server is known by its name; one that has no place in the layout stands by.
void Chief::Impl::OnServerJoin(SessionId session, Join& join) {
  ServerState* server = FindServer(join.name);
  if (server != nullptr && server->incarnation != Incarnation{} && server->nonce == join.nonce) {
    server->session = session;
    if (join.holding.decided.generation == generation) {
      server->applied = std::max(server->applied, join.holding.applied);
    }
    return ResumeServerSession(*server);
  }
  const bool restarted = phase == Phase::kGathering && recovering;
  if (restarted && server != nullptr && server->incarnation != Incarnation{} && InLayout(*server) &&
      HoldsLine(join.holding, PlaceOf(*server)) && server->holding == Holding{}) {
    // It is the member; whoever came first has its name, but nothing that the log goes on from.
    Say(absl::StrCat(server->name, " at ", server->address,
                     " gives way: another process holds what the log goes on from"),
        LogLevel::kWarning);
    RefuseSession(server->session, RefuseReason::kNameTaken,
                  absl::StrCat("the process that had the name ", server->name, " has come back"), true);
    leases.End(server->incarnation);
    *server = ServerState{};
    server->name = join.name;
  }
  if (server != nullptr && server->incarnation != Incarnation{}) {
    if (join.former != Incarnation{} && join.former != server->incarnation) {
      return RefuseSession(session, RefuseReason::kNameTaken,
                           absl::StrCat("incarnation ", join.former.value(), " of ", join.name,
                                        " was fenced, and another process has its name now"),
                           false);
    }
    if (server->session != SessionId{} && join.former != server->incarnation) {
      return ClaimName(session, join, server->incarnation);
    }
    const std::string reason = join.former == server->incarnation ? kBeginsAnew : kNameTakenOver;
    InLayout(*server) ? LoseServer(*server, reason) : EndSpare(server->incarnation, reason, false);
    server = FindServer(join.name);
  }
  if (phase == Phase::kEnded) return Bid(session, join.name);
  if (server == nullptr) {
    if (spares.size() >= kMaxSpareServers) {
      return RefuseSession(session, RefuseReason::kRetry,
                           absl::StrCat(join.name, ": ", spares.size(), " servers without a place are here already"),
                           false);
    }
    server = &spares.emplace_back();
    server->name = join.name;
  }
  last_incarnation = last_incarnation.Next();
  server->address = join.address;
  server->nonce = join.nonce;
  server->incarnation = last_incarnation;
  server->session = session;
  server->holding = join.holding;
  server->lost = false;
  server->state = "joined";
  leases.Grant(server->incarnation, now);
  // Machines that start together come within a time of each other, however late.
  if (phase == Phase::kGathering && InLayout(*server) && !std::exchange(first_server_here, true)) {
    replace_until = std::max(replace_until, now + options.experiment.membership.ps_replacement_timeout);
    Await(options.experiment.membership.ps_timeout);
  }
  const std::string stands_by =
      InLayout(*server) ? "" : absl::StrCat(" and stands by: the layout has its ", Counted(servers.size(), "server"));
  Say(absl::StrCat(server->name, " joined at ", server->address, stands_by));
  ResumeServerSession(*server);
  if (!stands_by.empty()) {
    Send(session, Waiting{absl::StrCat("a place: the layout has its ", Counted(servers.size(), "server")), 0});
  }
}

void Chief::Impl::WelcomeServer(const ServerState& server) {
  Send(server.session, Welcome{server.incarnation,
                               job_id,
                               options.experiment.canonical_json,
                               options.experiment.membership.lease / std::chrono::milliseconds(1),
                               options.experiment.membership.renew / std::chrono::milliseconds(1),
                               {},
                               {},
                               0,
                               0});
}

// (Re)tells a server everything that it must know; all of it is idempotent.
void Chief::Impl::ResumeServerSession(ServerState& server) {
  leases.Renew(server.incarnation, now);
  server.let_go = false;
  WelcomeServer(server);
  if (InLayout(server)) {
    if (phase != Phase::kGathering) BringUpServer(server);
  } else if (server.leaving) {
    Send(server.session, LeaveNow{"its stripes are with others"});
  }
  if (move) SendPrepare(server);
}

void Chief::Impl::BringUpServer(ServerState& server) {
  if (phase == Phase::kReading) {
    if (server.holding.decided == reading) Send(server.session, ReadDecisions{version()});
    return;
  }
  const ServerIndex place = PlaceOf(server);
  const auto count = static_cast<std::uint32_t>(servers.size());
  Members members;
  members.epoch = membership_epoch;
  members.full = true;
  for (const auto& [incarnation, worker] : workers) members.admitted.push_back({incarnation, worker.name});
  if (!server.configured && switching) {
    Send(server.session, Switch{version()});
  } else if (!server.configured && !continuing) {
    Configure configure;
    configure.server = place;
    configure.servers = count;
    configure.tensors = tensors;
    configure.bucket_bytes = options.experiment.train.bucket_bytes;
    configure.optimizer = options.experiment.train.optimizer;
    configure.measure_gradients = noise.has_value();
    configure.stage_slots = StageSlots(count);
    configure.seed = options.experiment.train.seed;
    configure.model_dir = options.model_dir;
    configure.restore = options.resume.has_value();
    if (options.resume) configure.checkpoint = options.resume->version;
    configure.version = Version{generation, options.resume ? options.resume->version.commit : CommitNumber(0)};
    Send(server.session, std::move(configure));
  }
  Send(server.session, std::move(members));
  auto send_snapshot = [&] {
    const Version at = checkpoint->manifest.version;
    Send(server.session, Snapshot{at, CheckpointFolder(options.model_dir, at), PartFileName(place, count)});
  };
  const bool snapshot = checkpoint && !checkpoint->parts[place.value()];
  if (snapshot && checkpoint->manifest.version.commit <= server.applied) send_snapshot();
  for (const Decision& decision : unapplied) {
    if (decision.version.commit <= server.applied) continue;
    Send(server.session, decision);
    if (snapshot && checkpoint->manifest.version == decision.version) send_snapshot();
  }
  if (!server.configured && continuing) Send(server.session, Continue{version()});
  // After the decisions: what they are of has the room that the next sets take, as has what was dropped.
  if (server.configured && !dropped.empty()) Send(server.session, Drop{{dropped.begin(), dropped.end()}});
  for (const auto& [number, set] : undecided.sets()) {
    if (set.seal_sent) Send(server.session, Seal{number, set.attempt, set.updates, set.folded});
  }
}

std::vector<ServerAddress> Chief::Impl::ServerAddresses() const {
  std::vector<ServerAddress> addresses;
  for (const ServerState& server : servers) addresses.push_back({server.address, server.incarnation, server.name});
  return addresses;
}

void Chief::Impl::ConfigureServers() {
  for (const ServerState& server : servers) {
    if (server.holding.decided.generation <= generation) continue;
    return RollBack(absl::StrCat(server.name, " has lived through more than the log knows"));
  }
  phase = Phase::kConfiguring;
  Await(options.experiment.membership.ps_timeout);
  AppendLog(LayoutRecord{layout, generation, ServerAddresses()});
  had_layout = true;
  for (ServerState& server : servers) {
    server.applied = options.resume ? options.resume->version.commit : CommitNumber(0);
    WelcomeServer(server);
    BringUpServer(server);
  }
}

void Chief::Impl::LoseServer(ServerState& server, const std::string& reason, bool orderly) {
  leases.End(server.incarnation);
  ended_nonces.push_back(server.nonce);
  if (ended_nonces.size() > kEndedNoncesKept) ended_nonces.pop_front();
  if (orderly) {
    actions.push_back(CloseAction{server.session});
    Say(absl::StrCat(server.name, " at ", server.address, " left: ", reason));
  } else {
    RefuseSession(server.session, RefuseReason::kStaleIncarnation, absl::StrCat(server.name, " is fenced: ", reason),
                  server.session != SessionId{});
    Say(absl::StrCat(server.name, " at ", server.address, " is lost: ", reason), LogLevel::kWarning);
  }
  const std::string name = server.name;
  server = ServerState{};
  server.name = name;
  server.lost = had_layout;
  replace_until = now + options.experiment.membership.ps_replacement_timeout;
  // The last checkpoint is complete: the parameters are not needed any more.
  if (phase == Phase::kGathering || phase == Phase::kFinalScore || phase == Phase::kEnded) return;
  RollBack(absl::StrCat(name, orderly ? " has left" : " is lost"));
}

void Chief::Impl::OnConfigured(ServerState& server, const Envelope& envelope, const Configured& configured) {
  if (configured.server != PlaceOf(server) || phase != Phase::kConfiguring) return;
  if (configured.version.generation != generation || envelope.layout != layout) return;
  if (server.configured) return;
  server.configured = true;
  server.owned_floats = configured.owned_floats;
  server.state = "serving";
  if (configured.owned_floats == 0) {
    Say(absl::StrCat(server.name, " owns nothing: there are more servers than stripes of parameters"),
        LogLevel::kWarning);
  }
  if (!std::all_of(servers.begin(), servers.end(), [](const ServerState& s) { return s.configured; })) return;
  phase = Phase::kRunning;
  phase_deadline = kNever;
  if (!first_grant_done) {  // once, however often the parameters are divided anew meanwhile
    Await(options.experiment.membership.join_timeout);
    if (first_grant_by == kNever) first_grant_by = phase_deadline;
    phase_deadline = std::min(phase_deadline, first_grant_by);
  }
  Say(absl::StrCat("all ", servers.size(), " servers hold version ", ToString(version())));
  const bool went_on = continuing || switching;
  continuing = switching = false;
  if (stop_wanted) {
    Stop(*std::exchange(stop_wanted, std::nullopt));
  } else if (!durable || (went_on && checkpoint_due && !training_complete())) {
    StartCheckpoint();
  }
  // Servers may have other addresses now.
  for (const auto& [incarnation, worker] : workers) {
    if (worker.session != SessionId{}) ResumeWorkerSession(worker);
  }
  std::map<SessionId, Join> joins = std::exchange(waiting, {});
  for (auto& [session, join] : joins) OnWorkerJoin(session, join);
}

}  // namespace evenkeel
