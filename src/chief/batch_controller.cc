#include "chief/batch_controller.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr double kOtherMachine = 2;     // of what is remembered, as a worker times itself
constexpr double kTimedBatch = 32;      // at which the two are compared
constexpr int kUntaughtMax = 2;         // steps whose size is new, in a row, that teach nothing
constexpr double kNotable = 0.15;       // log of a change of speed that does not wait for the hold-off
constexpr double kComputingRate = 0.1;  // weight of the newest step in the part of it that computes
constexpr double kOutlier = 4;          // deviations of noise, beyond which a step tells no more of a drift

using Mode = BatchControllerOptions::Mode;

}  // namespace

void BatchController::AddWorker(Incarnation worker, std::string_view name, double declared_speed, StepTimeLine timed) {
  EK_CHECK(!index_.contains(worker));
  if (!(declared_speed > 0) || !std::isfinite(declared_speed)) declared_speed = 0;
  index_[worker] = workers_.size();
  Worker& added = workers_.emplace_back(worker, name, declared_speed, options_);
  if (const auto known = history_.find(name); known != history_.end()) {
    StepTimeModel::State state = known->second.record.model;
    // It times its computing alone; what is remembered has the messages in it.
    const double computing = (state.fixed + state.per_sample * kTimedBatch) * known->second.record.computing;
    const double ratio = timed.At(kTimedBatch) / computing;
    const bool other_machine = timed.per_sample > 0 && std::abs(std::log(ratio)) > std::log(kOtherMachine);
    if (other_machine) {
      for (double* seconds : {&state.fixed, &state.per_sample, &state.prior_fixed, &state.prior_deviation}) {
        *seconds *= ratio;
      }
    }
    added.model.Restore(state);
    if (!other_machine) added.throughput.Restore(known->second.record.ceiling);
  } else if (timed.per_sample > 0 && timed.fixed >= 0) {
    added.model.Assume(timed);
  }
  briefs_.emplace_back().id = worker;
  ++unmeasured_;
  TakeBrief(briefs_.size() - 1);
  members_changed_ = true;
}

void BatchController::RemoveWorker(Incarnation worker) {
  const auto found = index_.find(worker);
  if (found == index_.end()) return;
  const std::size_t at = found->second;
  const Worker& leaving = workers_[at];
  if (leaving.model.observations() > 0) {
    Remember({leaving.name, leaving.model.Save(), leaving.throughput.ceiling(), briefs_[at].computing});
  }
  if (!briefs_[at].measured) --unmeasured_;
  workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(at));
  briefs_.erase(briefs_.begin() + static_cast<std::ptrdiff_t>(at));
  index_.erase(found);
  for (std::size_t i = at; i < workers_.size(); ++i) index_[workers_[i].id] = i;
  members_changed_ = true;
}

void BatchController::SetCeiling(Incarnation worker, std::int64_t batch) {
  const std::ptrdiff_t at = Find(worker);
  if (at >= 0) briefs_[static_cast<std::size_t>(at)].memory_ceiling = std::max<std::int64_t>(batch, 0);
}

std::ptrdiff_t BatchController::Find(Incarnation worker) const {
  const auto found = index_.find(worker);
  return found == index_.end() ? -1 : static_cast<std::ptrdiff_t>(found->second);
}

std::int64_t BatchController::GivenCeiling(const Brief& brief) const {
  const std::int64_t most = std::max<std::int64_t>(options_.max_batch_size, 0), memory = brief.memory_ceiling;
  return most > 0 && memory > 0 ? std::min(most, memory) : std::max(most, memory);
}

std::int64_t BatchController::Holds() const {
  std::int64_t sum = 0;
  for (const Brief& brief : briefs_) {
    const std::int64_t ceiling = GivenCeiling(brief);
    if (ceiling == 0) return 0;
    sum += ceiling;
  }
  return sum;
}

void BatchController::TakeBrief(std::size_t at) {
  const Worker& worker = workers_[at];
  Brief& brief = briefs_[at];
  brief.learnt_ceiling = worker.throughput.ceiling();
  brief.belief = worker.model.belief();
  brief.drift = FactorOf(worker);
  brief.in_question = worker.far_off != 0;
  brief.noise_squares = worker.model.residual_squares();
  brief.noise_steps = worker.model.residual_weight();
  if (brief.measured || worker.model.observations() == 0) return;
  brief.measured = true;
  if (--unmeasured_ == 0) Raise("first steps are measured");
}

double BatchController::FactorOf(const Worker& worker) const {
  if (!drift_.follows()) return worker.pace.factor();
  // Whether a step that was far off is a change is told by the next.
  return drift_.Factor(worker.far_off != 0 ? worker.levels_before : worker.levels);
}

void BatchController::Remember(State::Record record) {
  const auto found = history_.find(record.name);
  if (found == history_.end() && history_.size() >= options_.history_max) {
    if (options_.history_max == 0) return;
    history_.erase(std::min_element(history_.begin(), history_.end(),
                                    [](const auto& a, const auto& b) { return a.second.order < b.second.order; }));
  }
  std::string name = record.name;
  history_.insert_or_assign(std::move(name), Memory{history_order_++, std::move(record)});
}

void BatchController::Observe(Incarnation worker, std::int64_t batch, double seconds, bool first_of_size,
                              double computing) {
  const std::ptrdiff_t found = Find(worker);
  if (found < 0 || batch <= 0 || !(seconds > 0) || !std::isfinite(seconds)) return;
  const auto at = static_cast<std::size_t>(found);
  Worker& learner = workers_[at];
  if (computing > 0) {
    Brief& brief = briefs_[at];
    const double rate = brief.measured ? kComputingRate : 1;
    brief.computing += rate * (std::min(computing, 1.0) - brief.computing);
  }
  learner.model.AssumeNoise(noise_squares_, noise_steps_);
  if (!Teaches(learner, batch, seconds, first_of_size)) return TakeBrief(at);
  if (batch == briefs_[at].batch && (!first_of_size || learner.untaught > kUntaughtMax)) briefs_[at].untried = false;
  if (options_.mode == Mode::kProportional && batch == briefs_[at].batch) Smooth(learner, batch, seconds);
  if (options_.rates && learner.model.settled()) {
    learner.pace.Learn(seconds / learner.model.Predict(static_cast<double>(batch)));
  }
  switch (learner.throughput.Observe(batch, seconds, learner.model)) {
    case ThroughputCeiling::Verdict::kHoldBack:  // the line waits; a level that is followed does not
      if (learner.model.settled()) {
        learner.levels.Learn(std::log(seconds / learner.model.Predict(static_cast<double>(batch))));
      }
      return TakeBrief(at);
    case ThroughputCeiling::Verdict::kSuspected:
      TakeBrief(at);
      Raise(absl::StrFormat("%s loses throughput at %d samples, ceiling %d", learner.name, batch,
                            learner.throughput.ceiling()));
      return;
    case ThroughputCeiling::Verdict::kRefuted:
      Raise(absl::StrFormat("%s is slower at any batch, ceiling gone", learner.name));
      break;
    case ThroughputCeiling::Verdict::kLearn:
      break;
  }
  Learn(learner, batch, seconds);
  TakeBrief(at);
}

void BatchController::Learn(Worker& learner, std::int64_t batch, double seconds) {
  StepTimeModel& model = learner.model;
  const auto size = static_cast<double>(batch);
  const bool drifts = model.settled(), follows = drift_.follows();
  const double before = drifts ? model.Predict(size) : 0;
  const double log_ratio = drifts ? std::log(seconds / before) : 0;
  if (follows && drifts && FarOff(learner, log_ratio)) return;
  learner.far_off = 0;  // also where nothing is followed any more
  // The line is what a step takes on the level that is followed.
  const double level = follows ? learner.levels.newest() : 0;
  const double outlier = kOutlier * model.TestNoise();
  const std::optional<double> ratio = model.Observe(batch, seconds * std::exp(-level));
  if (ratio && std::abs(std::log(*ratio)) > kNotable) {
    Raise(*ratio > 1 ? absl::StrFormat("%s is %.2f times slower", learner.name, *ratio)
                     : absl::StrFormat("%s is %.2f times faster", learner.name, 1 / *ratio));
  }
  if (ratio || !drifts) {
    learner.levels = {};
    learner.pace = {};
    if (ratio && follows) learner.levels.Shift(std::log(seconds / model.Predict(size)));
    return;
  }
  drift_.Score(learner.levels, log_ratio, outlier);
  learner.levels.Learn(log_ratio);
  learner.levels.Shift(std::log(before / model.Predict(size)));
}

// A step far off the level that is followed is a change or nothing, and says nothing of the line: the batch that
// follows would be taken for the cause. The second in a row on the same side is a change; where none comes, the level
// is as it was before.
bool BatchController::FarOff(Worker& learner, double log_ratio) {
  const double outlier = kOutlier * learner.model.TestNoise();
  const double was_off = std::exchange(learner.far_off, 0);
  if (was_off != 0) {
    const double off = log_ratio - learner.levels_before.newest();
    const bool again = off * was_off > 0 && std::abs(off) > outlier;
    if (again) drift_.Score(learner.levels, log_ratio, outlier);
    learner.levels = again ? StepTimeDrift::Levels{} : learner.levels_before;
    if (again) learner.levels.Shift(log_ratio);
    if (again) return true;
  }
  const double off = log_ratio - learner.levels.newest();
  if (std::abs(off) <= outlier) return false;
  drift_.Score(learner.levels, log_ratio, outlier);
  learner.far_off = off;
  learner.levels_before = learner.levels;
  learner.levels.Learn(log_ratio);
  return true;
}

void BatchController::Smooth(Worker& worker, std::int64_t batch, double seconds) {
  if (worker.smoothed_steps++ == 0) worker.smoothed_seconds = seconds;
  worker.smoothed_seconds += options_.smoothing * (seconds - worker.smoothed_seconds);
  worker.rate = static_cast<double>(batch) / worker.smoothed_seconds;
}

void BatchController::Raise(std::string event) {
  event_ = std::move(event);
  event_steps_ = 0;
}

// What a step at a new size proves: that this worker is no slower than that. By how much the next one at that size is
// faster, is what a change costs: a prediction may be wrong there.
bool BatchController::Teaches(Worker& worker, std::int64_t batch, double seconds, bool first_of_size) {
  if (!first_of_size) {
    if (worker.first_batch == batch) {
      first_of_size_seconds_ = std::max({first_of_size_seconds_, worker.first_seconds - seconds, 0.0});
    }
    worker.first_batch = 0;
    worker.untaught = 0;
    return true;
  }
  worker.first_batch = batch;
  worker.first_seconds = seconds;
  if (options_.mode != Mode::kModel) return true;
  StepTimeModel& model = worker.model;
  if (!model.known()) model.Assume({0, seconds / static_cast<double>(batch)});
  const double predicted = model.Predict(static_cast<double>(batch));
  return seconds < predicted || ++worker.untaught > kUntaughtMax;
}

double BatchController::PredictedSeconds() const {
  double seconds = 0;
  for (const Brief& brief : briefs_) {
    if (brief.measured) {
      seconds = std::max(seconds, brief.drift * brief.belief.line.At(static_cast<double>(brief.batch)));
    }
  }
  return seconds;
}

double BatchController::PredictedSeconds(Incarnation worker, std::int64_t batch) const {
  const std::ptrdiff_t at = Find(worker);
  if (at < 0 || batch <= 0) return 0;
  const Brief& brief = briefs_[static_cast<std::size_t>(at)];
  return brief.belief.line.per_sample > 0 ? brief.drift * brief.belief.line.At(static_cast<double>(batch)) : 0;
}

std::vector<BatchWorkerView> BatchController::Workers() const {
  std::vector<BatchWorkerView> views;
  views.reserve(workers_.size());
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    const Brief& brief = briefs_[i];
    BatchWorkerView view;
    view.worker = worker.id;
    view.name = worker.name;
    view.batch = brief.batch;
    view.observations = worker.model.observations();
    view.settled = worker.model.settled();
    view.line = {brief.drift * brief.belief.line.fixed, brief.drift * brief.belief.line.per_sample};
    if (brief.measured) view.predicted_seconds = view.line.At(static_cast<double>(brief.batch));
    view.noise = Noise(brief);
    const std::int64_t given = GivenCeiling(brief), learnt = brief.learnt_ceiling;
    view.ceiling = given > 0 && learnt > 0 ? std::min(given, learnt) : std::max(given, learnt);
    views.push_back(std::move(view));
  }
  return views;
}

BatchController::State BatchController::Save() const {
  std::vector<const Memory*> memories;
  for (const auto& [name, memory] : history_) memories.push_back(&memory);
  std::sort(memories.begin(), memories.end(), [](const Memory* a, const Memory* b) { return a->order < b->order; });
  State state;
  for (const Memory* memory : memories) state.records.push_back(memory->record);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.model.observations() == 0) continue;
    state.records.push_back({worker.name, worker.model.Save(), worker.throughput.ceiling(), briefs_[i].computing});
  }
  return state;
}

absl::Status BatchController::Load(const State& state) {
  for (const State::Record& record : state.records) {
    StepTimeModel model(options_.step_time);
    if (!model.Restore(record.model) || record.ceiling < 0 || !(record.computing > 0 && record.computing <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("[batching] the saved step times of '%s' are not those of a model", record.name));
    }
  }
  for (const State::Record& record : state.records) Remember(record);
  return absl::OkStatus();
}

}  // namespace evenkeel
