// What a step costs one worker: t(b) = fixed + per_sample·b seconds, learnt from its own steps.
//
// Recursive least squares on compute time, with three additions that a batch controller needs:
// - Forgetting in the observed direction only (Kulhavý and Kárný, "Tracking of slowly varying parameters by directional
//   forgetting", IFAC 1984). While the batch stays what it is, old knowledge of the slope is kept instead of fading,
//   and the covariance neither winds up nor vanishes.
//   It is kept as information, so that what the first steps are worth follows the noise once that is known.
// - A prior on the shape that leaves the level alone: the first step at batch b fixes t(b) exactly, and the share of it
//   that is fixed cost is 0 give or take `fixed_share_spread`. So t is right at the batch in use from the first step
//   on, and the rest is learnt as soon as the batch moves. Predictions for larger batches err to the high side until
//   then.
// - Change detection by a two-sided CUSUM (Page, "Continuous inspection schemes", Biometrika 1954) on the logarithm of
//   measured over predicted, in units of its own noise. Residuals are clipped, so that one outlier never raises it. On
//   a change the level jumps to what was measured since, where the generalised likelihood ratio puts the change
//   (Willsky and Jones, IEEE Trans. Automatic Control 1976); the shape is kept, with less confidence.
//
// Noise is relative: the standard deviation of a step is noise·t(b).
// Threading: none. Deterministic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "chief/batch_split.h"

namespace evenkeel {

struct StepTimeOptions {
  double forgetting = 0.99;         // of RLS, per step; 1/(1 - forgetting) steps count
  double fixed_share_spread = 0.8;  // standard deviation of the prior of fixed / t(b)
  double change_slack = 1.0;        // CUSUM: deviations of noise that are not held against a step
  double change_threshold = 8.9;    // CUSUM: sum that means a change
};

class StepTimeModel {
 public:
  // Plain values: what a checkpoint keeps.
  struct State {
    double fixed = 0;                                        // seconds
    double per_sample = 0;                                   // seconds
    double info_fixed = 0, info_cross = 0, info_sample = 0;  // of the steps, for noise 1: per square second
    double target_fixed = 0, target_sample = 0;              // that information times the coefficients
    double prior_fixed = 0, prior_deviation = 0;             // seconds; of the fixed part
    double residual_weight = 0, residual_squares = 0;        // of the noise, in logarithms
    std::int64_t observations = 0;
  };

  explicit StepTimeModel(StepTimeOptions options = {}) : options_(options) {}

  // A belief to start from, which the first observation scales to what it measured. Requires per_sample > 0.
  void Assume(StepTimeLine line);
  // The same from what was learnt earlier, perhaps on another day: the shape counts, the level is measured anew.
  // Errors: false where the values are not those of a model; nothing changes.
  bool Restore(const State& state);
  State Save() const { return state_; }

  // One step: `batch` samples in `seconds` of compute, waiting excluded. Ignores what is not positive and finite.
  // Returns now/before when it finds that the worker's speed has changed.
  std::optional<double> Observe(std::int64_t batch, double seconds);

  // What others in like circumstances showed, before this worker's own steps tell: residual_squares() and
  // residual_weight(), summed over them.
  void AssumeNoise(double squares, double steps);
  double residual_squares() const { return state_.residual_squares; }
  double residual_weight() const { return state_.residual_weight; }

  StepTimeLine line() const { return {state_.fixed, state_.per_sample}; }
  // What a plan needs of a model, in little room.
  struct Belief {
    StepTimeLine line;
    double var_fixed = 0, covariance = 0, var_sample = 0;
    // Through the same t(batch), with the fixed part smaller by its standard deviation: where the split is in doubt, a
    // larger batch is expected to cost more. Requires batch > 0.
    StepTimeLine CautiousLine(double batch) const;
    // As StepTimeModel::Deviation.
    double Deviation(double batch) const;
  };
  Belief belief() const { return {line(), var_fixed_, covariance_, var_sample_}; }
  double Predict(double batch) const { return line().At(batch); }
  // Standard deviation of Predict(batch), in seconds, from what the model does not know yet; noise of a step excluded.
  double Deviation(double batch) const { return belief().Deviation(batch); }
  // Relative standard deviation of a step.
  double noise() const;
  // The same from residual_squares() and residual_weight(), with those that AssumeNoise took.
  static double Noise(double squares, double steps, double all_squares, double all_steps);
  double TestNoise() const;                             // the same, rather too large than too small
  bool known() const { return state_.per_sample > 0; }  // assumed or observed
  std::int64_t observations() const { return state_.observations; }
  bool settled() const;  // the level is known from so many steps that it is a yardstick

 private:
  struct Side {  // of the CUSUM
    double sum = 0;
    std::size_t steps = 0;                // since it left zero
    std::array<double, 16> log_ratios{};  // of the latest of them, step k at k % 16
  };

  void Start(double batch, double seconds);
  void Begin(double batch, double seconds, double steps, double fixed_share, double spread);
  void Learn(double batch, double seconds);
  void LearnNoise(double batch, double seconds);
  std::optional<double> Test(double batch, double seconds);
  // The level becomes what `side` saw since the change; returns now/before.
  double Jump(double batch, const Side& side);
  void Solve(double batch);
  void Constrain(double batch);
  double Variance(double batch) const;

  StepTimeOptions options_;
  State state_;
  double var_fixed_ = 0, covariance_ = 0, var_sample_ = 0;  // of the coefficients, by the noise known now
  double first_noise_ = 0.05;                               // until own steps tell: for learning
  double first_test_noise_ = 0.15;                          // and for change detection, on the cautious side
  double last_batch_ = 0, last_seconds_ = 0;
  Side slower_, faster_;
  State before_;          // where slower_ or faster_ left zero
  bool testing_ = false;  // before_ is set
};

}  // namespace evenkeel
