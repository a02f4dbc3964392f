// All bodies of a message: the struct's name and the packet's field. One list for encoding, decoding and names.
#pragma once

#define EK_FOR_EACH_BODY(X)                \
  X(Join, join)                            \
  X(Ready, ready)                          \
  X(Renew, renew)                          \
  X(Leave, leave)                          \
  X(StepReport, step_report)               \
  X(EvalReport, eval_report)               \
  X(StatusRequest, status_request)         \
  X(ExperimentRequest, experiment_request) \
  X(Drain, drain)                          \
  X(Welcome, welcome)                      \
  X(Admitted, admitted)                    \
  X(Waiting, waiting)                      \
  X(Ticket, ticket)                        \
  X(Bind, bind)                            \
  X(Outcome, outcome)                      \
  X(Refuse, refuse)                        \
  X(JobEnd, job_end)                       \
  X(CheckpointDurable, checkpoint_durable) \
  X(StatusReply, status_reply)             \
  X(ExperimentReply, experiment_reply)     \
  X(LeaveNow, leave_now)                   \
  X(OrderReply, order_reply)               \
  X(Configure, configure)                  \
  X(Continue, continue_)                   \
  X(ReadDecisions, read_decisions)         \
  X(Members, members)                      \
  X(Seal, seal)                            \
  X(Drop, drop)                            \
  X(Decision, decision)                    \
  X(Snapshot, snapshot)                    \
  X(Configured, configured)                \
  X(KeptDecisions, kept_decisions)         \
  X(MembersAck, members_ack)               \
  X(Staged, staged)                        \
  X(Sealed, sealed)                        \
  X(Applied, applied)                      \
  X(SnapshotDone, snapshot_done)           \
  X(Hello, hello)                          \
  X(HelloAck, hello_ack)                   \
  X(Stage, stage)                          \
  X(StageAck, stage_ack)                   \
  X(Pull, pull)                            \
  X(PullData, pull_data)
