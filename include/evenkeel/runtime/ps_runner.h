// Runs a parameter server: joins the chief, serves workers, until the job ends.
//
// Threading: RunPs blocks its caller; it starts an apply thread, a snapshot thread and `threads - 1` helpers, and ends
//            them before it returns.
// Ownership: nothing is kept after the return; transport, storage and clock outlive the call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/stop.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

struct PsOptions {
  std::string name;             // "ps:0"
  int index = -1;               // in the cluster file; -1: unlisted
  std::string chief_address;    // "host:port"
  std::string listen_address;   // "host:port"; port 0: any free one
  std::string advertised_host;  // where workers reach us; empty: listen_address's host
  std::string experiment_json;  // canonical
  std::string spec_hash;
  std::string model_dir;  // where this host sees it; empty: as the chief names it
  Duration chief_timeout = std::chrono::seconds(60);
  Duration connect_timeout = std::chrono::seconds(5);
  Duration drain = std::chrono::seconds(2);  // for what is queued when the job ends
  // After a stop request: serves on for so long, while its stripes move to other servers; and a chief that was told to
  // stop too (Ctrl-C in a terminal reaches all) needs its servers for the last checkpoint. The chief's leave to go, or
  // the job's end, cuts it short.
  Duration stop_grace = std::chrono::seconds(5);
  int threads = 1;
  std::uint64_t nonce = 0;  // 0: drawn
  // Its stripes are with others, and the job goes on without it; what follows is the end of the process. May be null.
  std::function<void()> on_left;
};

// A fenced server (its lease ended, as after a long pause) joins again as a new incarnation, which holds nothing.
// Returns when the job has ended (ok: finished or stopped), when `stop` is requested (ok, after stop_grace and taking
// leave), or with the error that ended it: kDeadlineExceeded names the chief and since when it has been away;
// kPermissionDenied: the chief refused this server; kFailedPrecondition: it was fenced time after time; kAborted: the
// job failed; kInvalidArgument, kUnavailable: the address.
absl::Status RunPs(const PsOptions& options, Transport& transport, Storage& storage, const Clock& clock,
                   StopSource& stop);

}  // namespace evenkeel
