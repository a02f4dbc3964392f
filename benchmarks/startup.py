#!/usr/bin/env python3
"""From `evenkeel launch` to the first commit, and from a joiner's start to the first commit that holds an update of its.

The first round, in which files may still be cold, does not count.

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
SETTLE_SECONDS = 2.0


class Commits:
    """The rows of metrics.csv as they come, and when their commits were, on this process's monotonic clock.

    A row has its seconds since the first ticket, and comes up to 0.1 s after its commit: that of the least delay says when
    the first ticket was, at most too late.
    """

    def __init__(self, job, running):
        self.job, self.running = job, running
        self.path = os.path.join(job.model_dir, "metrics.csv")
        self.at, self.rest, self.head = 0, "", None
        self.rows = []
        self.first_ticket = float("inf")

    def read(self):
        """Looks again, after a pause."""
        time.sleep(POLL_SECONDS)
        harness.check(self.running.popen.poll() is None, f"{self.running.name} ended:\n{self.job.logs()}")
        if not os.path.exists(self.path):
            return
        with open(self.path) as file:
            file.seek(self.at)
            self.rest += file.read()
            self.at = file.tell()
        now = time.monotonic()
        *lines, self.rest = self.rest.split("\n")
        if self.head is None and lines:
            self.head = lines.pop(0).split(",")
        rows = [dict(zip(self.head, line.split(","))) for line in lines]
        self.rows += rows
        for row in rows:
            self.first_ticket = min(self.first_ticket, now - float(row["seconds"]))

    def first_with(self, worker):
        """When the first commit was that holds an update of a worker with this in its name; waits for it."""
        until = time.monotonic() + harness.DEADLINE_SECONDS
        seen = 0
        while time.monotonic() < until:
            for row in self.rows[seen:]:
                if worker in row["workers"]:
                    return self.first_ticket + float(row["seconds"])
            seen = len(self.rows)
            self.read()
        raise AssertionError(f"no such commit in {harness.DEADLINE_SECONDS} s:\n{self.job.logs()}")


def run(options):
    """(launch to first commit, joiner's start to its first commit), seconds."""
    job = harness.Job(argparse.Namespace(bin=options.bin, source=ROOT))
    try:
        experiment = os.path.join(ROOT, "configs", "experiments", options.experiment + ".json")
        begin = time.monotonic()
        launch = job.launch("--ps", str(options.ps), "--workers", str(options.workers), "--threads", "1", "--set",
                            "train.epochs=100000", experiment=experiment)
        commits = Commits(job, launch)
        commits.first_with("")
        settled = time.monotonic() + SETTLE_SECONDS  # more rows, of which one has come at once
        while time.monotonic() < settled:
            commits.read()
        first = commits.first_with("") - begin
        chief = launch.wait_for(r"chief at (\S+),").group(1)
        started = time.monotonic()
        joiner = job.start("joiner", ["evenkeel-worker", "--chief", chief, "--threads", "1"])
        joined = commits.first_with(f"-{joiner.popen.pid}") - started
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
