#!/usr/bin/env python3
"""From `evenkeel launch` to the first commit, and from a joiner's start to the first commit that holds an update of its.

Seconds, as metrics.csv shows them: a row is written at most 0.1 s after its commit. The first round, in which files may
still be cold, does not count.

  ./dev bench startup [--experiment fashion_cnn] [--workers 3] [--ps 2] [--rounds 5] [--json FILE]
"""
import argparse
import json
import os
import signal
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402

POLL_SECONDS = 0.005


def seconds_until_row(job, begin, wanted, running):
    """Until metrics.csv has a row in which `wanted` stands."""
    path = os.path.join(job.model_dir, "metrics.csv")
    at, rest, head = 0, "", None
    while time.monotonic() - begin < harness.DEADLINE_SECONDS:
        if os.path.exists(path):
            with open(path) as file:
                file.seek(at)
                rest += file.read()
                at = file.tell()
            *rows, rest = rest.split("\n")
            if head is None and rows:
                head, *rows = rows
            if any(wanted in row for row in rows):
                return time.monotonic() - begin
        harness.check(running.popen.poll() is None, f"{running.name} ended:\n{job.logs()}")
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"no such commit in {harness.DEADLINE_SECONDS} s:\n{job.logs()}")


def run(options):
    """(launch to first commit, joiner's start to its first commit), seconds."""
    job = harness.Job(argparse.Namespace(bin=options.bin, source=ROOT))
    try:
        experiment = os.path.join(ROOT, "configs", "experiments", options.experiment + ".json")
        begin = time.monotonic()
        launch = job.launch("--ps", str(options.ps), "--workers", str(options.workers), "--threads", "1", "--set",
                            "train.epochs=100000", experiment=experiment)
        first = seconds_until_row(job, begin, ",", launch)
        chief = launch.wait_for(r"chief at (\S+),").group(1)
        begin = time.monotonic()
        joiner = job.start("joiner", ["evenkeel-worker", "--chief", chief, "--threads", "1"])
        joined = seconds_until_row(job, begin, f"-{joiner.popen.pid}", joiner)
        launch.popen.send_signal(signal.SIGINT)
        launch.expect(130)
        return first, joined
    finally:
        job.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"), help="folder of the programs")
    parser.add_argument("--experiment", default="fashion_cnn", help="a name below configs/experiments")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rounds = [run(options) for _ in range(options.rounds + 1)][1:]
    table = {}
    for name, times in zip(("launch to the first commit", "joiner's start to its first commit"), zip(*rounds)):
        table[name] = {"median_seconds": statistics.median(times), "worst_seconds": max(times)}
        print(f"{name:36} {statistics.median(times):6.2f} s at the median, {max(times):6.2f} s at worst")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
