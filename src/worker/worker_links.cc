// Streams to the servers of the layout that rules, and ahead of it to those of one to come.
#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/plural.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/timeline.h"
#include "worker/worker_impl.h"

namespace evenkeel::worker_internal {
namespace {

std::string NameOfServer(const ServerAddress& server, std::size_t place) {
  return server.name.empty() ? absl::StrCat("ps:", place) : server.name;
}

}  // namespace

// The link of a server that serves on, or that was connected to ahead, which it is taken from. None: it is not up.
std::unique_ptr<Worker::Link> Worker::TakeLink(std::vector<std::unique_ptr<Link>>& links, const ServerAddress& server) {
  const auto at = std::find_if(links.begin(), links.end(), [&](const std::unique_ptr<Link>& link) {
    return link->server == server && link->stream->up();
  });
  if (at == links.end()) return nullptr;
  std::unique_ptr<Link> link = std::move(*at);
  links.erase(at);
  return link;
}

// Links to all servers of a layout, and memory that is divided as it says. Whoever serves on keeps its stream, but
// where this worker is another incarnation.
absl::Status Worker::Divide(const Welcome& welcome, bool renewed) {
  const TimelineBlock timeline("step", absl::StrCat("layout ", layout_.value()));
  std::vector<std::unique_ptr<Link>> former = std::exchange(links_, {});
  std::move(coming_.begin(), coming_.end(), std::back_inserter(former));
  DropComing();
  {
    MutexLock lock(mutex_);
    for (const auto& link : former) link->place = kNoPlace;
    while (placing_ > 0) none_placing_.Wait(mutex_);  // then nobody writes into the buffers any more
  }
  // A new life mostly finds the layout that the one before it had.
  if (!buffers_ || buffers_->layout().servers() != welcome.servers.size()) {
    EK_ASSIGN_OR_RETURN(ParameterLayout layout,
                        ParameterLayout::Create(welcome.tensors, welcome.bucket_bytes,
                                                static_cast<std::uint32_t>(welcome.servers.size())));
    if (buffers_) {
      buffers_->Divide(std::move(layout));
    } else {
      EK_ASSIGN_OR_RETURN(buffers_, StepBuffers::Create(std::move(layout), options_.experiment.train.wire_dtype));
      EK_RETURN_IF_ERROR(model_->Bind(buffers_->ParameterPointers(), buffers_->GradientPointers()));
    }
  }
  for (std::size_t i = 0; i < welcome.servers.size(); ++i) {
    std::unique_ptr<Link> link = renewed ? nullptr : TakeLink(former, welcome.servers[i]);
    links_.push_back(link ? std::move(link) : MakeLink(welcome.servers[i], i));
    links_.back()->stream->SetLayout(layout_);
  }
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < links_.size(); ++i) links_[i]->place = static_cast<int>(i);
  KeepWhatWasPulled();
  restage_at_.assign(links_.size(), kNever);
  missing_.clear();
  return absl::OkStatus();
}

// Parameters that are here whole, of one version, are the same however they are divided. Nothing else that came of the
// former layout counts.
void Worker::KeepWhatWasPulled() {
  const bool one = std::adjacent_find(pulled_version_.begin(), pulled_version_.end(), std::not_equal_to<>()) ==
                   pulled_version_.end();
  const bool whole = !torn_pull_ && AllPulled() && one;
  if (!whole) {
    torn_pull_ = true;
    asked_ahead_.reset();
  }
  pulled_version_.assign(links_.size(), whole && !pulled_version_.empty() ? pulled_version_[0] : Version{});
  pulled_.assign(links_.size(), whole);
  pull_at_.assign(links_.size(), kNever);
  stripe_here_.assign(links_.size() * stripes_missing_.size(), whole);
}

void Worker::DropComing() {
  coming_.clear();
  layout_to_come_.reset();
}

bool Worker::AllUp() const { return !links_.empty() && AreUp(links_); }

bool Worker::AreUp(const std::vector<std::unique_ptr<Link>>& links) {
  return std::all_of(links.begin(), links.end(), [](const auto& link) { return link->stream->up(); });
}

void Worker::TellDataPaths() {
  std::string ways;
  for (const auto& link : links_) absl::StrAppend(&ways, ways.empty() ? "" : ",", link->stream->way());
  if (ways == data_paths_ || !AllUp()) return;
  session_->SetDataPaths(ways);
  data_paths_ = std::move(ways);
}

void Worker::SayReady() {
  {
    MutexLock lock(mutex_);
    if (!ready_due_ || !AllUp()) return;
    ready_due_ = false;
  }
  // Where the stream is down, the next Welcome makes it due again.
  (void)session_->Send(Ready{timing_.fixed_seconds, timing_.seconds_per_sample, MemorySamples()});
}

std::unique_ptr<Worker::Link> Worker::MakeLink(const ServerAddress& server, std::size_t place) {
  auto made = std::make_unique<Link>();
  Link* const link = made.get();
  link->server = server;
  ServerLink::Callbacks calls;
  calls.envelope = [this] { return session_->envelope(); };
  calls.on_up = [this, link] {
    MutexLock lock(mutex_);
    if (link->place != kNoPlace) {
      const auto index = static_cast<std::size_t>(link->place);
      const TimePoint now = clock_.Now();
      if (!pulled_[index]) pull_at_[index] = now;
      restage_at_[index] = now;
    }
    NotifyLoop();
  };
  calls.on_down = [this] {
    MutexLock lock(mutex_);
    NotifyLoop();
  };
  calls.on_message = [this, link](Message message, const PayloadIn& payload) {
    OnServerMessage(*link, std::move(message), payload);
  };
  calls.on_refused = [this, link](const absl::Status& status) {
    {
      MutexLock lock(mutex_);
      if (link->place == kNoPlace) return;  // should it come to that layout, a fresh link hears the same
    }
    Fail(status);
  };
  link->stream = std::make_unique<ServerLink>(NameOfServer(server, place), server.address, options_.name, transport_,
                                              clock_, std::move(calls));
  link->stream->SetLayout(layout_);
  return made;
}

// A server that was lost has a replacement, at the same address or another; a restarted chief has numbered all anew; or
// the parameters are divided otherwise.
absl::Status Worker::FollowServers() {
  Welcome now;
  bool renewed = false, divided = false;
  {
    MutexLock lock(mutex_);
    if (!servers_moved_ || links_.empty()) return absl::OkStatus();
    servers_moved_ = false;
    now = *welcome_;
    renewed = std::exchange(renewed_, false);
    divided = std::exchange(layout_, welcome_layout_) != welcome_layout_ || now.servers.size() != links_.size();
  }
  if (divided) {
    LogInfo(absl::StrCat("layout ", layout_.value(), ": ", Counted(now.servers.size(), "server")));
    return Divide(now, renewed);
  }
  DropComing();  // a Welcome takes them back
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const ServerAddress& server = now.servers[i];
    if (server.incarnation == links_[i]->server.incarnation && !renewed) continue;
    if (server.address != links_[i]->server.address) {
      LogInfo(absl::StrCat(NameOfServer(server, i), " is now at ", server.address));
    }
    links_[i]->stream->Close();
    std::unique_ptr<Link> link = MakeLink(server, i);
    MutexLock lock(mutex_);
    link->place = static_cast<int>(i);
    links_[i].swap(link);
  }
  return absl::OkStatus();
}

bool Worker::LayoutToComeDue() const {
  if (links_.empty()) return false;
  return connect_ahead_.has_value() || (layout_to_come_ && AreUp(coming_));
}

// While training goes on, so that nobody waits for it between the last commit in this layout and the first in that one.
void Worker::FollowLayoutToCome() {
  if (links_.empty()) return;
  std::optional<ConnectAhead> order;
  {
    MutexLock lock(mutex_);
    if (servers_moved_) return;  // the order came after that Welcome
    order = std::exchange(connect_ahead_, std::nullopt);
  }
  if (order) {
    std::vector<std::unique_ptr<Link>> former = std::exchange(coming_, {});
    for (std::size_t i = 0; i < order->servers.size(); ++i) {
      const ServerAddress& server = order->servers[i];
      if (std::any_of(links_.begin(), links_.end(), [&](const auto& link) { return link->server == server; })) continue;
      std::unique_ptr<Link> link = TakeLink(former, server);
      coming_.push_back(link ? std::move(link) : MakeLink(server, i));
    }
    layout_to_come_.reset();
    if (!order->servers.empty()) layout_to_come_ = order->layout;
  }
  for (const auto& link : coming_) link->stream->Poll();
  if (!layout_to_come_ || !AreUp(coming_)) return;
  (void)session_->Send(ConnectedAhead{*std::exchange(layout_to_come_, std::nullopt)});
}

}  // namespace evenkeel::worker_internal
