#include "evenkeel/chief/log_history.h"

#include <algorithm>

namespace evenkeel {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

template <class Id>
void Raise(Id& highest, Id id) {
  highest = std::max(highest, id);
}

}  // namespace

void LogHistory::Add(const LogRecord& record) {
  std::visit(Overloaded{
                 [this](const TermRecord& term) {
                   job_id = term.job_id;
                   Raise(last_term, term.term);
                   end.reset();
                 },
                 [this](const AdmissionRecord& admission) {
                   Raise(last_incarnation, admission.incarnation);
                   Raise(membership_epoch, admission.epoch);
                   std::int64_t least = members.empty() ? 0 : members.begin()->second.clock;
                   for (const auto& [incarnation, member] : members) least = std::min(least, member.clock);
                   members[admission.incarnation] = Member{admission, least};
                 },
                 [this](const FenceRecord& fence) {
                   Raise(membership_epoch, fence.epoch);
                   members.erase(fence.incarnation);
                 },
                 [this](const LayoutRecord& record) {
                   Raise(last_generation, record.generation);
                   generation = record.generation;
                   for (const ServerAddress& server : record.servers) Raise(last_incarnation, server.incarnation);
                   layout = last_layout = record;
                 },
                 [this](const RollbackRecord& rollback) {
                   Raise(last_generation, rollback.generation);
                   generation = rollback.generation;
                   rollbacks.push_back(rollback);
                   layout.reset();
                   commits.clear();
                 },
                 [this](const CommitRecord& commit) {
                   samples_committed += commit.decision.samples;
                   for (const CommittedUpdate& update : commit.decision.updates) {
                     auto member = members.find(update.update.incarnation);
                     if (member != members.end()) {
                       member->second.clock = ClockAfter(update, member->second.clock);
                     }
                   }
                   commits.push_back(commit.decision);
                 },
                 [this](const CheckpointRecord& checkpoint) {
                   if (checkpoint.version.generation != generation) return;
                   while (!commits.empty() && commits.front().version <= checkpoint.version) commits.pop_front();
                 },
                 [this](const EndRecord& record) { end = record; },
                 [this](const SegmentRecord& segment) {
                   job_id = segment.job_id;
                   Raise(last_generation, segment.last_generation);
                   Raise(last_incarnation, segment.last_incarnation);
                   samples_committed = segment.samples_committed;
                   generation = segment.generation;
                   rollbacks = segment.rollbacks;
                   layout.reset();
                   if (!segment.layout.servers.empty()) layout = last_layout = segment.layout;
                   membership_epoch = segment.membership_epoch;
                   members.clear();
                   for (std::size_t i = 0; i < segment.members.size(); ++i) {
                     members[segment.members[i].incarnation] = Member{segment.members[i], segment.clocks[i]};
                   }
                 },
             },
             record);
}

SegmentRecord LogHistory::Segment() const {
  SegmentRecord segment;
  segment.job_id = job_id;
  segment.last_generation = last_generation;
  segment.last_incarnation = last_incarnation;
  segment.samples_committed = samples_committed;
  segment.generation = generation;
  segment.rollbacks = rollbacks;
  if (layout) segment.layout = *layout;
  segment.membership_epoch = membership_epoch;
  for (const auto& [incarnation, member] : members) {
    segment.members.push_back(member.admission);
    segment.clocks.push_back(member.clock);
  }
  return segment;
}

bool LogHistory::Survives(const Version& version) const {
  Version newest{generation, CommitNumber(~std::uint64_t{0})};
  for (auto rollback = rollbacks.rbegin(); rollback != rollbacks.rend(); ++rollback) {
    if (version.generation == newest.generation) break;
    if (rollback->generation == newest.generation) newest = rollback->checkpoint;
  }
  return version.generation == newest.generation && version.commit <= newest.commit;
}

Generation LogHistory::NewGeneration(Term term) const {
  return std::max(last_generation.Next(), Generation(term.value()));
}

}  // namespace evenkeel
