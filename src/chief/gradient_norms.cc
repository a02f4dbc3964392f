// What servers measure of committed gradients, and what the global batch makes of it.
//
// A commit's norms come with the servers' Applied. In bsp all of them are here before the next set is sealed, so that
// each commit learns from the same ones before it in every run.
#include <algorithm>
#include <cmath>

#include "chief/chief_impl.h"

namespace evenkeel {

void Chief::Impl::ExpectNorms(const Decision& decision) {
  if (!noise) return;
  MeasuredStep step{decision.version, {}, {}};
  for (const CommittedUpdate& update : decision.updates) {
    step.updates.emplace_back(update.update.incarnation, TotalSize(update.positions));
  }
  step.by_server.resize(servers.size());
  measured.push_back(std::move(step));
}

void Chief::Impl::OnNorms(const ServerState& server, const Applied& applied) {
  const auto step = std::find_if(measured.begin(), measured.end(),
                                 [&](const MeasuredStep& s) { return s.version == applied.version; });
  if (step == measured.end() || applied.squared_sums.size() != step->updates.size() + 1) return;
  const std::size_t place = PlaceOf(server).value();
  if (place < step->by_server.size()) step->by_server[place] = applied.squared_sums;
}

// From the commits that every server has applied, in order. Those of which a server's word was lost teach nothing.
void Chief::Impl::LearnNorms() {
  CommitNumber slowest = commit;
  for (const ServerState& server : servers) slowest = std::min(slowest, server.applied);
  for (; !measured.empty() && measured.front().version.commit <= slowest; measured.pop_front()) {
    const MeasuredStep& step = measured.front();
    std::vector<double> sums(step.updates.size() + 1, 0.0);
    bool whole = true;
    for (const std::vector<double>& told : step.by_server) {
      whole = whole && told.size() == sums.size();
      for (std::size_t i = 0; whole && i < sums.size(); ++i) sums[i] += told[i];
    }
    if (!whole) continue;
    std::vector<UpdateNorm> norms;
    std::int64_t samples_in_step = 0;
    for (std::size_t i = 0; i < step.updates.size(); ++i) {
      const auto& [incarnation, count] = step.updates[i];
      norms.push_back({count, sums[i]});
      samples_in_step += count;
      const WorkerState* worker = workers.Find(incarnation);
      if (worker == nullptr) continue;
      const double norm = std::sqrt(sums[i]) / static_cast<double>(count);
      workers.Change(*worker, [norm](WorkerState& w) { w.gradient_norm = norm; });
    }
    gradient_norm = std::sqrt(sums.back()) / static_cast<double>(samples_in_step);
    noise->Observe(norms, sums.back());
  }
  if (!noise || global_batch.fixed()) return;
  const std::int64_t ceiling =
      batches ? batches->Holds() : options.experiment.batching.max_batch_size * workers.training();
  if (std::string reason = global_batch.Follow(*noise, ceiling); !reason.empty()) Say(std::move(reason));
}

}  // namespace evenkeel
