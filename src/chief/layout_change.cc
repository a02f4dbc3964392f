// Which servers share the parameters: seats of lost ones are given away; stripes move between two commits when servers
// come, leave or are asked for.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "chief/chief_impl.h"
#include "evenkeel/core/plural.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

// After a move that was given up; doubled each time that it fails with the same servers: one that cannot succeed must
// not take half of the training time.
constexpr Duration kMovePause = std::chrono::seconds(2);
constexpr Duration kLongestMovePause = std::chrono::minutes(5);
constexpr std::uint32_t kMaxServers = 4096;
// Up to so many, some may own nothing: a small model is no reason to refuse a small cluster.
constexpr std::uint32_t kMaxIdleServers = 16;
// Orders are not logged.
constexpr char kAskAgain[] = "; a chief that is started again before that must be asked again";

std::vector<std::string> NamesIn(const LayoutRecord& record) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < record.servers.size(); ++i) {
    const std::string& name = record.servers[i].name;
    names.push_back(name.empty() ? absl::StrCat("ps:", i) : name);
  }
  return names;
}

}  // namespace

// A job that had not ended goes on with the servers that it had: fewer than the cluster file names may be an order's
// doing, so the others wait for one. Else that file names them all.
void Chief::Impl::TakeUpLayout() {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < options.servers; ++i) names.push_back(absl::StrCat("ps:", i));
  layout = newest_layout = LayoutNumber(1);
  if (log.last_layout) {
    had_layout = true;
    layout = newest_layout = log.last_layout->layout;
    const std::vector<std::string> former = NamesIn(*log.last_layout);
    if (!log.end) {
      if (names.size() > former.size()) {
        Say(absl::StrCat("the job goes on with its ", Counted(former.size(), "server"), "; the cluster names ",
                         names.size(), ": further ones stand by until `evenkeel scale`"));
      }
      names = former;
    } else if (names != former) {
      NextLayout();
    }
  }
  servers.resize(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) servers[i].name = names[i];
}

void Chief::Impl::NextLayout() { layout = newest_layout = newest_layout.Next(); }

ServerState* Chief::Impl::FindServer(Incarnation incarnation) {
  for (auto* list : {&servers, &spares}) {
    for (ServerState& server : *list) {
      if (server.incarnation == incarnation) return &server;
    }
  }
  return nullptr;
}

ServerState* Chief::Impl::FindServer(const std::string& name) {
  for (auto* list : {&servers, &spares}) {
    for (ServerState& server : *list) {
      if (server.name == name) return &server;
    }
  }
  return nullptr;
}

// Before all restore: spares take the places of lost servers; whoever is awaited too long is not waited for, while
// others are there; whoever wants to go takes no place.
void Chief::Impl::SeatServers() {
  auto missing = [](const ServerState& server) { return server.incarnation == Incarnation{}; };
  const bool late = had_layout && now >= replace_until;
  bool changed = false;
  for (ServerState& server : servers) {
    if (!missing(server) || !(server.lost || late)) continue;
    auto spare = std::find_if(spares.begin(), spares.end(), [](const ServerState& candidate) {
      return !candidate.leaving && candidate.session != SessionId{};
    });
    if (spare == spares.end()) break;
    Say(absl::StrCat(spare->name, " takes the place of ", server.name));
    server = std::move(*spare);
    spares.erase(spare);
    changed = true;
  }
  if (late && !std::all_of(servers.begin(), servers.end(), missing)) {
    for (const ServerState& server : servers) {
      if (!missing(server)) continue;
      Say(absl::StrCat(server.name,
                       " has not come back within membership.ps_replacement_timeout_ms: going on without it"),
          LogLevel::kWarning);
      changed = true;
    }
    std::erase_if(servers, missing);
  }
  const auto leaving = std::count_if(servers.begin(), servers.end(), [](const ServerState& s) { return s.leaving; });
  const bool gathered = std::none_of(servers.begin(), servers.end(), missing);
  if (had_layout && gathered && !recovering && leaving > 0 && leaving < static_cast<std::ptrdiff_t>(servers.size())) {
    for (ServerState& server : std::exchange(servers, {})) {
      if (server.leaving) {
        LetServerGo(std::move(server));
      } else {
        servers.push_back(std::move(server));
      }
    }
    changed = true;
  }
  if (changed) NextLayout();
}

// Nullopt: the layout that there is, or none that is possible now.
std::optional<std::vector<Incarnation>> Chief::Impl::WantedLayout() const {
  const std::size_t count = target_servers.value_or(static_cast<std::uint32_t>(servers.size()));
  std::vector<Incarnation> wanted, present;
  bool someone_leaves = false;
  for (const ServerState& server : servers) {
    present.push_back(server.incarnation);
    someone_leaves |= server.leaving;
    if (!server.leaving && wanted.size() < count) wanted.push_back(server.incarnation);
  }
  for (const ServerState& spare : spares) {
    if (wanted.size() < count && !spare.leaving && spare.session != SessionId{}) wanted.push_back(spare.incarnation);
  }
  if (wanted.empty() || wanted == present) return std::nullopt;
  if (!someone_leaves && wanted.size() < count) return std::nullopt;  // not all that were asked for have joined
  return wanted;
}

// Looks whether the layout is to be another, and does the next thing for it.
void Chief::Impl::ChangeLayout() {
  const bool leaving = std::any_of(servers.begin(), servers.end(), [](const ServerState& s) { return s.leaving; });
  std::optional<std::vector<Incarnation>> wanted;
  if (leaving || target_servers) wanted = WantedLayout();
  if (move && move->filling && wanted == move->members) {
    if (move->filled.size() == move->members.size()) SwitchLayout();
    return;
  }
  layout_next = layout_due = false;
  if (move && wanted != move->members) {
    DropMove();
    Say(absl::StrCat("layout ", newest_layout.value(), " is not wanted any more"));
  }
  if (!move && target_servers == servers.size()) target_servers.reset();
  if (training_complete()) return;
  if (!wanted) {
    if (leaving && NoServerStays()) LetAllServersGo();
    return;
  }
  if (!move) {
    if (now >= (NamesOf(*wanted) == failed_move ? next_failed_move : next_move)) BeginMove(*std::move(wanted));
    return;
  }
  if (!move->ready) {
    if (move->prepared.size() < move->members.size() || !WorkersConnectedAhead()) return;
    move->ready = true;
    move->deadline = now + options.experiment.membership.ps_replacement_timeout;
  }
  layout_next = true;
  layout_due = !checkpoint;  // training goes on until that is complete
  const bool connected =
      std::none_of(servers.begin(), servers.end(), [](const ServerState& s) { return s.session == SessionId{}; });
  if (layout_due && undecided.updates().empty() && unapplied.empty() && connected) FillPlaces();
}

bool Chief::Impl::NoServerStays(const std::string& without) const {
  const auto stays = [&](const ServerState& server) {
    return !server.leaving && server.incarnation != Incarnation{} && server.name != without;
  };
  return std::none_of(servers.begin(), servers.end(), stays) && std::none_of(spares.begin(), spares.end(), stays);
}

// Nobody is there to take their stripes: a checkpoint takes what was trained, and nothing binds until others have come.
void Chief::Impl::LetAllServersGo() {
  layout_next = true;
  const bool taking = checkpoint && checkpoint->manifest.version == version();
  layout_due = !checkpoint || taking;  // training goes on until an earlier one is complete
  if (checkpoint || !undecided.updates().empty() || !unapplied.empty()) return;
  if (!durable || durable->version != version()) {
    if (now < next_farewell) return;
    next_farewell = now + kMovePause;  // of the next attempt, should this one fail
    Say("all servers leave and none is there to take their stripes: a checkpoint keeps what was trained");
    return StartCheckpoint();
  }
  for (ServerState& server : servers) {
    if (server.session == SessionId{} || std::exchange(server.let_go, true)) continue;
    Send(server.session, LeaveNow{absl::StrCat("checkpoint ", CheckpointName(durable->version), " has its stripes")});
  }
}

void Chief::Impl::BeginMove(std::vector<Incarnation> members) {
  newest_layout = newest_layout.Next();
  move.emplace();
  move->layout = newest_layout;
  move->members = std::move(members);
  move->deadline = now + options.experiment.membership.ps_replacement_timeout;
  move->connect_until = now + options.experiment.membership.ps_replacement_timeout / 2;
  std::vector<std::string> names;
  for (Incarnation member : move->members) names.push_back(FindServer(member)->name);
  Say(absl::StrCat("layout ", move->layout.value(), " is prepared: ", absl::StrJoin(names, ", ")));
  for (Incarnation member : move->members) SendPrepare(*FindServer(member));
  for (const auto& [incarnation, worker] : workers) SendConnectAhead(worker);
}

// So that no step waits for it. Training goes on meanwhile; whoever cannot does not hold up the move for ever.
bool Chief::Impl::WorkersConnectedAhead() {
  std::vector<std::string> late;
  for (const auto& [incarnation, worker] : workers) {
    if (!worker.rank || worker.session == SessionId{} || move->connected.contains(incarnation)) continue;
    if (now < move->connect_until) return false;
    move->connected.insert(incarnation);  // said once
    late.push_back(worker.name);
  }
  if (!late.empty()) {
    Say(absl::StrCat("layout ", move->layout.value(), " does not wait any more for streams of ",
                     absl::StrJoin(late, ", "), " to its servers"),
        LogLevel::kWarning);
  }
  return true;
}

void Chief::Impl::SendConnectAhead(const WorkerState& worker) {
  ConnectAhead connect{move->layout, {}};
  for (Incarnation member : move->members) {
    const ServerState* server = FindServer(member);
    if (server == nullptr) return;  // lost, and the move goes with it
    connect.servers.push_back({server->address, server->incarnation, server->name});
  }
  Send(worker.session, std::move(connect));
}

void Chief::Impl::OnConnectedAhead(const WorkerState& worker, const ConnectedAhead& connected) {
  if (move && connected.layout == move->layout) move->connected.insert(worker.incarnation);
}

void Chief::Impl::FillPlaces() {
  move->filling = true;
  move->deadline = now + options.experiment.membership.ps_replacement_timeout;
  for (Incarnation member : move->members) Send(FindServer(member)->session, Fill{move->layout, version()});
}

bool Chief::Impl::AwaitedInMove(const ServerState& server) const {
  return move && !move->done().contains(server.incarnation) &&
         std::count(move->members.begin(), move->members.end(), server.incarnation) > 0;
}

void Chief::Impl::SendPrepare(const ServerState& server) {
  const auto place = std::find(move->members.begin(), move->members.end(), server.incarnation);
  if (place == move->members.end()) return;
  Prepare prepare;
  prepare.layout = move->layout;
  prepare.server = ServerIndex(static_cast<std::uint32_t>(place - move->members.begin()));
  prepare.servers = static_cast<std::uint32_t>(move->members.size());
  prepare.tensors = tensors;
  prepare.bucket_bytes = options.experiment.train.bucket_bytes;
  prepare.optimizer = options.experiment.train.optimizer;
  prepare.measure_gradients = noise.has_value();
  prepare.stage_slots = StageSlots(move->members.size());
  prepare.sources = ServerAddresses();
  Send(server.session, std::move(prepare));
}

void Chief::Impl::OnPrepared(const ServerState& server, const Prepared& prepared) {
  if (!move || prepared.layout != move->layout) return;
  if (!prepared.error.empty()) return FailMove(absl::StrCat(server.name, ": ", prepared.error));
  const auto& members = move->members;
  if (std::find(members.begin(), members.end(), server.incarnation) == members.end()) return;
  move->prepared.insert(server.incarnation);
  if (!move->filling) return;
  move->pieces.erase(server.incarnation);
  Send(server.session, Fill{move->layout, version()});  // the former may have been lost
}

void Chief::Impl::OnFilled(const ServerState& server, const Filled& filled) {
  if (!move || !move->filling || filled.layout != move->layout) return;
  if (!filled.error.empty()) return FailMove(absl::StrCat(server.name, ": ", filled.error));
  if (AwaitedInMove(server)) move->filled.insert(server.incarnation);
}

// Training stands still meanwhile, but what takes its time over a slow link is no reason to give the move up.
void Chief::Impl::OnPieces(const ServerState& server, std::int64_t pieces) {
  if (!move || !move->filling || !AwaitedInMove(server)) return;
  std::int64_t& here = move->pieces[server.incarnation];
  if (pieces <= here) return;
  here = pieces;
  move->deadline = now + options.experiment.membership.ps_replacement_timeout;
}

// From this record on the new layout rules.
void Chief::Impl::SwitchLayout() {
  const LayoutMove done = *std::exchange(move, std::nullopt);
  ForgetFailedMoves();
  std::vector<ServerState> next, released;
  for (Incarnation member : done.members) {
    ServerState* server = FindServer(member);
    const bool spare = !InLayout(*server);
    next.push_back(*server);
    server->incarnation = Incarnation{};
    if (spare) spares.erase(spares.begin() + (server - spares.data()));
  }
  for (ServerState& server : servers) {
    if (server.incarnation != Incarnation{}) released.push_back(std::move(server));
  }
  servers = std::move(next);
  layout = done.layout;
  layout_next = layout_due = false;
  if (target_servers == servers.size()) target_servers.reset();
  AppendLog(LayoutRecord{layout, generation, ServerAddresses()});
  actions.push_back(SyncLogAction{});
  switching = true;
  phase = Phase::kConfiguring;
  Await(options.experiment.membership.ps_timeout);
  for (ServerState& server : servers) {
    server.configured = false;
    server.applied = commit;
    BringUpServer(server);
  }
  for (ServerState& server : released) LetServerGo(std::move(server));
}

// The layout that rules goes on.
void Chief::Impl::DropMove() {
  for (Incarnation member : move->members) {
    if (const ServerState* server = FindServer(member)) Send(server->session, Abandon{move->layout});
  }
  for (const auto& [incarnation, worker] : workers) Send(worker.session, ConnectAhead{move->layout, {}});
  move.reset();
  layout_next = layout_due = false;
}

bool Chief::Impl::PartOfMove(Incarnation server) const {
  return move && std::find(move->members.begin(), move->members.end(), server) != move->members.end();
}

std::vector<std::string> Chief::Impl::NamesOf(const std::vector<Incarnation>& members) {
  std::vector<std::string> names;
  for (Incarnation member : members) {
    const ServerState* server = FindServer(member);
    names.push_back(server == nullptr ? "" : server->name);
  }
  return names;
}

void Chief::Impl::AbandonMove(const std::string& reason) {
  if (!move) return;
  Say(absl::StrCat("layout ", move->layout.value(), " is given up: ", reason), LogLevel::kWarning);
  DropMove();
  next_move = now + kMovePause;
}

// As AbandonMove, because it did not succeed.
void Chief::Impl::FailMove(const std::string& reason) {
  std::vector<std::string> names = NamesOf(move->members);
  failed_move_pause = names == failed_move ? std::min(2 * failed_move_pause, kLongestMovePause) : kMovePause;
  failed_move = std::move(names);
  next_failed_move = now + failed_move_pause;
  AbandonMove(absl::StrCat(reason, "; it is not tried again for ", ToSeconds(failed_move_pause), " s"));
}

// What failed before may not wait longer than what an order wants now.
void Chief::Impl::ForgetFailedMoves() {
  failed_move.clear();
  next_move = now;
}

void Chief::Impl::OnServerLeave(ServerState& server, const Leave& leave) {
  if (leave.after_ticket && InLayout(server)) {
    if (std::exchange(server.leaving, true)) return;
    ForgetFailedMoves();
    return Say(absl::StrCat(server.name, " wants to leave: ", leave.reason));
  }
  if (leave.after_ticket) {
    server.leaving = true;
    if (PartOfMove(server.incarnation)) AbandonMove(absl::StrCat(server.name, " leaves"));
    return Send(server.session, LeaveNow{leave.reason});
  }
  if (InLayout(server)) return LoseServer(server, leave.reason, /*orderly=*/true);
  EndSpare(server.incarnation, leave.reason, true);
}

// It holds nothing that counts.
void Chief::Impl::LetServerGo(ServerState server) {
  server.leaving = true;
  server.configured = false;
  Say(absl::StrCat(server.name, " is released"));
  Send(server.session, LeaveNow{"its stripes are with others"});
  spares.push_back(std::move(server));
}

// A server that is in no layout is gone.
void Chief::Impl::EndSpare(Incarnation incarnation, const std::string& reason, bool orderly) {
  const auto spare = std::find_if(spares.begin(), spares.end(),
                                  [&](const ServerState& candidate) { return candidate.incarnation == incarnation; });
  if (spare == spares.end()) return;
  leases.End(incarnation);
  ended_nonces.push_back(spare->nonce);
  if (ended_nonces.size() > kEndedNoncesKept) ended_nonces.pop_front();
  if (orderly) {
    actions.push_back(CloseAction{spare->session});
    Say(absl::StrCat(spare->name, " left: ", reason));
  } else {
    RefuseSession(spare->session, RefuseReason::kStaleIncarnation, absl::StrCat(spare->name, " is fenced: ", reason),
                  spare->session != SessionId{});
    Say(absl::StrCat(spare->name, " at ", spare->address, ", which held nothing, is lost: ", reason),
        LogLevel::kWarning);
  }
  const std::string gone = absl::StrCat(spare->name, " is gone");
  if (PartOfMove(incarnation)) move->filling ? FailMove(gone) : AbandonMove(gone);
  spares.erase(spare);
}

OrderReply Chief::Impl::OnDrainServer(const std::string& name) {
  ServerState* server = FindServer(name);
  if (server == nullptr || server->incarnation == Incarnation{}) {
    std::vector<std::string> names;
    for (const auto* list : {&servers, &spares}) {
      for (const ServerState& one : *list) {
        if (one.incarnation != Incarnation{}) names.push_back(one.name);
      }
    }
    const std::string there = names.empty() ? "none is here" : absl::StrCat("here are ", absl::StrJoin(names, ", "));
    return {false, absl::StrCat("there is no server '", name, "'; ", there), true};
  }
  if (!InLayout(*server)) {
    OnServerLeave(*server, Leave{"evenkeel drain", true});
    return {true, absl::StrCat(name, " leaves; it held nothing"), false};
  }
  if (NoServerStays(name)) {
    return {false, absl::StrCat(name, " is the last server; start another one first"), false};
  }
  ForgetFailedMoves();
  OnServerLeave(*server, Leave{"evenkeel drain", true});
  return {true, absl::StrCat(name, " leaves once its stripes have moved to others", kAskAgain), false};
}

OrderReply Chief::Impl::OnScale(std::uint32_t count) {
  if (phase == Phase::kEnded) return {false, "the job is over; everyone leaves", false};
  if (count < 1 || count > kMaxServers) {
    return {false, absl::StrCat(count, " servers are not possible; 1 to ", kMaxServers, " are"), false};
  }
  if (phase == Phase::kGathering && !had_layout && count != servers.size()) {
    return {false,
            absl::StrCat("the job has not begun: it waits for ", MissingMembers(),
                         "; the number of its servers can be changed once it trains"),
            false};
  }
  if (!tensors.empty()) {
    const auto possible = ParameterLayout::Create(tensors, options.experiment.train.bucket_bytes, count);
    if (!possible.ok()) return {false, std::string(possible.status().message()), false};
    std::uint32_t sharers = 0;
    for (std::uint32_t i = 0; i < count; ++i) sharers += possible->ServerFloats(ServerIndex(i)) > 0 ? 1 : 0;
    if (sharers < count && count > kMaxIdleServers) {
      return {false,
              absl::StrCat(Counted(count, "server"), ": the parameters have too few stripes; only ", sharers,
                           " would own any"),
              false};
    }
  }
  const std::string superseded =
      target_servers && *target_servers != count
          ? absl::StrCat("; the order of ", Counted(*target_servers, "server"), " is superseded")
          : "";
  target_servers.reset();
  if (move) target_servers = count;  // it may have to be called off
  ForgetFailedMoves();
  if (count == servers.size()) {
    return {true, absl::StrCat("the job has ", Counted(count, "server"), superseded), false};
  }
  target_servers = count;
  std::size_t ready = 0;
  for (const ServerState& spare : spares) ready += spare.leaving ? 0 : 1;
  const std::size_t here = servers.size() + ready;
  std::string text = absl::StrCat("the parameters move to ", Counted(count, "server"));
  if (here < count) {
    absl::StrAppend(&text, " once ", count - here, " more ", count - here == 1 ? "has" : "have", " joined; ", here,
                    here == 1 ? " is" : " are", " here");
  }
  return {true, absl::StrCat(text, superseded, kAskAgain), false};
}

}  // namespace evenkeel
