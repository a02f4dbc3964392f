// Decides each worker's share of the global batch from how long its steps take.
//
// Modes: `off` equal shares; `static` in proportion to declared speeds; `proportional` the rule that OmniLearn
// published, b - (b/t)(t - mean t), for comparison; `model` a line t(b) = fixed + per_sample·b for each worker and the
// exact min-max assignment. Equal predicted step times are what synchronous steps need and, where workers do not wait
// for each other (ASP, SSP), they are equal update rates: the same plan serves both.
//
// What keeps `model` from cycling, while a changed worker is followed within a few steps:
// - a change must be worth more than the dead band even if every slow worker's model errs to the slow side by as
//   much as the slowest of that many would by chance. Where steps are quiet the dead band shrinks, to a fifth at least;
// - where rates count, a change may also be worth it that brings the slowest and the fastest closer together by more
//   than the dead band, even if the models err on either side by as much;
// - after a change it holds off, twice as long each time and at least half as long as nothing happened before, up to
//   `hold_off_steps_max`: so batches settle to one change in that many steps as long as no member changes. A detected
//   change of speed, a suspected collapse of throughput, and every join and leave begin again with the shortest.
// - while all workers' steps together say that speeds wander by themselves (StepTimeDrift), batches follow with little
//   dead band, and as soon as every worker has shown what the last change has brought;
// - what a change costs, as steps of a new size have shown, must be gained until the next.
// Every plan sums exactly to its total within the bounds, or is an error.
//
// Threading: none; one caller at a time. Reads no clock: a step is one Plan(). Deterministic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "chief/batch_split.h"
#include "chief/mean_pace.h"
#include "chief/step_time_drift.h"
#include "chief/step_time_model.h"
#include "chief/throughput_ceiling.h"
#include "evenkeel/core/ids.h"

namespace evenkeel {

struct BatchControllerOptions {
  enum class Mode { kOff, kStatic, kProportional, kModel };
  Mode mode = Mode::kModel;
  std::int64_t min_batch_size = 16;
  std::int64_t max_batch_size = 0;  // 0: none
  double dead_band = 0.05;         // part of the step time that a change must gain; proportional: |t - mean t| / mean t
  std::int64_t warm_up_steps = 2;  // from a change of members to the first change of batches
  std::int64_t hold_off_steps = 3;
  std::int64_t hold_off_steps_max = 100;
  std::int64_t window_size = 5;     // proportional: steps between decisions
  double smoothing = 0.3;           // proportional: weight of the newest step
  bool rates = false;               // model: each worker's rate counts, not only the slowest one's step (asp, ssp)
  double collapse_factor = 1.5;     // of the time per sample, beyond which a larger batch is too large
  std::int64_t retry_steps = 500;   // until a learnt ceiling is tried
  std::size_t history_max = 16384;  // names remembered
  StepTimeOptions step_time;
};

struct BatchShare {
  Incarnation worker;
  std::int64_t batch = 0;
  friend bool operator==(const BatchShare&, const BatchShare&) = default;
};

// What a table of workers shows.
struct BatchWorkerView {
  Incarnation worker;
  std::string name;
  std::int64_t batch = 0;         // of the last Plan
  std::int64_t observations = 0;  // 0: the rest is belief
  bool settled = false;           // so many that the line is a yardstick
  StepTimeLine line;
  double predicted_seconds = 0;  // of a step at `batch`; 0 without observations
  double noise = 0;              // relative standard deviation of a step
  std::int64_t ceiling = 0;      // given or learnt; 0: none
};

class BatchController {
 public:
  // What a checkpoint keeps: models by worker name, the longest unused first.
  struct State {
    struct Record {
      std::string name;
      StepTimeModel::State model;
      std::int64_t ceiling = 0;
      double computing = 1;  // part of a step that went into the samples
    };
    std::vector<Record> records;
  };

  explicit BatchController(BatchControllerOptions options)
      : options_(options), steps_between_changes_(static_cast<double>(options.hold_off_steps_max)) {}

  // A member more, the last in order. `declared_speed` in samples per any unit of time, the same for all; 0: not
  // declared. `timed` is how it timed itself; per_sample 0: it did not. It starts from what is remembered under its
  // name, unless it timed itself twice as fast or slow; else from its own timing, else from its declared speed, else as
  // the mean of the others. Requires a new incarnation.
  void AddWorker(Incarnation worker, std::string_view name, double declared_speed = 0, StepTimeLine timed = {});
  // Remembers it by name. Unknown: ignored.
  void RemoveWorker(Incarnation worker);
  // No batch of this worker may be larger: what its memory holds. 0: no such bound. Unknown: ignored. It goes before
  // the floor. Where all of them together do not hold a step, each is raised by the same factor: they are estimates,
  // and the global batch is a promise. MemoryOver() says so.
  void SetCeiling(Incarnation worker, std::int64_t batch);
  // What the workers can take together by the given ceilings; 0: no bound.
  std::int64_t Holds() const;
  // The last plan's total, of what the workers' memory holds; 1: it holds it.
  double MemoryOver() const { return memory_over_; }

  // A finished step: its time without waiting. Unknown workers and values that are no time are ignored.
  // `first_of_size`: it also made what the worker needs for a batch of this size, which the next ones find; it teaches
  // only what it can prove. `computing`: the part of the time, in (0, 1], that went into the samples; the rest
  // (messages, a core that others had) is expected to stay whatever the batch.
  void Observe(Incarnation worker, std::int64_t batch, double seconds, bool first_of_size = false,
               double computing = 1);

  // The shares of the next step, in order of joining; counts as a step.
  // Errors: kInvalidArgument where the bounds cannot hold; nothing changes. kFailedPrecondition without workers.
  absl::StatusOr<std::vector<BatchShare>> Plan(std::int64_t total);

  // Something has been learnt since the last Plan that should not wait for the step after it.
  bool asks_again() const { return !event_.empty() && event_steps_ == 0; }
  // The same step's shares anew.
  absl::StatusOr<std::vector<BatchShare>> PlanAgain(std::int64_t total);

  // The shares of a step that has fewer samples than usual, as at the end of the data: by the same models as the last
  // Plan, where that was among the same members. Not a step, no decision. The floor does not bind where it cannot. The
  // ceilings hold.
  absl::StatusOr<std::vector<BatchShare>> PlanRemainder(std::int64_t total);

  // Why the last Plan that changed shares did: one line.
  const std::string& Explain() const { return reason_; }
  std::int64_t changes() const { return changes_; }  // Plans that changed shares among the same members and total
  std::int64_t plans() const { return plans_; }      // that changed shares, for whatever reason
  // Of the step planned last: the largest predicted time of its members. 0: nothing known.
  double PredictedSeconds() const;
  // Of one member's step with `batch` samples. 0: nothing known.
  double PredictedSeconds(Incarnation worker, std::int64_t batch) const;
  std::vector<BatchWorkerView> Workers() const;
  std::size_t size() const { return workers_.size(); }

  State Save() const;
  // Remembers what `state` holds, for workers added from now on.
  // Errors: kInvalidArgument, naming the record; nothing changes.
  absl::Status Load(const State& state);

 private:
  struct Worker {
    Worker(Incarnation id_in, std::string_view name_in, double speed, const BatchControllerOptions& options)
        : id(id_in),
          name(name_in),
          declared_speed(speed),
          model(options.step_time),
          throughput(options.collapse_factor, options.retry_steps) {}
    Incarnation id;
    std::string name;
    double declared_speed;
    StepTimeModel model;
    StepTimeDrift::Levels levels;
    MeanPace pace;  // rates: of the line
    ThroughputCeiling throughput;
    double far_off = 0;                   // of the step before, of the levels, in logarithms; 0: it was not
    StepTimeDrift::Levels levels_before;  // it, if it was
    int untaught = 0;                     // steps in a row that were the first of their size
    // Of the newest of those, until the next step; 0: none.
    std::int64_t first_batch = 0;
    double first_seconds = 0;
    // proportional: of the steps at the present batch, and samples per second by the last smoothed time
    double smoothed_seconds = 0;
    std::int64_t smoothed_steps = 0;
    double rate = 0;
  };
  // What every Plan looks at: apart from the rest, so that ten thousand of them stay in the cache.
  struct Brief {
    Incarnation id;
    std::int64_t batch = 0;           // of the last Plan
    std::int64_t memory_ceiling = 0;  // 0: none
    std::int64_t learnt_ceiling = 0;  // 0: none
    bool measured = false;            // the rest is from its own steps
    bool untried = false;             // no step at `batch` has told yet how long those take
    bool in_question = false;         // the last step was far off; the next one tells whether that is a change
    StepTimeModel::Belief belief;
    double drift = 1;      // by which its steps take longer now than the line says
    double computing = 1;  // the part of a step that went into the samples, of late
    double noise_squares = 0, noise_steps = 0;
    StepTimeLine planned{0, 1};  // what `batch` was decided by

    StepTimeLine Line() const {  // requires `measured`
      if (batch <= 0) return {belief.line.fixed * drift, belief.line.per_sample * drift};
      const auto size = static_cast<double>(batch);
      StepTimeLine line = belief.CautiousLine(size);
      // Through the same t(batch): no sample costs more than what was spent on samples.
      const double seconds = line.At(size);
      line.per_sample = std::min(line.per_sample, computing * seconds / size);
      line.fixed = seconds - line.per_sample * size;
      return {line.fixed * drift, line.per_sample * drift};
    }
  };
  struct Memory {
    std::uint64_t order = 0;
    State::Record record;
  };
  // Of the slowest by the lines: with the present shares, with those before by as much as the models may err, and with
  // the new shares.
  struct Outlook {
    double before = 0, surely_before = 0, after = 0;
    // rates: the same of the fastest; 0: of nobody.
    double least_before = 0, surely_least_before = 0, least_after = 0;
    bool same = true;  // the shares
  };

  // Its place in workers_ and briefs_; -1: unknown.
  std::ptrdiff_t Find(Incarnation worker) const;
  void TakeBrief(std::size_t at);                       // of what has been learnt
  double FactorOf(const Worker& worker) const;          // of its line, by what it leaves out
  std::int64_t GivenCeiling(const Brief& brief) const;  // 0: none
  // A range for each worker, without what was learnt. `over`: by what memory's ceilings are raised; 1: they hold.
  absl::Status GivenRanges(std::int64_t total, std::int64_t floor, std::vector<ShareRange>& ranges, double& over) const;
  void Remember(State::Record record);
  absl::Status MakeRanges(std::int64_t total);  // ranges_, learnt_dropped_
  void MakeLines();                             // lines_
  void BelieveLines();
  void FirstShares(std::int64_t total);  // by lines_
  bool Teaches(Worker& worker, std::int64_t batch, double seconds, bool first_of_size);
  void Learn(Worker& learner, std::int64_t batch, double seconds);
  bool FarOff(Worker& learner, double log_ratio);
  void Smooth(Worker& worker, std::int64_t batch, double seconds);
  void Raise(std::string event);
  std::vector<double> Rates() const;
  double Noise(const Brief& brief) const;  // of a step, relative
  double DeadBand() const;
  void EndStep();

  // Why the shares may not stay as they are; empty: they may.
  std::string Force(std::int64_t total) const;
  std::vector<BatchShare> Decide(std::int64_t total);
  // True: shares_ are better than the present ones. Sets pending_reason_.
  bool DecideModel(std::int64_t total, bool forced);
  bool DecideProportional(std::int64_t total, bool forced);
  Outlook Compare() const;
  void Adopt();

  const BatchControllerOptions options_;
  std::vector<Worker> workers_;  // in order of joining
  std::vector<Brief> briefs_;    // one for each
  std::size_t unmeasured_ = 0;   // of them
  StepTimeDrift drift_;
  double noise_squares_ = 0, noise_steps_ = 0;  // of all
  absl::flat_hash_map<Incarnation, std::size_t> index_;
  std::map<std::string, Memory, std::less<>> history_;
  std::uint64_t history_order_ = 0;

  // Of the plan being made; kept, so that a plan allocates nothing but its result.
  std::vector<ShareRange> ranges_;
  bool learnt_dropped_ = false;  // the learnt ceilings do not hold the total
  double memory_over_ = 1;
  std::vector<StepTimeLine> lines_;
  std::vector<std::int64_t> shares_;
  MinMaxSplitter splitter_;

  std::int64_t total_ = -1;  // of the last Plan
  bool members_changed_ = true;
  std::string event_;             // what asks for a decision now, for the reason; empty: nothing
  std::int64_t event_steps_ = 0;  // since the event
  std::int64_t age_ = 0;          // steps since members or speeds changed
  std::int64_t steps_since_change_ = 0;
  std::int64_t hold_off_ = 0;       // steps after the last change
  std::int64_t next_hold_off_ = 0;  // after the next
  bool questioned_ = false;         // somebody was in question when the last decision was due
  // What a change costs: seconds by which the step that makes a new size takes longer, and steps from one to the next.
  double change_seconds_ = 0;
  double steps_between_changes_;
  double first_of_size_seconds_ = -1;  // of the step being observed; < 0: no size is new
  std::int64_t changes_ = 0;
  std::int64_t plans_ = 0;
  std::string pending_reason_;  // of the decision being made
  std::string reason_ = "no plan yet";
};

}  // namespace evenkeel
