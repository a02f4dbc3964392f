// What a process does that must not take a core from others of its machine.
#pragma once

namespace evenkeel {

// From here on all threads of this process, and those that they start, run only where nobody else wants the core
// (SCHED_IDLE): for one that has left a job which goes on beside it, whose memory takes milliseconds to give back.
// There is no way back. Best effort: where the kernel allows it for none or some of them, the others stay as they were.
void RunInBackground();

}  // namespace evenkeel
