#include "chief/batch_controller.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr double kNoisy = 0.05;         // noise from which the dead band is as wide as configured
constexpr double kLeastDeadBand = 0.2;  // of it, where steps are quiet
constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kUrgentSteps = 8;  // for which an event overrides the hold-off
constexpr double kUrgentDeadBand = 0.5;   // of it, then
constexpr double kOtherMachine = 2;       // of what is remembered, as a worker times itself
constexpr double kTimedBatch = 32;        // at which the two are compared
constexpr int kUntaughtMax = 2;           // steps whose size is new, in a row, that teach nothing
constexpr double kNotable = 0.15;         // log of a change of speed that does not wait for the hold-off

using Mode = BatchControllerOptions::Mode;

// About how many deviations the largest of n normal errors is beyond 0, and a half more.
double Margin(std::size_t n) { return std::sqrt(2 * std::log(static_cast<double>(std::max<std::size_t>(n, 2)))) + 0.5; }

std::int64_t Lower(std::int64_t a, std::int64_t b) { return b > 0 ? std::min(a, b) : a; }  // 0: no bound

}  // namespace

void BatchController::AddWorker(Incarnation worker, std::string_view name, double declared_speed, StepTimeLine timed) {
  EK_CHECK(!index_.contains(worker));
  if (!(declared_speed > 0) || !std::isfinite(declared_speed)) declared_speed = 0;
  index_[worker] = workers_.size();
  Worker& added = workers_.emplace_back(worker, name, declared_speed, options_);
  if (const auto known = history_.find(name); known != history_.end()) {
    StepTimeModel::State state = known->second.record.model;
    const double ratio = timed.At(kTimedBatch) / (state.fixed + state.per_sample * kTimedBatch);
    if (timed.per_sample > 0 && std::abs(std::log(ratio)) > std::log(kOtherMachine)) {
      for (double* seconds : {&state.fixed, &state.per_sample, &state.prior_fixed, &state.prior_deviation}) {
        *seconds *= ratio;
      }
    }
    added.model.Restore(state);
    added.throughput.Restore(known->second.record.ceiling);
  } else if (timed.per_sample > 0 && timed.fixed >= 0) {
    added.model.Assume(timed);
  }
  members_changed_ = true;
}

void BatchController::RemoveWorker(Incarnation worker) {
  const auto found = index_.find(worker);
  if (found == index_.end()) return;
  const std::size_t at = found->second;
  const Worker& leaving = workers_[at];
  if (leaving.model.observations() > 0) {
    Remember({leaving.name, leaving.model.Save(), leaving.throughput.ceiling()});
  }
  workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(at));
  index_.erase(found);
  for (std::size_t i = at; i < workers_.size(); ++i) index_[workers_[i].id] = i;
  members_changed_ = true;
}

void BatchController::SetCeiling(Incarnation worker, std::int64_t batch) {
  if (Worker* found = Find(worker)) found->memory_ceiling = std::max<std::int64_t>(batch, 0);
}

BatchController::Worker* BatchController::Find(Incarnation worker) {
  const auto found = index_.find(worker);
  return found == index_.end() ? nullptr : &workers_[found->second];
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

void BatchController::Observe(Incarnation worker, std::int64_t batch, double compute_seconds, bool first_of_size) {
  Worker* found = Find(worker);
  if (found == nullptr || batch <= 0 || !(compute_seconds > 0) || !std::isfinite(compute_seconds)) return;
  if (!Teaches(*found, batch, compute_seconds, first_of_size)) return;
  if (batch == found->batch) {
    const double weight = found->smoothed_steps++ == 0 ? 1 : options_.smoothing;
    found->smoothed_seconds += weight * (compute_seconds - found->smoothed_seconds);
    found->rate = static_cast<double>(batch) / found->smoothed_seconds;
  }
  const auto raise = [this](std::string event) {
    event_ = std::move(event);
    event_steps_ = 0;
  };
  switch (found->throughput.Observe(batch, compute_seconds, found->model)) {
    case ThroughputCeiling::Verdict::kHoldBack:
      return;
    case ThroughputCeiling::Verdict::kSuspected:
      raise(absl::StrFormat("%s loses throughput at %d samples, ceiling %d", found->name, batch,
                            found->throughput.ceiling()));
      return;
    case ThroughputCeiling::Verdict::kRefuted:
      raise(absl::StrFormat("%s is slower at any batch, ceiling gone", found->name));
      break;
    case ThroughputCeiling::Verdict::kLearn:
      break;
  }
  const bool first = found->model.observations() == 0;
  const std::optional<double> ratio = found->model.Observe(batch, compute_seconds);
  if (first && std::all_of(workers_.begin(), workers_.end(),
                           [](const Worker& worker) { return worker.model.observations() > 0; })) {
    raise("first steps are measured");
  }
  if (ratio && std::abs(std::log(*ratio)) > kNotable) {
    raise(*ratio > 1 ? absl::StrFormat("%s is %.2f times slower", found->name, *ratio)
                     : absl::StrFormat("%s is %.2f times faster", found->name, 1 / *ratio));
  }
}

// What a step at a new size proves: that this worker is no slower than that.
bool BatchController::Teaches(Worker& worker, std::int64_t batch, double seconds, bool first_of_size) const {
  if (!first_of_size) {
    worker.untaught = 0;
    return true;
  }
  if (options_.mode != Mode::kModel) return true;
  StepTimeModel& model = worker.model;
  if (!model.known()) model.Assume({0, seconds / static_cast<double>(batch)});
  if (seconds < model.Predict(static_cast<double>(batch))) return true;
  return ++worker.untaught > kUntaughtMax;
}

absl::StatusOr<BatchController::Ranges> BatchController::MakeRanges(std::int64_t total) const {
  const auto n = static_cast<std::int64_t>(workers_.size());
  const std::int64_t floor = std::max<std::int64_t>(options_.min_batch_size, 0);
  if (n == 0) return absl::FailedPreconditionError("[batching] a plan needs a worker; there is none");
  if (total < floor * n) {
    return absl::InvalidArgumentError(
        absl::StrFormat("[batching] min_batch_size %d for %d workers needs a global batch of at least %d; it is %d",
                        floor, n, floor * n, total));
  }
  Ranges ranges;
  std::int64_t given = 0, learnt = 0;
  for (const Worker& worker : workers_) {
    std::int64_t ceiling = Lower(Lower(kUnbounded, options_.max_batch_size), worker.memory_ceiling);
    if (ceiling < floor) {
      return absl::InvalidArgumentError(
          absl::StrFormat("[batching] %s may take %d samples at most, which is less than min_batch_size %d",
                          worker.name, ceiling, floor));
    }
    ceiling = std::min(ceiling, total);
    given += ceiling;
    ranges.of.push_back({floor, std::max(floor, Lower(ceiling, worker.throughput.ceiling()))});
    learnt += ranges.of.back().ceiling;
  }
  if (given < total) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "[batching] the ceilings of %d workers hold %d samples together; the global batch is %d", n, given, total));
  }
  if (learnt < total) {  // what is learnt gives way to the global batch
    ranges.learnt_dropped = true;
    for (std::size_t i = 0; i < ranges.of.size(); ++i) {
      ranges.of[i].ceiling =
          std::min(Lower(Lower(kUnbounded, options_.max_batch_size), workers_[i].memory_ceiling), total);
    }
  }
  return ranges;
}

std::vector<StepTimeLine> BatchController::Lines() const {
  double fixed = 0, rate = 0, known = 0;    // of those with a model
  double log_unit = 0, declared_known = 0;  // seconds · declared speed per sample
  double declared_sum = 0, declared = 0;
  for (const Worker& worker : workers_) {
    if (worker.declared_speed > 0) {
      declared_sum += worker.declared_speed;
      declared += 1;
    }
    if (!worker.model.known()) continue;
    const StepTimeLine line = worker.model.line();
    known += 1;
    fixed += line.fixed;
    rate += 1 / line.per_sample;
    if (worker.declared_speed > 0) {
      log_unit += std::log(line.per_sample * worker.declared_speed);
      declared_known += 1;
    }
  }
  const double mean_speed = declared > 0 ? declared_sum / declared : 1;
  std::vector<StepTimeLine> lines;
  lines.reserve(workers_.size());
  for (const Worker& worker : workers_) {
    const double speed = worker.declared_speed > 0 ? worker.declared_speed : mean_speed;
    if (worker.model.observations() > 0 && worker.batch > 0) {
      lines.push_back(worker.model.CautiousLine(static_cast<double>(worker.batch)));
    } else if (worker.model.known()) {
      lines.push_back(worker.model.line());
    } else if (known == 0) {
      lines.push_back({0, 1 / speed});
    } else if (worker.declared_speed > 0 && declared_known > 0) {
      lines.push_back({fixed / known, std::exp(log_unit / declared_known) / speed});
    } else {
      lines.push_back({fixed / known, known / rate});
    }
  }
  return lines;
}

std::vector<double> BatchController::Rates() const {
  const bool measured = options_.mode == Mode::kProportional;
  double sum = 0, known = 0, declared_sum = 0, declared = 0;
  for (const Worker& worker : workers_) {
    if (measured && worker.rate > 0) {
      sum += worker.rate;
      known += 1;
    }
    if (worker.declared_speed > 0) {
      declared_sum += worker.declared_speed;
      declared += 1;
    }
  }
  std::vector<double> rates;
  for (const Worker& worker : workers_) {
    if (options_.mode == Mode::kOff) {
      rates.push_back(1);
    } else if (known > 0) {
      rates.push_back(worker.rate > 0 ? worker.rate : sum / known);
    } else if (worker.declared_speed > 0) {
      rates.push_back(worker.declared_speed);
    } else {
      rates.push_back(declared > 0 ? declared_sum / declared : 1);
    }
  }
  return rates;
}

void BatchController::PoolNoise() {
  double squares = 0, steps = 0;
  for (const Worker& worker : workers_) {
    squares += worker.model.residual_squares();
    steps += worker.model.residual_weight();
  }
  for (Worker& worker : workers_) worker.model.AssumeNoise(squares, steps);
}

double BatchController::DeadBand() const {
  double noise = 0;
  for (const Worker& worker : workers_) noise += worker.model.noise();
  noise /= static_cast<double>(workers_.size());
  return options_.dead_band * std::clamp(noise / kNoisy, kLeastDeadBand, 1.0);
}

std::string BatchController::Force(std::int64_t total, const Ranges& ranges) const {
  if (members_changed_) return absl::StrFormat("%d workers now", workers_.size());
  if (total != total_) return absl::StrFormat("the global batch is %d now", total);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].batch < ranges.of[i].floor || workers_[i].batch > ranges.of[i].ceiling) {
      if (!event_.empty()) return event_;
      return absl::StrFormat("%s may take %d samples at most", workers_[i].name, ranges.of[i].ceiling);
    }
  }
  return "";
}

absl::StatusOr<std::vector<BatchShare>> BatchController::Plan(std::int64_t total) {
  EK_ASSIGN_OR_RETURN(const Ranges ranges, MakeRanges(total));
  const std::string force = Force(total, ranges);
  const bool forced = !force.empty();
  const bool same_members = !members_changed_;
  ++steps_since_change_;
  pending_reason_ = force;
  PoolNoise();

  std::optional<std::vector<std::int64_t>> shares;
  switch (options_.mode) {
    case Mode::kOff:
    case Mode::kStatic:
      if (forced) shares = SplitBatch(total, Rates(), ranges.of);
      break;
    case Mode::kProportional:
      shares = DecideProportional(total, ranges, forced);
      break;
    case Mode::kModel:
      shares = DecideModel(total, ranges, forced);
      break;
  }
  if (shares) {
    if (same_members && total == total_) ++changes_;
    Adopt(*shares);
    reason_ = pending_reason_;
    if (ranges.learnt_dropped) absl::StrAppend(&reason_, "; learnt ceilings do not hold the global batch and give way");
  }
  members_changed_ = false;
  total_ = total;
  return Shares();
}

absl::StatusOr<std::vector<BatchShare>> BatchController::PlanAgain(std::int64_t total) {
  --steps_since_change_;
  --age_;
  --event_steps_;
  return Plan(total);
}

// Equal ones, unless what is believed promises more than the dead band.
std::vector<std::int64_t> BatchController::FirstShares(std::int64_t total, const Ranges& ranges) const {
  const std::vector<StepTimeLine> lines = Lines();
  std::vector<std::int64_t> best = MinMaxSplit(total, lines, ranges.of);
  std::vector<std::int64_t> equal = SplitBatch(total, std::vector<double>(workers_.size(), 1), ranges.of);
  const auto slowest = [&](const std::vector<std::int64_t>& shares) {
    double seconds = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      seconds = std::max(seconds, lines[i].At(static_cast<double>(shares[i])));
    }
    return seconds;
  };
  return slowest(best) < (1 - options_.dead_band) * slowest(equal) ? best : equal;
}

std::optional<std::vector<std::int64_t>> BatchController::DecideModel(std::int64_t total, const Ranges& ranges,
                                                                      bool forced) {
  if (forced) {
    hold_off_ = members_changed_ ? options_.warm_up_steps : options_.hold_off_steps;
    next_hold_off_ = options_.hold_off_steps;
    age_ = 0;
    event_.clear();
    const bool start = std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.batch == 0; });
    return start ? FirstShares(total, ranges) : MinMaxSplit(total, Lines(), ranges.of);
  }
  ++age_;
  if (!event_.empty() && ++event_steps_ > kUrgentSteps) event_.clear();
  const bool urgent = !event_.empty();
  // Trying at every step would look for the luckiest of many steps; the longer nothing changes, the rarer it tries.
  const std::int64_t every = std::max<std::int64_t>(1, hold_off_ / 10);
  if (!urgent && (steps_since_change_ < hold_off_ || steps_since_change_ % every != 0)) return std::nullopt;

  const std::vector<StepTimeLine> lines = Lines();
  std::vector<std::int64_t> shares = MinMaxSplit(total, lines, ranges.of);
  const double margin = Margin(workers_.size());
  double before = 0, surely_before = 0, after = 0;
  bool same = true;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const auto batch = static_cast<double>(workers_[i].batch);
    same = same && workers_[i].batch == shares[i];
    after = std::max(after, lines[i].At(static_cast<double>(shares[i])));
    if (workers_[i].model.observations() == 0) continue;
    before = std::max(before, lines[i].At(batch));
    surely_before = std::max(surely_before, lines[i].At(batch) - margin * workers_[i].model.Deviation(batch));
  }
  const double dead_band = DeadBand() * (urgent ? kUrgentDeadBand : 1);
  if (same || after >= (1 - dead_band) * surely_before) return std::nullopt;
  pending_reason_ = absl::StrFormat("%s: predicted step %.4g s -> %.4g s", event_.empty() ? "measured speeds" : event_,
                                    before, after);
  if (urgent) {
    age_ = 0;
    next_hold_off_ = options_.hold_off_steps;
    event_.clear();
  }
  hold_off_ = std::min(std::max(next_hold_off_, age_ / 2), options_.hold_off_steps_max);
  next_hold_off_ = 2 * hold_off_;
  return shares;
}

std::optional<std::vector<std::int64_t>> BatchController::DecideProportional(std::int64_t total, const Ranges& ranges,
                                                                             bool forced) {
  event_.clear();
  if (!forced) {
    double mean = 0, worst = 0;
    for (const Worker& worker : workers_) {
      if (worker.smoothed_steps < options_.window_size) return std::nullopt;
      mean += worker.smoothed_seconds / static_cast<double>(workers_.size());
    }
    for (const Worker& worker : workers_) worst = std::max(worst, std::abs(worker.smoothed_seconds / mean - 1));
    if (worst <= options_.dead_band) return std::nullopt;
    pending_reason_ = absl::StrFormat("a step time is %.0f%% off the mean of %.4g s", 100 * worst, mean);
  }
  // b - (b/t)(t - mean t) = (b/t)·mean t, scaled to the global batch.
  std::vector<std::int64_t> shares = SplitBatch(total, Rates(), ranges.of);
  bool same = !forced;
  for (std::size_t i = 0; i < workers_.size(); ++i) same = same && workers_[i].batch == shares[i];
  if (same) return std::nullopt;
  return shares;
}

void BatchController::Adopt(const std::vector<std::int64_t>& shares) {
  ++plans_;
  const std::vector<StepTimeLine> lines = Lines();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    worker.batch = shares[i];
    worker.planned = lines[i];
    worker.smoothed_seconds = 0;
    worker.smoothed_steps = 0;
  }
  steps_since_change_ = 0;
}

std::vector<BatchShare> BatchController::Shares() const {
  std::vector<BatchShare> shares;
  shares.reserve(workers_.size());
  for (const Worker& worker : workers_) shares.push_back({worker.id, worker.batch});
  return shares;
}

absl::StatusOr<std::vector<BatchShare>> BatchController::PlanRemainder(std::int64_t total) const {
  if (workers_.empty()) return absl::FailedPreconditionError("[batching] a plan needs a worker; there is none");
  std::vector<ShareRange> ranges;
  std::vector<StepTimeLine> lines;
  std::vector<double> weights;
  const auto n = static_cast<std::int64_t>(workers_.size());
  const std::int64_t floor =
      options_.min_batch_size * n <= total ? std::max<std::int64_t>(options_.min_batch_size, 0) : 0;
  std::int64_t most = 0;
  for (const Worker& worker : workers_) {
    const std::int64_t given = Lower(Lower(total, options_.max_batch_size), worker.memory_ceiling);
    ranges.push_back({floor, std::max(floor, given)});
    most += ranges.back().ceiling;
    lines.push_back(worker.planned);
    weights.push_back(static_cast<double>(std::max<std::int64_t>(worker.batch, 1)));
  }
  if (total < 0 || most < total) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "[batching] the ceilings of %d workers hold 0 to %d samples together; the step has %d", n, most, total));
  }
  const std::vector<std::int64_t> shares =
      options_.mode == Mode::kModel ? MinMaxSplit(total, lines, ranges) : SplitBatch(total, weights, ranges);
  std::vector<BatchShare> result;
  for (std::size_t i = 0; i < workers_.size(); ++i) result.push_back({workers_[i].id, shares[i]});
  return result;
}

double BatchController::PredictedSeconds() const {
  double seconds = 0;
  for (const Worker& worker : workers_) {
    if (worker.model.observations() > 0) {
      seconds = std::max(seconds, worker.model.Predict(static_cast<double>(worker.batch)));
    }
  }
  return seconds;
}

double BatchController::PredictedSeconds(Incarnation worker, std::int64_t batch) const {
  const auto found = index_.find(worker);
  if (found == index_.end() || batch <= 0) return 0;
  const StepTimeModel& model = workers_[found->second].model;
  return model.known() ? model.Predict(static_cast<double>(batch)) : 0;
}

std::vector<BatchWorkerView> BatchController::Workers() const {
  std::vector<BatchWorkerView> views;
  views.reserve(workers_.size());
  for (const Worker& worker : workers_) {
    BatchWorkerView view;
    view.worker = worker.id;
    view.name = worker.name;
    view.batch = worker.batch;
    view.observations = worker.model.observations();
    view.line = worker.model.line();
    if (view.observations > 0) view.predicted_seconds = view.line.At(static_cast<double>(worker.batch));
    view.noise = worker.model.noise();
    const std::int64_t given = Lower(Lower(kUnbounded, options_.max_batch_size), worker.memory_ceiling);
    const std::int64_t ceiling = Lower(given, worker.throughput.ceiling());
    view.ceiling = ceiling == kUnbounded ? 0 : ceiling;
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
  for (const Worker& worker : workers_) {
    if (worker.model.observations() == 0) continue;
    state.records.push_back({worker.name, worker.model.Save(), worker.throughput.ceiling()});
  }
  return state;
}

absl::Status BatchController::Load(const State& state) {
  for (const State::Record& record : state.records) {
    StepTimeModel model(options_.step_time);
    if (!model.Restore(record.model) || record.ceiling < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("[batching] the saved step times of '%s' are not those of a model", record.name));
    }
  }
  for (const State::Record& record : state.records) Remember(record);
  return absl::OkStatus();
}

}  // namespace evenkeel
