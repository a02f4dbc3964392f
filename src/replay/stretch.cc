#include "replay/stretch.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/bfloat16.h"
#include "evenkeel/core/status.h"
#include "replay/compare.h"

namespace evenkeel::replay {
namespace {

// Blocks of squared sums are cut by server, so that their total may differ in the last bits of a double.
constexpr double kClipTolerance = 1e-9;
// A loss moves more than the parameters it is computed on.
constexpr double kLossFactor = 10;
// A step on fewer is done before another thread has woken up.
constexpr std::int64_t kFloatsAThread = 1 << 20;

double RelativeDifference(double a, double b) {
  const double scale = std::max(std::abs(a), std::abs(b));
  return scale > 0 ? std::abs(a - b) / scale : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stretch>> Stretch::Open(Context& context, const Experiment& experiment) {
  std::unique_ptr<Stretch> stretch(new Stretch(context, experiment));
  EK_ASSIGN_OR_RETURN(stretch->data_, OpenTrainingData(experiment.input, context.options.data_folder));
  for (const auto& [version, manifest] : context.sources.checkpoints) {
    if (manifest.spec_hash != experiment.spec_hash || manifest.data_fingerprint == stretch->data_.fingerprint) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("[replay] the training data here are not those that the job read: their fingerprint is ",
                     stretch->data_.fingerprint, ", in checkpoint ", CheckpointName(version), " it is ",
                     manifest.data_fingerprint, "; --data names the folder"));
  }
  EK_RETURN_IF_ERROR(stretch->MakeShard());
  return stretch;
}

absl::Status Stretch::MakeShard() {
  const ExampleSpec& spec = data_.dataset->spec();
  // For its tensors alone; nothing is allocated before a first batch.
  const std::unique_ptr<Backend> backend = MakeReferenceBackend(DType::kFloat32);
  EK_ASSIGN_OR_RETURN(
      const std::unique_ptr<Model> model,
      Model::Build(experiment_.model, ModelOptions{spec.features, spec.label_width, spec.sparse}, *backend));
  std::set<std::size_t> servers{1};
  for (const LineCommit& commit : context_.sources.history.line) {
    for (const CommittedUpdate& update : commit.decision.updates) servers.insert(update.computed_on.size());
  }
  const std::vector<TensorSpec> tensors(model->tensors().begin(), model->tensors().end());
  for (std::size_t count : servers) {
    EK_ASSIGN_OR_RETURN(ParameterLayout layout, ParameterLayout::Create(tensors, experiment_.train.bucket_bytes,
                                                                        static_cast<std::uint32_t>(count)));
    layouts_.emplace(count, std::move(layout));
  }
  ps::Place place{std::make_shared<const ParameterLayout>(layouts_.at(1)), ServerIndex(0), experiment_.train.optimizer};
  const std::int64_t threads =
      std::min<std::int64_t>(AvailableCores(), 1 + place.layout->total_floats() / kFloatsAThread);
  pool_ = std::make_unique<ThreadPool>(static_cast<int>(threads));
  EK_ASSIGN_OR_RETURN(shard_, ps::Shard::Create(std::move(place), *pool_));
  return absl::OkStatus();
}

void Stretch::Initialise(Version version) {
  shard_->Initialise(experiment_.train.seed, version);
  from_seed_ = true;
}

absl::Status Stretch::Restore(Version version) {
  EK_ASSIGN_OR_RETURN(const CheckpointReader reader,
                      OpenCheckpoint(context_.sources, context_.storage, context_.options.model_dir, version));
  return shard_->Restore(reader, version);
}

// Through a checkpoint in memory, as the servers did it through one on disk.
absl::Status Stretch::GoOnFrom(Stretch& other) {
  const std::unique_ptr<Storage> memory = MakeMemoryStorage();
  Manifest manifest = context_.sources.checkpoints.begin()->second;
  const ParameterLayout& layout = *other.shard_->place().layout;
  manifest.version = other.version();
  manifest.tensors = layout.tensors();
  manifest.optimizer = other.experiment_.train.optimizer;
  manifest.parameter_floats = layout.parameter_floats();
  manifest.total_floats = layout.total_floats();
  const std::string folder = CheckpointFolder("state", manifest.version);
  EK_RETURN_IF_ERROR(memory->MakeFolder(folder));
  other.shard_->BeginSnapshot();
  EK_ASSIGN_OR_RETURN(PartInfo part, other.shard_->WriteSnapshot(*memory, folder, PartFileName(ServerIndex(0), 1)));
  manifest.parts = {std::move(part)};
  EK_RETURN_IF_ERROR(WriteManifest(*memory, "state", manifest));
  EK_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(*memory, "state", manifest.version));
  return shard_->Restore(reader, manifest.version);
}

absl::StatusOr<VersionWindow> Stretch::OpenWindow(std::span<const LineCommit> commits) {
  const Version start = version();
  std::map<CommitNumber, CommitNumber> last_use;
  for (const LineCommit& commit : commits) {
    for (const CommittedUpdate& update : commit.decision.updates) {
      for (const Version& used : update.computed_on) {
        if (used.commit < start.commit) {
          return absl::InvalidArgumentError(
              absl::StrCat("[replay] ", ToString(commit.decision.version), " holds an update that was computed on ",
                           ToString(used), ", before ", ToString(start),
                           ": without that state it cannot be recomputed; begin earlier, or where the "
                           "job went back to a checkpoint"));
        }
        last_use[used.commit] = commit.decision.version.commit;
      }
    }
  }
  VersionWindow window(std::move(last_use), experiment_.train.parameter_wire_dtype);
  window.Publish(start.commit, *shard_);
  return window;
}

absl::Status Stretch::CompareFingerprints(std::span<const LineCommit> commits) {
  std::map<std::size_t, std::int64_t> updates;
  for (const LineCommit& commit : commits) {
    for (std::size_t fingerprint : commit.fingerprints) ++updates[fingerprint];
  }
  std::vector<ReplayedFingerprint>& known = context_.report.fingerprints;
  for (const auto& [index, count] : updates) {
    const std::string& recorded = context_.sources.history.fingerprints[index];
    auto it = std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.recorded == recorded; });
    if (it == known.end()) {
      EK_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeBackendLike(recorded, experiment_.train));
      it = known.insert(known.end(), ReplayedFingerprint{recorded, backend->Fingerprint(), 0});
    }
    it->updates += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<UpdatePipeline>> Stretch::OpenPipeline(std::span<const LineCommit> commits,
                                                                      VersionWindow& window) {
  const History& history = context_.sources.history;
  int threads = 1;
  std::size_t widest = 1, updates = 0;
  for (const LineCommit& commit : commits) {
    for (std::size_t index : commit.fingerprints) threads = std::max(threads, ThreadsOf(history.fingerprints[index]));
    widest = std::max(widest, commit.decision.updates.size());
    updates += commit.decision.updates.size();
  }
  const int jobs = context_.options.jobs > 0 ? context_.options.jobs : std::max(1, AvailableCores() / threads);
  const std::size_t ahead = std::min<std::size_t>(updates, 2 * static_cast<std::size_t>(jobs));
  const auto slots = static_cast<std::uint32_t>(std::max(widest, ahead));
  return UpdatePipeline::Create(
      commits, *shard_, window,
      [this](std::size_t index) -> absl::StatusOr<std::unique_ptr<GradientComputer>> {
        const std::string& fingerprint = context_.sources.history.fingerprints[index];
        EK_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeBackendLike(fingerprint, experiment_.train));
        return GradientComputer::Create(experiment_, *data_.dataset, layouts_.at(1), std::move(backend));
      },
      [this](std::size_t servers) -> const ParameterLayout& { return layouts_.at(servers); }, jobs, slots);
}

void Stretch::CheckComputed(const LineCommit& commit, const UpdatePipeline::Computed& computed) {
  const Decision& decision = commit.decision;
  const auto find = [&](std::string text) { context_.find({decision.version.commit, std::move(text)}); };
  double loss = 0;
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < computed.results.size(); ++i) {
    const StepResult& result = computed.results[i];
    loss += result.loss_sum;
    samples += result.samples;
    if (result.non_finite > 0) {
      find(absl::StrCat("update ", ToString(decision.updates[i].update), " has ", result.non_finite,
                        " NaN or infinite values in layer '", result.non_finite_layer, "'; such a one never commits"));
    }
  }
  if (samples != decision.samples) {
    find(absl::StrCat("it is divided by ", decision.samples, " samples, recomputed were ", samples));
  }
  const double recorded = decision.loss_sum;
  const double allowed = kLossFactor * context_.options.tolerance * (std::abs(recorded) + static_cast<double>(samples));
  const bool agrees = context_.exact ? loss == recorded : std::abs(loss - recorded) <= allowed;
  if (!agrees) {
    find(absl::StrFormat("its loss is %.17g over %d samples, recomputed %.17g", recorded, decision.samples, loss));
  }
  const SyncConfig& sync = experiment_.train.sync;
  if (sync.mode == SyncConfig::Mode::kSsp && commit.lead > sync.staleness) {
    find(absl::StrCat("its ticket was bound ", commit.lead, " clocks ahead of the slowest worker; staleness is ",
                      sync.staleness));
  }
}

void Stretch::PassWire(const CommittedUpdate& update, std::int64_t samples, ps::StageSlot slot) {
  if (experiment_.train.wire_dtype == WireDtype::kFloat32 || samples <= 0) return;
  Rest& rest = rests_[update.update.incarnation];
  const ParameterLayout& layout = *shard_->place().layout;
  bool kept = update.feedback > 0;
  if (kept && rest.sequence != update.feedback) {
    kept = false;
    context_.exact = false;
    if (!std::exchange(said_rest_, true)) {
      context_.report.notes.push_back(absl::StrCat("what rounding for the wire took from update ", update.feedback,
                                                   " of incarnation ", update.update.incarnation.value(),
                                                   " is not known here: begin at the job's start for the same bits"));
    }
  }
  rest.sequence = update.update.sequence;
  rest.floats.resize(static_cast<std::size_t>(layout.parameter_floats()));
  std::size_t at = 0;
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    if (layout.buckets()[b].statistic) continue;
    const std::span<float> sums = shard_->StageInto(slot, static_cast<int>(b));
    const std::span<float> part = std::span(rest.floats).subspan(at, sums.size());
    at += sums.size();
    means_.resize(std::max(means_.size(), sums.size()));
    const std::span<std::uint16_t> means = std::span(means_).first(sums.size());
    EncodeMeans(sums, samples, kept ? part : std::span<float>(), means, part);
    DecodeSums(means, samples, sums);
  }
}

// Of workers that have no update any more.
void Stretch::ForgetRests(std::span<const LineCommit> commits, std::size_t done) {
  for (const CommittedUpdate& update : commits[done].decision.updates) {
    if (last_update_.at(update.update.incarnation) == done) rests_.erase(update.update.incarnation);
  }
}

void Stretch::CheckClipping(const Decision& decision, std::span<const ps::StageSlot> slots) {
  const double limit = static_cast<double>(experiment_.train.optimizer.clip_norm);
  double scale = 1;
  if (limit > 0) {
    std::vector<BlockNorm> blocks = shard_->Norms(slots);
    std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    double squared = 0;
    for (const BlockNorm& block : blocks) squared += block.squared_sum;
    const double norm = std::sqrt(squared) / static_cast<double>(decision.samples);
    if (norm > limit) scale = limit / norm;
  }
  const double allowed = context_.exact ? kClipTolerance : context_.options.tolerance;
  if (RelativeDifference(scale, decision.clip_scale) <= allowed) return;
  context_.find(
      {decision.version.commit, absl::StrFormat("its gradient is scaled by %.17g, clipping at norm %g gives %.17g",
                                                decision.clip_scale, limit, scale)});
}

bool Stretch::Reproducible(const LineCommit& commit) const {
  const std::vector<ReplayedFingerprint>& known = context_.report.fingerprints;
  return std::all_of(commit.fingerprints.begin(), commit.fingerprints.end(), [&](std::size_t index) {
    const std::string& recorded = context_.sources.history.fingerprints[index];
    return std::any_of(known.begin(), known.end(),
                       [&](const auto& one) { return one.recorded == recorded && one.reproducible(); });
  });
}

absl::Status Stretch::Compare() {
  const CommitNumber commit = version().commit;
  for (const auto& [at, manifest] : context_.sources.checkpoints) {
    if (at.commit != commit) continue;
    const auto reader = OpenCheckpoint(context_.sources, context_.storage, context_.options.model_dir, at);
    if (absl::IsNotFound(reader.status())) {
      context_.report.notes.push_back(absl::StrCat("checkpoint ", CheckpointName(at), " was removed meanwhile"));
      continue;
    }
    if (!reader.ok()) return reader.status();
    EK_ASSIGN_OR_RETURN(Compared compared,
                        CompareWithCheckpoint(*reader, *shard_, context_.exact, context_.options.tolerance));
    for (std::string& difference : compared.differences) {
      context_.find({commit, absl::StrCat("checkpoint ", CheckpointName(at), ": ", difference)});
    }
    if (!context_.exact && !compared.comparison.arrays.empty()) {
      EK_RETURN_IF_ERROR(shard_->Restore(*reader, version()));
    }
    context_.report.checkpoints.push_back(std::move(compared.comparison));
  }
  return absl::OkStatus();
}

absl::Status Stretch::Run(std::span<const LineCommit> commits) {
  EK_RETURN_IF_ERROR(CompareFingerprints(commits));
  if (!commits.empty()) context_.exact = context_.exact && Reproducible(commits.front());
  if (from_seed_) EK_RETURN_IF_ERROR(Compare());
  EK_ASSIGN_OR_RETURN(VersionWindow window, OpenWindow(commits));
  EK_ASSIGN_OR_RETURN(const std::unique_ptr<UpdatePipeline> pipeline, OpenPipeline(commits, window));
  last_update_.clear();
  for (std::size_t i = 0; i < commits.size(); ++i) {
    for (const CommittedUpdate& update : commits[i].decision.updates) last_update_[update.update.incarnation] = i;
  }
  for (const LineCommit& commit : commits) {
    const Decision& decision = commit.decision;
    EK_ASSIGN_OR_RETURN(const UpdatePipeline::Computed computed, pipeline->Next(version().commit));
    context_.exact = context_.exact && Reproducible(commit);
    CheckComputed(commit, computed);
    for (std::size_t i = 0; i < computed.slots.size(); ++i) {
      PassWire(decision.updates[i], computed.results[i].samples, computed.slots[i]);
    }
    CheckClipping(decision, computed.slots);
    shard_->Apply(decision, computed.slots);
    pipeline->Release(computed);
    ForgetRests(commits, static_cast<std::size_t>(&commit - commits.data()));
    EK_RETURN_IF_ERROR(Compare());
    window.Applied(decision.version.commit);
    window.Publish(decision.version.commit, *shard_);
    context_.done(commit);
  }
  return absl::OkStatus();
}

}  // namespace evenkeel::replay
