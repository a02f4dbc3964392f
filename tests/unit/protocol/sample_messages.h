// A message of every kind, with every field set to a value of its own that is not its default.
#pragma once

#include <utility>
#include <vector>

#include "evenkeel/protocol/messages.h"

namespace evenkeel {

inline UpdateId SampleUpdate(std::uint64_t n) { return {Term(3), Incarnation(n), 100 + n}; }
inline Version SampleVersion(std::uint64_t n) { return {Generation(2), CommitNumber(n)}; }

inline Envelope SampleEnvelope() {
  return {.job_id = "0123456789abcdef0123456789abcdef",
          .spec_hash = std::string(64, 'a'),
          .term = Term(1),
          .generation = Generation(2),
          .layout = LayoutNumber(3),
          .sender = Incarnation(4),
          .membership_epoch = MembershipEpoch(5)};
}

inline std::vector<TensorSpec> SampleTensors() {
  TensorSpec weight{.name = "conv1/weight", .shape = Shape({3, 3, 8}), .decay = false};
  weight.initializer = {
      .kind = InitializerSpec::Kind::kLecunNormal, .value = 1.5f, .scale = 2.5f, .fan_in = 27, .fan_out = 8};
  TensorSpec mean{.name = "bn/mean", .shape = Shape({8}), .statistic = true, .statistic_momentum = 0.75f};
  return {weight, mean, TensorSpec{.name = "scalar"}};
}

inline OptimizerSpec SampleOptimizer() {
  return {.kind = OptimizerSpec::Kind::kFtrl,
          .momentum = 1,
          .beta1 = 2,
          .beta2 = 3,
          .rho = 4,
          .epsilon = 5,
          .initial_accumulator = 6,
          .ftrl_l1 = 7,
          .ftrl_l2 = 8,
          .ftrl_learning_rate_power = 9,
          .l2 = 10,
          .weight_decay = 11,
          .clip_value = 12,
          .clip_norm = 13};
}

inline CommittedUpdate SampleCommittedUpdate(std::uint64_t n) {
  return {.update = SampleUpdate(n),
          .rank = Rank(2),
          .epoch = Epoch(3),
          .positions = {{0, 5}, {7, 9}},
          .clock = 4,
          .bound_at = CommitNumber(5),
          .computed_on = {SampleVersion(6), SampleVersion(7)}};
}

inline Decision SampleDecision() {
  return {.version = SampleVersion(7),
          .set = SetNumber(8),
          .attempt = 9,
          .updates = {SampleCommittedUpdate(1), SampleCommittedUpdate(2)},
          .samples = 519,
          .loss_sum = 1.5,
          .learning_rate = 0.125,
          .clip_scale = 0.5,
          .global_batch_size = 1024,
          .previous_hash = 0xfedcba9876543210u,
          .hash = 0x0123456789abcdefu};
}

inline std::vector<Body> SampleBodies() {
  return {
      Join{.role = Role::kEvaluator,
           .name = "evaluator:0",
           .index = -7,
           .nonce = ~0ull,
           .experiment_json = "{}",
           .address = "[::1]:2222",
           .holding = {.layout = LayoutNumber(1),
                       .server = ServerIndex(2),
                       .servers = 3,
                       .decided = SampleVersion(4),
                       .hash = ~5ull,
                       .applied = CommitNumber(6)},
           .samples = 60000,
           .data_fingerprint = "f",
           .data_statistics_json = "s",
           .tensors = SampleTensors(),
           .compute_fingerprint = "c",
           .former = Incarnation(8)},
      Ready{.fixed_seconds = 0.25, .seconds_per_sample = 0.125, .memory_samples = 7},
      Renew{
          .state = "waiting for ticket", .since_ms = 12, .data_paths = "shm", .memory_samples = 9, .filled_pieces = 4},
      Leave{.reason = "told", .after_ticket = true},
      StepReport{.update = SampleUpdate(1),
                 .samples = 2,
                 .input_seconds = 3,
                 .pull_seconds = 4,
                 .compute_seconds = 5,
                 .first_of_size = true},
      EvalReport{.version = SampleVersion(1),
                 .metrics = {{"accuracy", 0.5}, {"loss", -1}},
                 .final_score = true,
                 .stop = true,
                 .reason = "patience",
                 .best_version = SampleVersion(9),
                 .best_metric = "accuracy",
                 .best_value = 0.75},
      StatusRequest{},
      Welcome{.incarnation = Incarnation(1),
              .job_id = "j",
              .experiment_json = "{\"a\":1}",
              .lease_ms = 2,
              .renew_ms = 3,
              .servers = {{"a:1", Incarnation(4)}, {"b:2", Incarnation(5)}},
              .tensors = SampleTensors(),
              .bucket_bytes = 6,
              .seed = 7,
              .likely_samples = 8,
              .likely_later = {7, 9}},
      Admitted{.rank = Rank(3)},
      Waiting{.for_whom = "ps:1, worker:2", .deadline_ms = 3},
      Ticket{.update = SampleUpdate(1),
             .epoch = Epoch(2),
             .positions = {{0, 128}, {256, 300}},
             .bound = true,
             .version = SampleVersion(3),
             .deadline_ms = 4},
      Bind{.update = SampleUpdate(1), .version = SampleVersion(2), .deadline_ms = 3},
      Outcome{.update = SampleUpdate(1), .committed = true, .version = SampleVersion(2)},
      Refuse{.reason = RefuseReason::kMalformed, .message = "Ü", .update = SampleUpdate(1)},
      JobEnd{.ok = true, .status = "finished", .message = "m"},
      CheckpointDurable{.version = SampleVersion(1), .final_checkpoint = true},
      StatusReply{.json = "{}"},
      Configure{.server = ServerIndex(1),
                .servers = 2,
                .tensors = SampleTensors(),
                .bucket_bytes = 3,
                .optimizer = SampleOptimizer(),
                .seed = 4,
                .model_dir = "d",
                .restore = true,
                .checkpoint = SampleVersion(5),
                .version = SampleVersion(6),
                .measure_gradients = true},
      Continue{.version = SampleVersion(1)},
      ReadDecisions{.after = SampleVersion(2)},
      Members{.epoch = MembershipEpoch(1),
              .full = true,
              .admitted = {{Incarnation(2), "worker:0"}},
              .fenced = {Incarnation(3), Incarnation(4)}},
      Seal{.set = SetNumber(1), .attempt = 2, .updates = {SampleUpdate(3)}},
      Drop{.updates = {SampleUpdate(1), SampleUpdate(2)}},
      SampleDecision(),
      Snapshot{.version = SampleVersion(1), .folder = "f", .file = "g"},
      Configured{.server = ServerIndex(1), .version = SampleVersion(2), .owned_floats = 3},
      KeptDecisions{.decisions = {SampleDecision(), SampleDecision()}},
      MembersAck{.epoch = MembershipEpoch(1)},
      Staged{.update = SampleUpdate(1),
             .samples = 2,
             .loss_sum = 3,
             .non_finite = 4,
             .non_finite_layer = "dense",
             .computed_on = SampleVersion(5)},
      Sealed{.set = SetNumber(1), .attempt = 2, .norms = {{16, 0.5}, {32, 1.5}}},
      Applied{.version = SampleVersion(1), .hash = 2, .apply_seconds = 3, .squared_sums = {0.5, 1.5}},
      SnapshotDone{.version = SampleVersion(1), .file = "f", .bytes = 2, .crc32c = 0xfffffffe, .error = "e"},
      Hello{.name = "worker:0"},
      HelloAck{.server = ServerIndex(1), .version = SampleVersion(2)},
      Stage{.update = SampleUpdate(1),
            .attempt = 2,
            .bucket = -1,
            .closing = true,
            .samples = 3,
            .loss_sum = 4,
            .non_finite = 5,
            .non_finite_layer = "l",
            .computed_on = SampleVersion(6)},
      StageAck{.update = SampleUpdate(1), .attempt = 2, .complete = true, .missing = {3, 1, 2}},
      Pull{.request = 1, .at_least = SampleVersion(2), .deadline_ms = 3, .bfloat16 = true},
      PullData{.request = 1, .version = SampleVersion(2), .bucket = -1},
      ExperimentRequest{.name = "worker:spare-7"},
      ExperimentReply{.job_id = "j", .experiment_json = "{}", .spec_hash = "h"},
      Drain{.name = "worker:1"},
      OrderReply{.accepted = true, .message = "m", .unknown = true},
      LeaveNow{.reason = "r"},
      Scale{.servers = 3},
      Renewed{},
      Prepare{.layout = LayoutNumber(4),
              .server = ServerIndex(1),
              .servers = 3,
              .tensors = SampleTensors(),
              .bucket_bytes = 5,
              .optimizer = SampleOptimizer(),
              .sources = {{"h:1", Incarnation(2), "ps:0"}, {"h:2", Incarnation(3), "ps:1"}},
              .measure_gradients = true},
      Fill{.layout = LayoutNumber(4), .version = SampleVersion(6)},
      Abandon{.layout = LayoutNumber(4)},
      Switch{.version = SampleVersion(6)},
      Prepared{.layout = LayoutNumber(4), .error = "e"},
      Filled{.layout = LayoutNumber(4), .error = "e"},
      Fetch{.request = 1, .version = SampleVersion(6), .array = 2, .ranges = {{16, 32}, {0, 16}}},
      FetchData{.request = 1, .version = SampleVersion(6)},
      ConnectAhead{.layout = LayoutNumber(4),
                   .servers = {{"h:1", Incarnation(2), "ps:0"}, {"h:2", Incarnation(3), "ps:1"}}},
      ConnectedAhead{.layout = LayoutNumber(4)},
  };
}

}  // namespace evenkeel
