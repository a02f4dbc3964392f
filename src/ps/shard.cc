#include "evenkeel/ps/shard.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "ps/apply_kernels.h"
#include "ps/snapshot_arena.h"
#include "ps/version_pool.h"

namespace evenkeel::ps {
namespace {

// A block of gradient sums stays in the first-level cache from sum to step.
constexpr std::int64_t kPieceFloats = 2048;
// Buckets are handed on in lots of so many pieces (1 MiB): threads are gathered after each lot.
constexpr std::size_t kPiecesAtOnce = 128;
// A version of so many floats falls out of the caches before anyone reads it.
constexpr std::int64_t kPastCachesFloats = 8 << 20;

float InitialSlotValue(const OptimizerSpec& optimizer, std::string_view name) {
  return name == "accumulator" ? optimizer.initial_accumulator : 0.0f;
}

std::span<float> Cut(std::span<float> all, std::int64_t begin, std::int64_t count) {
  return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

}  // namespace

// What all pieces of one Apply share.
struct Shard::ApplyStep {
  StepConstants constants;
  std::span<const float* const> sources;  // local
  const float* from = nullptr;
  float* to = nullptr;
  bool folded = false;  // the one source is the sum, and squares tells of the updates already
  bool past_caches = false;
};

Shard::Shard(Place place, ThreadPool& pool) : place_(std::move(place)), pool_(pool) {}
Shard::~Shard() = default;

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(Place place, ThreadPool& pool, MemoryKind versions) {
  std::unique_ptr<Shard> shard(new Shard(std::move(place), pool));
  const ParameterLayout& layout = *shard->place_.layout;
  shard->floats_ = layout.ServerFloats(shard->place_.server);
  shard->parameter_floats_ = layout.ServerParameterFloats(shard->place_.server);
  shard->CutPieces();
  EK_ASSIGN_OR_RETURN(shard->versions_, VersionPool::Create(shard->floats_, versions));

  const std::size_t slots = SlotNames(shard->place_.optimizer).size();
  const auto slot_floats = static_cast<std::size_t>(shard->parameter_floats_);
  EK_ASSIGN_OR_RETURN(shard->optimizer_arena_, Arena::Allocate(slots * slot_floats * sizeof(float)));
  for (std::size_t i = 0; i < slots; ++i) {
    shard->optimizer_slots_.push_back(shard->optimizer_arena_.floats().subspan(i * slot_floats, slot_floats));
  }

  std::vector<std::int64_t> arrays(1 + slots, shard->parameter_floats_);
  arrays[0] = shard->floats_;
  std::vector<SnapshotArena::Part> stripes;
  for (std::size_t bucket = 0; bucket < layout.buckets().size(); ++bucket) {
    const Stripe& stripe = layout.StripeOf(static_cast<int>(bucket), shard->place_.server);
    stripes.push_back({stripe.local_offset, stripe.local_offset + stripe.size()});
  }
  EK_ASSIGN_OR_RETURN(shard->snapshot_, SnapshotArena::Create(arrays, std::move(stripes)));
  return shard;
}

void Shard::CutPieces() {
  const ParameterLayout& layout = *place_.layout;
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    first_piece_.push_back(pieces_.size());
    const Bucket& bucket = layout.buckets()[b];
    const Stripe& stripe = layout.StripeOf(static_cast<int>(b), place_.server);
    for (int t = bucket.first_tensor; t <= bucket.last_tensor && stripe.size() > 0; ++t) {
      const TensorPlace& tensor = layout.places()[static_cast<size_t>(t)];
      const TensorSpec& spec = layout.tensors()[static_cast<size_t>(t)];
      const std::int64_t begin = std::max(stripe.begin, tensor.offset);
      const std::int64_t end = std::min(stripe.end, tensor.offset + tensor.count);
      if (begin >= end) continue;
      const std::int64_t local = stripe.local_offset + (begin - stripe.begin);
      parts_.push_back({t, begin - tensor.offset, local, end - begin});
      for (std::int64_t at = local; at < local + (end - begin); at += kPieceFloats) {
        pieces_.push_back(Piece{.begin = at,
                                .end = std::min(at + kPieceFloats, local + (end - begin)),
                                .bucket = static_cast<int>(b),
                                .statistic = spec.statistic,
                                .decay = spec.decay && !spec.statistic,
                                .momentum = spec.statistic_momentum});
      }
    }
  }
  first_piece_.push_back(pieces_.size());
}

void Shard::Initialise(std::uint64_t seed, Version version) {
  VersionPool::Target target = versions_->BeginWrite();
  const std::vector<std::string> names = SlotNames(place_.optimizer);
  pool_.ParallelFor(static_cast<std::int64_t>(parts_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const OwnedTensorPart& part = parts_[static_cast<size_t>(i)];
      const TensorSpec& tensor = place_.layout->tensors()[static_cast<size_t>(part.tensor)];
      InitializeTensor(tensor, seed, part.tensor_begin, Cut(target.to, part.local_begin, part.count));
      if (tensor.statistic) continue;
      for (std::size_t s = 0; s < names.size(); ++s) {
        std::span<float> slot = Cut(optimizer_slots_[s], part.local_begin, part.count);
        std::fill(slot.begin(), slot.end(), InitialSlotValue(place_.optimizer, names[s]));
      }
    }
  });
  versions_->Publish(target, version);
}

absl::Status Shard::CheckManifest(const Manifest& manifest) const {
  const ParameterLayout& layout = *place_.layout;
  auto differs = [&](std::string what) {
    return absl::FailedPreconditionError(
        absl::StrCat("[ps] checkpoint ", CheckpointName(manifest.version), " is of another model: ", what));
  };
  if (manifest.tensors.size() != layout.tensors().size()) {
    return differs(absl::StrCat(manifest.tensors.size(), " tensors, this model has ", layout.tensors().size()));
  }
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const TensorSpec& theirs = manifest.tensors[i];
    const TensorSpec& ours = layout.tensors()[i];
    if (theirs.name != ours.name || theirs.shape != ours.shape || theirs.statistic != ours.statistic) {
      return differs(absl::StrCat("tensor ", i, " is ", theirs.name, " ", theirs.shape.ToString(), ", this model has ",
                                  ours.name, " ", ours.shape.ToString()));
    }
  }
  if (manifest.total_floats != layout.total_floats() || manifest.parameter_floats != layout.parameter_floats()) {
    return differs(absl::StrCat(manifest.total_floats, " floats, this model has ", layout.total_floats()));
  }
  return absl::OkStatus();
}

absl::Status Shard::Restore(const CheckpointReader& reader, Version version) {
  EK_RETURN_IF_ERROR(CheckManifest(reader.manifest()));
  const ParameterLayout& layout = *place_.layout;
  const std::vector<std::string> names = SlotNames(place_.optimizer);
  const std::vector<std::string> stored = SlotNames(reader.manifest().optimizer);
  VersionPool::Target target = versions_->BeginWrite();
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    const Stripe& stripe = layout.StripeOf(static_cast<int>(b), place_.server);
    if (stripe.size() == 0) continue;
    EK_RETURN_IF_ERROR(reader.Read("parameters", stripe.begin, Cut(target.to, stripe.local_offset, stripe.size())));
    if (layout.buckets()[b].statistic) continue;
    for (std::size_t s = 0; s < names.size(); ++s) {
      if (std::find(stored.begin(), stored.end(), names[s]) == stored.end()) continue;
      EK_RETURN_IF_ERROR(reader.Read(absl::StrCat("slot.", names[s]), stripe.begin,
                                     Cut(optimizer_slots_[s], stripe.local_offset, stripe.size())));
    }
  }
  for (std::size_t s = 0; s < names.size(); ++s) {
    if (std::find(stored.begin(), stored.end(), names[s]) != stored.end()) continue;
    LogWarning(absl::StrCat("checkpoint ", CheckpointName(reader.manifest().version), " was made with ",
                            ToString(reader.manifest().optimizer.kind), "; ", ToString(place_.optimizer.kind),
                            "'s slot ", names[s], " starts anew"));
    for (const OwnedTensorPart& part : parts_) {
      if (layout.tensors()[static_cast<size_t>(part.tensor)].statistic) continue;
      std::span<float> slot = Cut(optimizer_slots_[s], part.local_begin, part.count);
      std::fill(slot.begin(), slot.end(), InitialSlotValue(place_.optimizer, names[s]));
    }
  }
  versions_->Publish(target, version);
  return absl::OkStatus();
}

absl::Status Shard::AllocateSlot(StageSlot slot) {
  for (;;) {
    {
      MutexLock lock(staging_mutex_);
      if (staging_.size() > slot.value()) return absl::OkStatus();
    }
    EK_ASSIGN_OR_RETURN(Arena arena, Arena::Allocate(static_cast<std::size_t>(floats_) * sizeof(float)));
    MutexLock lock(staging_mutex_);
    staging_.push_back(std::move(arena));
  }
}

std::span<float> Shard::Staging(StageSlot slot) const {
  MutexLock lock(staging_mutex_);
  EK_CHECK(slot.value() < staging_.size());
  return staging_[slot.value()].floats();
}

std::vector<const float*> Shard::Sources(std::span<const StageSlot> slots) const {
  std::vector<const float*> sources;
  for (StageSlot slot : slots) sources.push_back(Staging(slot).data());
  return sources;
}

std::span<float> Shard::StageInto(StageSlot slot, int bucket) const {
  const Stripe& stripe = place_.layout->StripeOf(bucket, place_.server);
  return Cut(Staging(slot), stripe.local_offset, stripe.size());
}

std::vector<BlockNorm> Shard::Norms(std::span<const StageSlot> slots) const {
  struct Block {
    std::int64_t flat = 0, local = 0, count = 0;
  };
  const ParameterLayout& layout = *place_.layout;
  std::vector<Block> blocks;
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    if (layout.buckets()[b].statistic) continue;
    const Stripe& stripe = layout.StripeOf(static_cast<int>(b), place_.server);
    for (std::int64_t at = 0; at < stripe.size(); at += kNormBlockFloats) {
      blocks.push_back({stripe.begin + at, stripe.local_offset + at, std::min(kNormBlockFloats, stripe.size() - at)});
    }
  }
  const std::vector<const float*> sources = Sources(slots);
  std::vector<BlockNorm> norms(blocks.size());
  pool_.ParallelFor(static_cast<std::int64_t>(blocks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::array<float, kNormBlockFloats> sum;
    for (std::int64_t i = begin; i < end; ++i) {
      const Block& block = blocks[static_cast<size_t>(i)];
      SumSources(sources, block.local, block.count, sum.data());
      norms[static_cast<size_t>(i)] = {block.flat, SquaredSum(sum.data(), block.count)};
    }
  });
  std::sort(norms.begin(), norms.end(), [](const BlockNorm& a, const BlockNorm& b) { return a.begin < b.begin; });
  return norms;
}

void Shard::FoldBucket(int bucket, std::int32_t first, std::int32_t positions, std::span<const StageSlot> from) {
  std::vector<const float*> sources{Staging(StageSlot(0)).data()};
  for (StageSlot slot : from) sources.push_back(Staging(slot).data());
  float* sum = Staging(StageSlot(0)).data();
  const std::size_t sums = place_.measure_gradients ? static_cast<std::size_t>(positions) + 1 : 0;
  if (squares_.size() != pieces_.size() * sums) squares_.assign(pieces_.size() * sums, 0.0);
  const std::size_t begin_piece = first_piece_[static_cast<std::size_t>(bucket)];
  const std::size_t end_piece = first_piece_[static_cast<std::size_t>(bucket) + 1];
  pool_.ParallelFor(static_cast<std::int64_t>(end_piece - begin_piece), 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t i = begin_piece + static_cast<std::size_t>(begin); i < begin_piece + static_cast<std::size_t>(end);
         ++i) {
      const Piece& piece = pieces_[i];
      const std::int64_t count = piece.end - piece.begin;
      if (sums > 0 && !piece.statistic) {
        const auto place = static_cast<std::size_t>(first);
        double* squares = &squares_[i * sums];
        for (std::size_t s = first == 1 ? 0 : 1; s < sources.size(); ++s) {
          squares[place - 1 + s] = SquaredSum(sources[s] + piece.begin, count);
        }
      }
      SumSources(sources, piece.begin, count, sum + piece.begin);
    }
  });
}

// One source, or two whose sum nobody else wants, are read where they lie; of more, all but the last are summed first.
void Shard::ApplyPiece(const Piece& piece, const ApplyStep& apply, std::span<double> squares) {
  alignas(64) std::array<float, kPieceFloats> sum;
  const std::span<const float* const> sources = apply.sources;
  const std::int64_t count = piece.end - piece.begin;
  const bool measured = !squares.empty() && !piece.statistic;
  const bool whole_sum = sources.size() > 1 && (measured || piece.statistic);
  GradientSum gradient = {sources[0] + piece.begin, nullptr};
  if (whole_sum || sources.size() > 2) {
    SumSources(sources.first(whole_sum ? sources.size() : sources.size() - 1), piece.begin, count, sum.data());
    gradient.first = sum.data();
  }
  if (!whole_sum && sources.size() > 1) gradient.second = sources.back() + piece.begin;
  if (measured && apply.folded) {
    squares.back() = SquaredSum(gradient.first, count);
    if (squares.size() == 2) squares.front() = squares.back();  // nothing was ever added
  } else if (measured) {
    for (std::size_t s = 0; s < sources.size(); ++s) squares[s] = SquaredSum(sources[s] + piece.begin, count);
    squares.back() = whole_sum ? SquaredSum(sum.data(), count) : squares.front();
  }
  const float* from = apply.from + piece.begin;
  float* to = apply.to + piece.begin;
  if (piece.statistic) return StatisticStep(apply.constants, piece.momentum, count, gradient.first, from, to);
  std::array<float*, 2> slots{};
  for (std::size_t s = 0; s < optimizer_slots_.size(); ++s) slots[s] = optimizer_slots_[s].data() + piece.begin;
  OptimizerStep(apply.constants, piece.decay, count, gradient, from, to, slots[0], slots[1],
                apply.past_caches ? Destination::kMemory : Destination::kCaches);
}

std::vector<double> Shard::Apply(const Decision& decision, std::span<const StageSlot> slots, const BucketReady& ready,
                                 bool folded) {
  EK_CHECK(!slots.empty() && decision.samples > 0 && (!folded || slots.size() == 1));
  if (snapshot_->open()) {
    pool_.ParallelFor(static_cast<std::int64_t>(snapshot_->stripes()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) snapshot_->CopyStripe(static_cast<size_t>(b));
    });
  }
  const std::vector<const float*> sources = Sources(slots);
  const std::size_t sums = place_.measure_gradients ? (folded ? decision.updates.size() : sources.size()) + 1 : 0;
  if (!folded || squares_.size() != pieces_.size() * sums) squares_.assign(pieces_.size() * sums, 0.0);
  VersionPool::Target target = versions_->BeginWrite();
  const ApplyStep apply = {.constants = StepConstants::For(place_.optimizer, decision.learning_rate, decision.samples,
                                                           decision.clip_scale, decision.version.commit.value()),
                           .sources = sources,
                           .from = target.from.data(),
                           .to = target.to.data(),
                           .folded = folded,
                           .past_caches = target.from.data() != target.to.data() && floats_ >= kPastCachesFloats};
  auto apply_pieces = [&](std::size_t first, std::size_t last) {
    pool_.ParallelFor(static_cast<std::int64_t>(last - first), 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::size_t i = first + static_cast<std::size_t>(begin); i < first + static_cast<std::size_t>(end); ++i) {
        ApplyPiece(pieces_[i], apply, std::span(squares_).subspan(i * sums, sums));
      }
      if (apply.past_caches) FinishSteps();
    });
  };
  const std::optional<PinnedVersion> pinned =
      ready ? versions_->PinTarget(target, decision.version) : std::optional<PinnedVersion>();
  if (pinned) {
    // Backward finishes the last layers first, so that their buckets are the first ones.
    for (std::size_t last = first_piece_.size() - 1; last > 0;) {
      std::size_t first = last - 1;
      while (first > 0 && first_piece_[last] - first_piece_[first] < kPiecesAtOnce) --first;
      apply_pieces(first_piece_[first], first_piece_[last]);
      for (std::size_t bucket = last; bucket-- > first;) ready(static_cast<int>(bucket), *pinned);
      last = first;
    }
  } else {
    apply_pieces(0, pieces_.size());
  }
  versions_->Publish(target, decision.version);
  std::vector<double> squared_sums(sums, 0.0);
  for (std::size_t i = 0; i < squares_.size(); ++i) squared_sums[i % sums] += squares_[i];
  return squared_sums;
}

PinnedVersion Shard::Newest() const { return versions_->Newest(); }

std::span<const float> Shard::StripeOf(const PinnedVersion& version, int bucket) const {
  const Stripe& stripe = place_.layout->StripeOf(bucket, place_.server);
  return version.floats.subspan(static_cast<size_t>(stripe.local_offset), static_cast<size_t>(stripe.size()));
}

// The parameters' buffer is changed by the next Apply at the earliest, which copies everything first.
void Shard::BeginSnapshot() {
  std::vector<std::span<const float>> sources{versions_->current()};
  for (std::span<float> slot : optimizer_slots_) sources.emplace_back(slot);
  snapshot_->Open(std::move(sources));
}

absl::StatusOr<PartInfo> Shard::WriteSnapshot(Storage& storage, const std::string& folder, const std::string& file) {
  snapshot_->CopyAll();
  const ParameterLayout& layout = *place_.layout;
  std::vector<PartArray> arrays{{.name = "parameters", .segments = {}}};
  for (const std::string& name : SlotNames(place_.optimizer)) {
    arrays.push_back({.name = absl::StrCat("slot.", name), .segments = {}});
  }
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    const Stripe& stripe = layout.StripeOf(static_cast<int>(b), place_.server);
    if (stripe.size() == 0) continue;
    const std::size_t held = layout.buckets()[b].statistic ? 1 : arrays.size();
    for (std::size_t i = 0; i < held; ++i) {
      arrays[i].segments.push_back({stripe.begin, snapshot_->array(i).subspan(static_cast<size_t>(stripe.local_offset),
                                                                              static_cast<size_t>(stripe.size()))});
    }
  }
  auto written = WritePart(storage, folder, file, arrays);
  snapshot_->Close();
  return written;
}

}  // namespace evenkeel::ps
