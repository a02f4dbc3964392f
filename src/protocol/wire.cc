#include "evenkeel/protocol/wire.h"

#include <google/protobuf/stubs/logging.h>

#include "evenkeel/core/status.h"
#include "protocol/bodies.h"
#include "protocol/field_map.h"

namespace evenkeel {
namespace wire {
namespace {

constexpr int kMaxRank = 16;

// Length of the UTF-8 sequence at text[i]; 0: none there.
std::size_t Utf8Length(const std::string& text, std::size_t i) {
  auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
  auto continued = [&](std::size_t at) { return (byte(at) & 0xC0u) == 0x80u; };
  unsigned first = byte(i);
  if (first < 0x80u) return 1;
  if (first >= 0xC2u && first <= 0xDFu) return continued(i + 1) ? 2 : 0;
  if (first >= 0xE0u && first <= 0xEFu) {
    unsigned low = first == 0xE0u ? 0xA0u : 0x80u;
    unsigned high = first == 0xEDu ? 0x9Fu : 0xBFu;  // no surrogates
    return byte(i + 1) >= low && byte(i + 1) <= high && continued(i + 2) ? 3 : 0;
  }
  if (first >= 0xF0u && first <= 0xF4u) {
    unsigned low = first == 0xF0u ? 0x90u : 0x80u;
    unsigned high = first == 0xF4u ? 0x8Fu : 0xBFu;
    return byte(i + 1) >= low && byte(i + 1) <= high && continued(i + 2) && continued(i + 3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string Utf8(const std::string& text) {
  std::string result = text;
  for (std::size_t i = 0; i < result.size();) {
    std::size_t length = Utf8Length(result, i);
    if (length == 0) {
      result[i] = '?';
      length = 1;
    }
    i += length;
  }
  return result;
}

// ------------------------------------------------------------------------------------------------ nested messages

template <class D>
void Map(D& d, In<D, Envelope> m, Out<D, pb::Envelope> p) {
  EK_VALUE(job_id);
  EK_VALUE(spec_hash);
  EK_VALUE(term);
  EK_VALUE(generation);
  EK_VALUE(layout);
  EK_VALUE(sender);
  EK_VALUE(membership_epoch);
}

template <class D>
void Map(D& d, In<D, InitializerSpec> m, Out<D, pb::InitializerSpec> p) {
  EK_ENUM(kind, pb::InitializerSpec::Kind, InitializerSpec::Kind::kLecunNormal);
  EK_VALUE(value);
  EK_VALUE(scale);
  EK_VALUE(fan_in);
  EK_VALUE(fan_out);
}

template <class D>
void Map(D& d, In<D, TensorSpec> m, Out<D, pb::TensorSpec> p) {
  EK_VALUE(name);
  if constexpr (D::kEncode) {
    for (std::int64_t dim : m.shape.dims()) p.add_shape(dim);
  } else if (p.shape_size() > kMaxRank) {
    d.Fail("shape", absl::StrCat("has ", p.shape_size(), " dimensions, at most ", kMaxRank, " are allowed"));
  } else {
    m.shape = Shape(std::span<const std::int64_t>(p.shape().data(), static_cast<std::size_t>(p.shape_size())));
    for (std::int64_t dim : p.shape()) {
      if (dim < 1) d.Fail("shape", absl::StrCat("has a dimension ", dim, "; each must be at least 1"));
    }
  }
  EK_MESSAGE(initializer);
  EK_VALUE(statistic);
  EK_VALUE(statistic_momentum);
  EK_VALUE(decay);
}

template <class D>
void Map(D& d, In<D, OptimizerSpec> m, Out<D, pb::OptimizerSpec> p) {
  EK_ENUM(kind, pb::OptimizerSpec::Kind, OptimizerSpec::Kind::kFtrl);
  EK_VALUE(momentum);
  EK_VALUE(beta1);
  EK_VALUE(beta2);
  EK_VALUE(rho);
  EK_VALUE(epsilon);
  EK_VALUE(initial_accumulator);
  EK_VALUE(ftrl_l1);
  EK_VALUE(ftrl_l2);
  EK_VALUE(ftrl_learning_rate_power);
  EK_VALUE(l2);
  EK_VALUE(weight_decay);
  EK_VALUE(clip_value);
  EK_VALUE(clip_norm);
}

using MetricPair = std::pair<std::string, double>;
template <class D>
void Map(D& d, In<D, MetricPair> m, Out<D, pb::Metric> p) {
  if constexpr (D::kEncode) {
    p.set_name(d.Value(m.first));
    p.set_value(m.second);
  } else {
    d.Value("name", p.name(), m.first);
    m.second = p.value();
  }
}

template <class D>
void Map(D& d, In<D, Member> m, Out<D, pb::Member> p) {
  EK_VALUE(incarnation);
  EK_VALUE(name);
}

template <class D>
void Map(D& d, In<D, BlockNorm> m, Out<D, pb::BlockNorm> p) {
  EK_VALUE(begin);
  EK_VALUE(squared_sum);
}

// --------------------------------------------------------------------------------------------------------- bodies

template <class D>
void Map(D& d, In<D, Holding> m, Out<D, pb::Holding> p) {
  EK_VALUE(layout);
  EK_VALUE(server);
  EK_VALUE(servers);
  EK_MESSAGE(decided);
  EK_VALUE(hash);
  EK_VALUE(applied);
}
template <class D>
void Map(D& d, In<D, Join> m, Out<D, pb::Join> p) {
  EK_ENUM(role, pb::Role, Role::kEvaluator);
  EK_VALUE(name);
  EK_VALUE(index);
  EK_VALUE(nonce);
  EK_VALUE(experiment_json);
  EK_VALUE(address);
  EK_VALUE(samples);
  EK_VALUE(data_fingerprint);
  EK_VALUE(data_statistics_json);
  EK_LIST(tensors);
  EK_VALUE(compute_fingerprint);
  EK_MESSAGE(holding);
  EK_VALUE(former);
}
template <class D>
void Map(D& d, In<D, Ready> m, Out<D, pb::Ready> p) {
  EK_VALUE(fixed_seconds);
  EK_VALUE(seconds_per_sample);
  EK_VALUE(memory_samples);
}
template <class D>
void Map(D& d, In<D, Renew> m, Out<D, pb::Renew> p) {
  EK_VALUE(state);
  EK_VALUE(since_ms);
  EK_VALUE(data_paths);
  EK_VALUE(memory_samples);
  EK_VALUE(filled_pieces);
}
template <class D>
void Map(D&, In<D, Renewed>, Out<D, pb::Renewed>) {}
template <class D>
void Map(D& d, In<D, Leave> m, Out<D, pb::Leave> p) {
  EK_VALUE(reason);
  EK_VALUE(after_ticket);
}
template <class D>
void Map(D& d, In<D, StepReport> m, Out<D, pb::StepReport> p) {
  EK_MESSAGE(update);
  EK_VALUE(samples);
  EK_VALUE(input_seconds);
  EK_VALUE(pull_seconds);
  EK_VALUE(compute_seconds);
  EK_VALUE(first_of_size);
}
template <class D>
void Map(D& d, In<D, EvalReport> m, Out<D, pb::EvalReport> p) {
  EK_MESSAGE(version);
  EK_LIST(metrics);
  EK_VALUE(final_score);
  EK_VALUE(stop);
  EK_VALUE(reason);
  EK_MESSAGE(best_version);
  EK_VALUE(best_metric);
  EK_VALUE(best_value);
}
template <class D>
void Map(D& d, In<D, StatusRequest> m, Out<D, pb::StatusRequest> p) {}

template <class D>
void Map(D& d, In<D, ExperimentRequest> m, Out<D, pb::ExperimentRequest> p) {
  EK_VALUE(name);
}
template <class D>
void Map(D& d, In<D, Drain> m, Out<D, pb::Drain> p) {
  EK_VALUE(name);
}
template <class D>
void Map(D& d, In<D, Scale> m, Out<D, pb::Scale> p) {
  EK_VALUE(servers);
}
template <class D>
void Map(D& d, In<D, Welcome> m, Out<D, pb::Welcome> p) {
  EK_VALUE(incarnation);
  EK_VALUE(job_id);
  EK_VALUE(experiment_json);
  EK_VALUE(lease_ms);
  EK_VALUE(renew_ms);
  EK_LIST(servers);
  EK_LIST(tensors);
  EK_VALUE(bucket_bytes);
  EK_VALUE(seed);
  EK_VALUE(likely_samples);
  EK_VALUES(likely_later);
}
template <class D>
void Map(D& d, In<D, Admitted> m, Out<D, pb::Admitted> p) {
  EK_VALUE(rank);
}
template <class D>
void Map(D& d, In<D, Waiting> m, Out<D, pb::Waiting> p) {
  EK_VALUE(for_whom);
  EK_VALUE(deadline_ms);
}
template <class D>
void Map(D& d, In<D, Ticket> m, Out<D, pb::Ticket> p) {
  EK_MESSAGE(update);
  EK_VALUE(epoch);
  EK_LIST(positions);
  if constexpr (!D::kEncode) CheckRanges(d, m.positions);
  EK_VALUE(bound);
  EK_MESSAGE(version);
  EK_VALUE(deadline_ms);
  EK_VALUE(offer);
}
template <class D>
void Map(D& d, In<D, Bind> m, Out<D, pb::Bind> p) {
  EK_MESSAGE(update);
  EK_MESSAGE(version);
  EK_VALUE(deadline_ms);
  EK_VALUE(offer);
}
template <class D>
void Map(D& d, In<D, Outcome> m, Out<D, pb::Outcome> p) {
  EK_MESSAGE(update);
  EK_VALUE(committed);
  EK_MESSAGE(version);
}
template <class D>
void Map(D& d, In<D, Refuse> m, Out<D, pb::Refuse> p) {
  EK_ENUM(reason, pb::RefuseReason, RefuseReason::kMalformed);
  EK_VALUE(message);
  EK_MESSAGE(update);
}
template <class D>
void Map(D& d, In<D, JobEnd> m, Out<D, pb::JobEnd> p) {
  EK_VALUE(ok);
  EK_VALUE(status);
  EK_VALUE(message);
}
template <class D>
void Map(D& d, In<D, CheckpointDurable> m, Out<D, pb::CheckpointDurable> p) {
  EK_MESSAGE(version);
  EK_VALUE(final_checkpoint);
}
template <class D>
void Map(D& d, In<D, StatusReply> m, Out<D, pb::StatusReply> p) {
  EK_VALUE(json);
}
template <class D>
void Map(D& d, In<D, ExperimentReply> m, Out<D, pb::ExperimentReply> p) {
  EK_VALUE(job_id);
  EK_VALUE(experiment_json);
  EK_VALUE(spec_hash);
}
template <class D>
void Map(D& d, In<D, LeaveNow> m, Out<D, pb::LeaveNow> p) {
  EK_VALUE(reason);
}
template <class D>
void Map(D& d, In<D, OrderReply> m, Out<D, pb::OrderReply> p) {
  EK_VALUE(accepted);
  EK_VALUE(message);
  EK_VALUE(unknown);
}

template <class D>
void Map(D& d, In<D, Configure> m, Out<D, pb::Configure> p) {
  EK_VALUE(server);
  EK_VALUE(servers);
  EK_LIST(tensors);
  EK_VALUE(bucket_bytes);
  EK_MESSAGE(optimizer);
  EK_VALUE(seed);
  EK_VALUE(model_dir);
  EK_VALUE(restore);
  EK_MESSAGE(checkpoint);
  EK_MESSAGE(version);
  EK_VALUE(measure_gradients);
  EK_VALUE(stage_slots);
}
template <class D>
void Map(D& d, In<D, Continue> m, Out<D, pb::Continue> p) {
  EK_MESSAGE(version);
}
template <class D>
void Map(D& d, In<D, Prepare> m, Out<D, pb::Prepare> p) {
  EK_VALUE(layout);
  EK_VALUE(server);
  EK_VALUE(servers);
  EK_LIST(tensors);
  EK_VALUE(bucket_bytes);
  EK_MESSAGE(optimizer);
  EK_LIST(sources);
  EK_VALUE(measure_gradients);
  EK_VALUE(stage_slots);
}
template <class D>
void Map(D& d, In<D, Fill> m, Out<D, pb::Fill> p) {
  EK_VALUE(layout);
  EK_MESSAGE(version);
}
template <class D>
void Map(D& d, In<D, Filled> m, Out<D, pb::Filled> p) {
  EK_VALUE(layout);
  EK_VALUE(error);
}
template <class D>
void Map(D& d, In<D, Abandon> m, Out<D, pb::Abandon> p) {
  EK_VALUE(layout);
}
template <class D>
void Map(D& d, In<D, Switch> m, Out<D, pb::Switch> p) {
  EK_MESSAGE(version);
}
template <class D>
void Map(D& d, In<D, Prepared> m, Out<D, pb::Prepared> p) {
  EK_VALUE(layout);
  EK_VALUE(error);
}
template <class D>
void Map(D& d, In<D, ConnectAhead> m, Out<D, pb::ConnectAhead> p) {
  EK_VALUE(layout);
  EK_LIST(servers);
}
template <class D>
void Map(D& d, In<D, ConnectedAhead> m, Out<D, pb::ConnectedAhead> p) {
  EK_VALUE(layout);
}
template <class D>
void Map(D& d, In<D, ReadDecisions> m, Out<D, pb::ReadDecisions> p) {
  EK_MESSAGE(after);
}
template <class D>
void Map(D& d, In<D, Members> m, Out<D, pb::Members> p) {
  EK_VALUE(epoch);
  EK_VALUE(full);
  EK_LIST(admitted);
  EK_VALUES(fenced);
}
template <class D>
void Map(D& d, In<D, Seal> m, Out<D, pb::Seal> p) {
  EK_VALUE(set);
  EK_VALUE(attempt);
  EK_LIST(updates);
  EK_VALUE(folded);
}
template <class D>
void Map(D& d, In<D, Drop> m, Out<D, pb::Drop> p) {
  EK_LIST(updates);
}
template <class D>
void Map(D& d, In<D, Snapshot> m, Out<D, pb::Snapshot> p) {
  EK_MESSAGE(version);
  EK_VALUE(folder);
  EK_VALUE(file);
}

template <class D>
void Map(D& d, In<D, Configured> m, Out<D, pb::Configured> p) {
  EK_VALUE(server);
  EK_MESSAGE(version);
  EK_VALUE(owned_floats);
}
template <class D>
void Map(D& d, In<D, KeptDecisions> m, Out<D, pb::KeptDecisions> p) {
  EK_LIST(decisions);
}
template <class D>
void Map(D& d, In<D, MembersAck> m, Out<D, pb::MembersAck> p) {
  EK_VALUE(epoch);
}
template <class D>
void Map(D& d, In<D, Staged> m, Out<D, pb::Staged> p) {
  EK_MESSAGE(update);
  EK_VALUE(samples);
  EK_VALUE(loss_sum);
  EK_VALUE(non_finite);
  EK_VALUE(non_finite_layer);
  EK_MESSAGE(computed_on);
  EK_VALUE(feedback);
  EK_VALUE(set_attempt);
}
template <class D>
void Map(D& d, In<D, Sealed> m, Out<D, pb::Sealed> p) {
  EK_VALUE(set);
  EK_VALUE(attempt);
  EK_LIST(norms);
}
template <class D>
void Map(D& d, In<D, Applied> m, Out<D, pb::Applied> p) {
  EK_MESSAGE(version);
  EK_VALUE(hash);
  EK_VALUE(apply_seconds);
  EK_VALUES(squared_sums);
}
template <class D>
void Map(D& d, In<D, SnapshotDone> m, Out<D, pb::SnapshotDone> p) {
  EK_MESSAGE(version);
  EK_VALUE(file);
  EK_VALUE(bytes);
  EK_VALUE(crc32c);
  EK_VALUE(error);
}

template <class D>
void Map(D& d, In<D, Hello> m, Out<D, pb::Hello> p) {
  EK_VALUE(name);
}
template <class D>
void Map(D& d, In<D, HelloAck> m, Out<D, pb::HelloAck> p) {
  EK_VALUE(server);
  EK_MESSAGE(version);
}
template <class D>
void Map(D& d, In<D, Stage> m, Out<D, pb::Stage> p) {
  EK_MESSAGE(update);
  EK_VALUE(attempt);
  EK_VALUE(bucket);
  EK_VALUE(closing);
  EK_VALUE(samples);
  EK_VALUE(loss_sum);
  EK_VALUE(non_finite);
  EK_VALUE(non_finite_layer);
  EK_MESSAGE(computed_on);
  EK_VALUE(feedback);
  EK_VALUE(mean_of);
  EK_VALUE(offered);
}
template <class D>
void Map(D& d, In<D, StageAck> m, Out<D, pb::StageAck> p) {
  EK_MESSAGE(update);
  EK_VALUE(attempt);
  EK_VALUE(complete);
  EK_VALUES(missing);
}
template <class D>
void Map(D& d, In<D, Pull> m, Out<D, pb::Pull> p) {
  EK_VALUE(request);
  EK_MESSAGE(at_least);
  EK_VALUE(deadline_ms);
  EK_VALUE(bfloat16);
}
template <class D>
void Map(D& d, In<D, PullData> m, Out<D, pb::PullData> p) {
  EK_VALUE(request);
  EK_MESSAGE(version);
  EK_VALUE(bucket);
}

template <class D>
void Map(D& d, In<D, Fetch> m, Out<D, pb::Fetch> p) {
  EK_VALUE(request);
  EK_MESSAGE(version);
  EK_VALUE(array);
  EK_LIST(ranges);
}
template <class D>
void Map(D& d, In<D, FetchData> m, Out<D, pb::FetchData> p) {
  EK_VALUE(request);
  EK_MESSAGE(version);
}

}  // namespace wire

std::string EncodeHeader(const Message& message) {
  v1::Packet packet;
  wire::Encoder encoder;
  wire::Map(encoder, message.envelope, *packet.mutable_envelope());
#define EK_ENCODE(type, field) \
  if (const auto* body = std::get_if<type>(&message.body)) wire::Map(encoder, *body, *packet.mutable_##field());
  EK_FOR_EACH_BODY(EK_ENCODE)
#undef EK_ENCODE
  return packet.SerializeAsString();
}

absl::StatusOr<Message> DecodeHeader(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[decode] packet of ", bytes.size(), " bytes without payload; at most ", kMaxHeaderBytes, " are allowed"));
  }
  v1::Packet packet;
  google::protobuf::LogSilencer silencer;  // a stranger's bytes must not flood the log
  if (!packet.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("[decode] ", bytes.size(), " bytes are no evenkeel.v1.Packet"));
  }
  Message message;
  wire::Decoder decoder;
  wire::Map(decoder, message.envelope, packet.envelope());
  switch (packet.body_case()) {
#define EK_DECODE(type, field)                                        \
  case v1::Packet::k##type:                                           \
    wire::Map(decoder, message.body.emplace<type>(), packet.field()); \
    break;
    EK_FOR_EACH_BODY(EK_DECODE)
#undef EK_DECODE
    case v1::Packet::BODY_NOT_SET:
      decoder.Fail("body", "is absent or of an unknown kind");
      break;
  }
  if (!decoder.ok()) return decoder.status();
  return message;
}

}  // namespace evenkeel
