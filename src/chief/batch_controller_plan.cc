// How BatchController decides: ranges, lines, the shares and whether they are worth a change.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "chief/batch_controller.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr double kNoisy = 0.05;           // noise from which the dead band is as wide as configured
constexpr double kLeastDeadBand = 0.2;    // of it, where steps are quiet
constexpr std::int64_t kUrgentSteps = 8;  // for which an event overrides the hold-off
constexpr double kUrgentDeadBand = 0.5;   // of it, then
constexpr double kDriftBand = 0.2;        // of the dead band and of the margin, while step times wander
constexpr double kNewest = 0.3;           // weight of it, in what changes cost

using Mode = BatchControllerOptions::Mode;

// About how many deviations the largest of n normal errors is beyond 0, and a half more.
double Margin(std::size_t n) { return std::sqrt(2 * std::log(static_cast<double>(std::max<std::size_t>(n, 2)))) + 0.5; }

}  // namespace

absl::Status BatchController::GivenRanges(std::int64_t total, std::int64_t floor, std::vector<ShareRange>& ranges,
                                          double& over) const {
  const auto n = static_cast<std::int64_t>(workers_.size());
  if (n == 0) return absl::FailedPreconditionError("[batching] a plan needs a worker; there is none");
  const std::int64_t most = options_.max_batch_size > 0 ? std::min(options_.max_batch_size, total) : total;
  if (total < 0 || most * n < total) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "[batching] the ceilings of %d workers hold %d samples together; the step has %d", n, most * n, total));
  }
  ranges.clear();
  std::int64_t floors = 0, holds = 0;
  for (const Brief& brief : briefs_) {
    const std::int64_t memory = brief.memory_ceiling > 0 ? brief.memory_ceiling : std::max(most, floor);
    ranges.push_back({std::min(floor, memory), std::min(most, memory)});
    floors += ranges.back().floor;
    holds += ranges.back().ceiling;
  }
  if (total < floors) {
    return absl::InvalidArgumentError(
        absl::StrFormat("[batching] min_batch_size %d for %d workers needs a global batch of at least %d; it is %d",
                        floor, n, floors, total));
  }
  if (most < floor && most < total) {
    return absl::InvalidArgumentError(
        absl::StrFormat("[batching] max_batch_size %d is less than min_batch_size %d", most, floor));
  }
  over = 1;
  if (holds >= total) return absl::OkStatus();
  over = static_cast<double>(total) / static_cast<double>(holds);
  holds = 0;
  for (ShareRange& range : ranges) {
    range.ceiling = std::min(most, static_cast<std::int64_t>(std::ceil(static_cast<double>(range.ceiling) * over)));
    holds += range.ceiling;
  }
  if (holds >= total) return absl::OkStatus();
  for (ShareRange& range : ranges) range.ceiling = most;  // raised beyond max_batch_size by some
  return absl::OkStatus();
}

absl::Status BatchController::MakeRanges(std::int64_t total) {
  EK_RETURN_IF_ERROR(GivenRanges(total, std::max<std::int64_t>(options_.min_batch_size, 0), ranges_, memory_over_));
  std::int64_t learnt = 0;
  for (std::size_t i = 0; i < briefs_.size(); ++i) {
    const std::int64_t tried = briefs_[i].learnt_ceiling, given = ranges_[i].ceiling;
    learnt += tried > 0 ? std::max(ranges_[i].floor, std::min(given, tried)) : given;
  }
  learnt_dropped_ = learnt < total;  // what is learnt gives way to the global batch
  if (learnt_dropped_) return absl::OkStatus();
  for (std::size_t i = 0; i < briefs_.size(); ++i) {
    const std::int64_t tried = briefs_[i].learnt_ceiling;
    if (tried > 0) ranges_[i].ceiling = std::max(ranges_[i].floor, std::min(ranges_[i].ceiling, tried));
  }
  return absl::OkStatus();
}

void BatchController::MakeLines() {
  lines_.clear();
  if (unmeasured_ > 0) return BelieveLines();
  double fixed_share = 0;
  for (const Brief& brief : briefs_) {
    const StepTimeLine& line = lines_.emplace_back(brief.Line());
    fixed_share += line.fixed / line.At(static_cast<double>(std::max<std::int64_t>(brief.batch, 1)));
  }
  if (!drift_.follows()) return;
  // While step times wander, a worker that was slow with a small batch looks as if batches cost it nothing: nobody's
  // share of fixed costs is taken to be more than that of all.
  fixed_share /= static_cast<double>(briefs_.size());
  for (std::size_t i = 0; i < briefs_.size(); ++i) {
    if (briefs_[i].batch <= 0) continue;
    const auto batch = static_cast<double>(briefs_[i].batch);
    const double seconds = lines_[i].At(batch), fixed = std::min(lines_[i].fixed, fixed_share * seconds);
    lines_[i] = {fixed, (seconds - fixed) / batch};
  }
}

// Where not everybody has been measured: from what was assumed, declared, or else is the mean of the others.
void BatchController::BelieveLines() {
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
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    const double speed = worker.declared_speed > 0 ? worker.declared_speed : mean_speed;
    if (briefs_[i].measured) {
      lines_.push_back(briefs_[i].Line());
    } else if (worker.model.known()) {
      lines_.push_back(worker.model.line());
    } else if (known == 0) {
      lines_.push_back({0, 1 / speed});
    } else if (worker.declared_speed > 0 && declared_known > 0) {
      lines_.push_back({fixed / known, std::exp(log_unit / declared_known) / speed});
    } else {
      lines_.push_back({fixed / known, known / rate});
    }
  }
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

double BatchController::Noise(const Brief& brief) const {
  return StepTimeModel::Noise(brief.noise_squares, brief.noise_steps, noise_squares_, noise_steps_);
}

double BatchController::DeadBand() const {
  double noise = 0;
  for (const Brief& brief : briefs_) noise += Noise(brief);
  noise /= static_cast<double>(briefs_.size());
  return options_.dead_band * std::clamp(noise / kNoisy, kLeastDeadBand, 1.0);
}

// Takes what all workers' last steps have taught together.
void BatchController::EndStep() {
  ++steps_since_change_;
  if (first_of_size_seconds_ >= 0) {
    change_seconds_ += (change_seconds_ > 0 ? kNewest : 1) * (first_of_size_seconds_ - change_seconds_);
    first_of_size_seconds_ = -1;
  }
  if (options_.mode != Mode::kModel || !drift_.Step()) return;
  for (std::size_t i = 0; i < workers_.size(); ++i) briefs_[i].drift = FactorOf(workers_[i]);
  next_hold_off_ = hold_off_ = options_.hold_off_steps;
  age_ = 0;
}

std::string BatchController::Force(std::int64_t total) const {
  if (members_changed_) return absl::StrFormat("%d workers now", workers_.size());
  if (total != total_) return absl::StrFormat("the global batch is %d now", total);
  for (std::size_t i = 0; i < briefs_.size(); ++i) {
    if (briefs_[i].batch < ranges_[i].floor || briefs_[i].batch > ranges_[i].ceiling) {
      if (!event_.empty()) return event_;
      return absl::StrFormat("%s may take %d samples at most", workers_[i].name, ranges_[i].ceiling);
    }
  }
  return "";
}

absl::StatusOr<std::vector<BatchShare>> BatchController::Plan(std::int64_t total) {
  EK_RETURN_IF_ERROR(MakeRanges(total));
  EndStep();
  return Decide(total);
}

absl::StatusOr<std::vector<BatchShare>> BatchController::PlanAgain(std::int64_t total) {
  EK_RETURN_IF_ERROR(MakeRanges(total));
  --age_;
  --event_steps_;
  return Decide(total);
}

std::vector<BatchShare> BatchController::Decide(std::int64_t total) {
  pending_reason_ = Force(total);
  const bool forced = !pending_reason_.empty();
  const bool same_members = !members_changed_;
  noise_squares_ = noise_steps_ = 0;
  for (const Brief& brief : briefs_) {
    noise_squares_ += brief.noise_squares;
    noise_steps_ += brief.noise_steps;
  }

  bool changes = false;
  switch (options_.mode) {
    case Mode::kOff:
    case Mode::kStatic:
      if (forced) shares_ = SplitBatch(total, Rates(), ranges_);
      changes = forced;
      break;
    case Mode::kProportional:
      changes = DecideProportional(total, forced);
      break;
    case Mode::kModel:
      changes = DecideModel(total, forced);
      break;
  }
  if (changes) {
    if (same_members && total == total_) ++changes_;
    Adopt();
    reason_ = pending_reason_;
    if (learnt_dropped_) absl::StrAppend(&reason_, "; learnt ceilings do not hold the global batch and give way");
  }
  members_changed_ = false;
  total_ = total;
  std::vector<BatchShare> shares;
  shares.reserve(briefs_.size());
  for (const Brief& brief : briefs_) shares.push_back({brief.id, brief.batch});
  return shares;
}

// Equal ones, unless what is believed promises more than the dead band.
void BatchController::FirstShares(std::int64_t total) {
  const std::vector<std::int64_t> equal = SplitBatch(total, std::vector<double>(workers_.size(), 1), ranges_);
  shares_ = splitter_.Split(total, lines_, ranges_);
  const auto slowest = [&](const std::vector<std::int64_t>& shares) {
    double seconds = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      seconds = std::max(seconds, lines_[i].At(static_cast<double>(shares[i])));
    }
    return seconds;
  };
  if (slowest(shares_) >= (1 - options_.dead_band) * slowest(equal)) shares_ = equal;
}

bool BatchController::DecideModel(std::int64_t total, bool forced) {
  if (forced) {
    hold_off_ = members_changed_ ? options_.warm_up_steps : options_.hold_off_steps;
    next_hold_off_ = options_.hold_off_steps;
    age_ = 0;
    event_.clear();
    MakeLines();
    if (std::all_of(briefs_.begin(), briefs_.end(), [](const Brief& brief) { return brief.batch == 0; })) {
      FirstShares(total);
    } else {
      shares_ = splitter_.Split(total, lines_, ranges_);
    }
    return true;
  }
  ++age_;
  if (!event_.empty() && ++event_steps_ > kUrgentSteps) event_.clear();
  const bool urgent = !event_.empty();
  // Trying at every step would look for the luckiest of many steps; the longer nothing changes, the rarer it tries.
  const std::int64_t every = std::max<std::int64_t>(1, hold_off_ / 10);
  if (!urgent && (steps_since_change_ < hold_off_ || steps_since_change_ % every != 0)) return false;
  if (!urgent && drift_.follows()) {
    const auto any = [this](bool Brief::*what) {
      return std::any_of(briefs_.begin(), briefs_.end(), [what](const Brief& brief) { return brief.*what; });
    };
    if (any(&Brief::untried)) return false;
    // One step tells. Of thousands somebody always is in question: nobody waits then, and who is counts as before.
    const bool was_questioned = std::exchange(questioned_, any(&Brief::in_question));
    if (questioned_ && !was_questioned) return false;
  }

  MakeLines();
  shares_ = splitter_.Split(total, lines_, ranges_);
  const Outlook outlook = Compare();
  const double dead_band = DeadBand() * (urgent ? kUrgentDeadBand : 1) * (drift_.follows() ? kDriftBand : 1);
  const double change_seconds = change_seconds_ / std::max(steps_between_changes_, static_cast<double>(next_hold_off_));
  const bool gains = outlook.after + change_seconds < (1 - dead_band) * outlook.surely_before;
  const bool evens =
      outlook.surely_least_before > 0 &&
      outlook.after * outlook.surely_least_before < (1 - dead_band) * outlook.surely_before * outlook.least_after;
  if (outlook.same || !(gains || evens)) return false;
  pending_reason_ = absl::StrFormat("%s: predicted step %.4g s -> %.4g s", event_.empty() ? "measured speeds" : event_,
                                    outlook.before, outlook.after);
  if (!gains) {
    absl::StrAppendFormat(&pending_reason_, ", shortest %.4g s -> %.4g s", outlook.least_before, outlook.least_after);
  }
  if (urgent) {
    age_ = 0;
    next_hold_off_ = options_.hold_off_steps;
    event_.clear();
  }
  steps_between_changes_ += kNewest * (static_cast<double>(steps_since_change_) - steps_between_changes_);
  hold_off_ = std::min(std::max(next_hold_off_, age_ / 2), options_.hold_off_steps_max);
  next_hold_off_ = 2 * hold_off_;
  if (drift_.follows()) next_hold_off_ = hold_off_ = 1;
  return true;
}

// The present shares and those in shares_, by lines_.
BatchController::Outlook BatchController::Compare() const {
  const double margin = Margin(briefs_.size()) * (drift_.follows() ? kDriftBand : 1), doubt = drift_.Doubt();
  const auto least = [](double& of, double seconds) { of = of > 0 ? std::min(of, seconds) : seconds; };
  Outlook outlook;
  for (std::size_t i = 0; i < briefs_.size(); ++i) {
    const Brief& brief = briefs_[i];
    const auto batch = static_cast<double>(brief.batch);
    outlook.same = outlook.same && brief.batch == shares_[i];
    // Nothing can be gained of it, and it would hide what is.
    if (options_.rates && brief.batch == ranges_[i].floor && shares_[i] == ranges_[i].floor) continue;
    const double after = lines_[i].At(static_cast<double>(shares_[i]));
    outlook.after = std::max(outlook.after, after);
    // Whoever is at its ceiling is as fast as may be.
    const bool fastest = options_.rates && !(brief.batch == ranges_[i].ceiling && shares_[i] == ranges_[i].ceiling);
    if (fastest) least(outlook.least_after, after);
    if (!brief.measured) continue;
    const double before = lines_[i].At(batch);
    outlook.before = std::max(outlook.before, before);
    if (before <= outlook.surely_before && !fastest) continue;
    double deviation = brief.belief.Deviation(batch);
    if (doubt > 0) deviation = std::hypot(deviation, doubt * Noise(brief) * before);
    outlook.surely_before = std::max(outlook.surely_before, before - margin * deviation);
    if (!fastest) continue;
    least(outlook.least_before, before);
    least(outlook.surely_least_before, before + margin * deviation);
  }
  return outlook;
}

bool BatchController::DecideProportional(std::int64_t total, bool forced) {
  event_.clear();
  if (!forced) {
    double mean = 0, worst = 0;
    for (const Worker& worker : workers_) {
      if (worker.smoothed_steps < options_.window_size) return false;
      mean += worker.smoothed_seconds / static_cast<double>(workers_.size());
    }
    for (const Worker& worker : workers_) worst = std::max(worst, std::abs(worker.smoothed_seconds / mean - 1));
    if (worst <= options_.dead_band) return false;
    pending_reason_ = absl::StrFormat("a step time is %.0f%% off the mean of %.4g s", 100 * worst, mean);
  }
  // b - (b/t)(t - mean t) = (b/t)·mean t, scaled to the global batch.
  shares_ = SplitBatch(total, Rates(), ranges_);
  if (forced) return true;
  for (std::size_t i = 0; i < briefs_.size(); ++i) {
    if (briefs_[i].batch != shares_[i]) return true;
  }
  return false;
}

void BatchController::Adopt() {
  ++plans_;
  if (options_.mode != Mode::kModel) MakeLines();
  for (std::size_t i = 0; i < briefs_.size(); ++i) {
    briefs_[i].untried |= briefs_[i].batch != shares_[i];
    briefs_[i].batch = shares_[i];
    briefs_[i].planned = lines_[i];
  }
  if (options_.mode == Mode::kProportional) {
    for (Worker& worker : workers_) worker.smoothed_steps = 0;
  }
  steps_since_change_ = 0;
}

absl::StatusOr<std::vector<BatchShare>> BatchController::PlanRemainder(std::int64_t total) {
  std::vector<StepTimeLine> lines;
  std::vector<double> weights;
  std::vector<ShareRange> ranges;
  const auto n = static_cast<std::int64_t>(workers_.size());
  const std::int64_t floor =
      options_.min_batch_size * n <= total ? std::max<std::int64_t>(options_.min_batch_size, 0) : 0;
  double over = 1;
  EK_RETURN_IF_ERROR(GivenRanges(total, floor, ranges, over));
  // Whoever has joined since has none, and those of the others may be in no time at all.
  if (members_changed_) MakeLines();
  for (std::size_t i = 0; i < briefs_.size(); ++i) {
    lines.push_back(members_changed_ ? lines_[i] : briefs_[i].planned);
    weights.push_back(static_cast<double>(std::max<std::int64_t>(briefs_[i].batch, 1)));
  }
  const std::vector<std::int64_t> shares =
      options_.mode == Mode::kModel ? MinMaxSplit(total, lines, ranges) : SplitBatch(total, weights, ranges);
  std::vector<BatchShare> result;
  for (std::size_t i = 0; i < workers_.size(); ++i) result.push_back({workers_[i].id, shares[i]});
  return result;
}

}  // namespace evenkeel
