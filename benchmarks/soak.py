#!/usr/bin/env python3
"""A long job whose workers join and leave all the time: does the memory of chief and servers stay flat?

Workers join with the chief's address alone and leave on SIGTERM as fast as --pairs of them manage. Prints resident memory
over time, the growth from a quarter of the time to the end, and what a thousand joins and 100,000 commits would make of it.
Ends with 1 where a process grew by more than --limit-mib between the two moments.

  soak.py --bin build/release/bin --seconds 300
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402


def resident_mib(process):
    with open(f"/proc/{process.popen.pid}/status") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"no VmRSS for {process.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"), help="folder of the programs")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--pairs", type=int, default=2, help="workers that come and go at the same time")
    parser.add_argument("--limit-mib", type=float, default=8)
    options = parser.parse_args()
    job = harness.Job(argparse.Namespace(bin=options.bin, source=ROOT))
    try:
        sys.exit(soak(options, job))
    finally:
        job.close()


def soak(options, job):
    cluster = job.cluster(ps=2, workers=1)
    chief = cluster["cluster"]["chief"][0]
    settings = ["--set", "train.epochs=10000000", "--set", "membership.workers_max=16", "--set", "checkpoint.every_seconds=5"]
    members = {task: job.role(task, cluster, "--threads", "1", *settings) for task in ("chief:0", "ps:0", "ps:1", "worker:0")}
    members["worker:0"].wait_for("admitted")
    watched = ("chief:0", "ps:0", "ps:1")
    begin = time.monotonic()
    joins, guests, told, samples, next_sample = 0, [], set(), [], 0.0
    while time.monotonic() - begin < options.seconds:
        while len(guests) < options.pairs:
            guests.append(job.start(f"guest:{joins}", ["evenkeel-worker", "--chief", chief, "--threads", "1"]))
            joins += 1
        for guest in list(guests):
            if guest.popen.poll() is not None:
                guests.remove(guest)
                told.discard(guest)
                harness.check(guest.popen.returncode == 0, f"{guest.name} ended with {guest.popen.returncode}:\n{guest.output()}")
                os.remove(guest.log)
                job.processes.remove(guest)
            elif guest not in told and "admitted" in guest.output():
                guest.popen.send_signal(signal.SIGTERM)
                told.add(guest)
        now = time.monotonic() - begin
        if now >= next_sample:
            next_sample += options.seconds / 20
            answer = subprocess.run([os.path.join(options.bin, "evenkeel"), "status", "--chief", chief, "--json"],
                                    capture_output=True, text=True, check=True)
            samples.append((now, json.loads(answer.stdout)["commit"], joins, [resident_mib(members[m]) for m in watched]))
            print(f"{now:6.0f} s {samples[-1][1]:8} commits {joins:5} joins  " +
                  "  ".join(f"{m} {mib:.1f} MiB" for m, mib in zip(watched, samples[-1][3])), flush=True)
        time.sleep(0.02)  # how often this program looks at its children
    for guest in guests:
        if guest not in told:
            guest.popen.send_signal(signal.SIGTERM)
    members["chief:0"].popen.send_signal(signal.SIGTERM)
    members["chief:0"].expect(0)
    early, late = samples[len(samples) // 4], samples[-1]
    grown = [b - a for a, b in zip(early[3], late[3])]
    for member, mib in zip(watched, grown):
        print(f"{member} grew by {mib:.2f} MiB in {late[1] - early[1]} commits and {late[2] - early[2]} joins")
    return 1 if max(grown) > options.limit_mib else 0


if __name__ == "__main__":
    main()
