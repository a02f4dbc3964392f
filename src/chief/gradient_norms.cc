// What servers measure of committed gradients, and what the global batch makes of it.
//
// A commit's norms come with the servers' Applied. In bsp all of them are here before the next set is sealed, so that
// each commit learns from the same ones before it in every run.
#include <algorithm>
#include <cmath>
#include <utility>

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

// Nothing where a server's word is not here.
std::optional<StepNorms> Chief::Impl::NormsOf(const MeasuredStep& step) {
  std::vector<double> sums(step.updates.size() + 1, 0.0);
  for (const std::vector<double>& told : step.by_server) {
    if (told.size() != sums.size()) return std::nullopt;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += told[i];
  }
  StepNorms norms;
  for (std::size_t i = 0; i < step.updates.size(); ++i) norms.updates.push_back({step.updates[i].second, sums[i]});
  norms.squared_sum = sums.back();
  return norms;
}

void Chief::Impl::LearnNorms(const StepNorms& norms) {
  std::int64_t samples_in_step = 0;
  for (const UpdateNorm& update : norms.updates) samples_in_step += update.samples;
  gradient_norm = std::sqrt(norms.squared_sum) / static_cast<double>(samples_in_step);
  noise->Observe(norms.updates, norms.squared_sum);
}

// From the commits that every server has applied, in order. Those of which a server's word was lost teach nothing.
void Chief::Impl::LearnNorms() {
  if (!noise) return;
  if (restored_norms) LearnNorms(*std::exchange(restored_norms, std::nullopt));
  CommitNumber slowest = commit;
  for (const ServerState& server : servers) slowest = std::min(slowest, server.applied);
  for (; !measured.empty() && measured.front().version.commit <= slowest; measured.pop_front()) {
    const MeasuredStep& step = measured.front();
    const std::optional<StepNorms> norms = NormsOf(step);
    if (!norms) continue;
    if (checkpoint && checkpoint->manifest.version == step.version) checkpoint->norms = norms;
    for (std::size_t i = 0; i < step.updates.size(); ++i) {
      const WorkerState* worker = workers.Find(step.updates[i].first);
      if (worker == nullptr) continue;
      const UpdateNorm& update = norms->updates[i];
      const double norm = std::sqrt(update.squared_sum) / static_cast<double>(update.samples);
      workers.Change(*worker, [norm](WorkerState& w) { w.gradient_norm = norm; });
    }
    LearnNorms(*norms);
  }
  if (global_batch.fixed()) return;
  const std::int64_t training = workers.training();
  const std::int64_t floor = LeastBatch() * training;
  const std::int64_t ceiling = batches ? batches->Holds() : options.experiment.batching.max_batch_size * training;
  if (std::string reason = global_batch.Follow(*noise, floor, ceiling); !reason.empty()) Say(std::move(reason));
}

}  // namespace evenkeel
