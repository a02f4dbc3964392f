#!/usr/bin/env python3
"""What an event costs a job in BSP: the longest gap between two commits after it, over the median gap of the whole job.

For workers that leave or join it is looked for until --commits steps after the worker's last update, or from its first one
on: what its process takes to end or to start it takes from the cores that all share here, but not where it has a machine of
its own. `quiet` is a stretch of as many commits without an event: the machine's own noise. For servers, and for what dies, it
is looked for in four seconds. The last columns are of four seconds for every event; over so many more commits noise alone has
a longer longest gap. Each event comes --rounds times; the table gives the median and the worst of them.

  ./dev bench event_cost [--rounds 5] [--workers 3] [--ps 2] [--json FILE]
"""
import argparse
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402

LEASE_MS = 2000
STRETCH_SECONDS = 4.0  # looked at after each event
CALM_SECONDS = 0.5     # between asking for the status, which takes a process, and the event
SETTLE_SECONDS = 2.0   # before the next one
JOINER = "worker:0"
LIMITS = {"worker SIGTERM": "2", "worker joins": "1.5", "worker kill -9": f"lease ({LEASE_MS} ms) + 2 steps",
          "server SIGTERM": "5", "server added": "5", "server kill -9": "3 s + the recomputed commits", "quiet": ""}
EVENTS = ("quiet", "worker SIGTERM", "worker joins", "worker kill -9", "server SIGTERM", "server added", "server kill -9")


class Bench:
    def __init__(self, options):
        self.options = options
        self.job = harness.Job(argparse.Namespace(bin=options.bin, source=ROOT))
        self.cluster = self.job.cluster(ps=options.ps, workers=options.workers)
        self.chief = self.cluster["cluster"]["chief"][0]
        self.arguments = ["--threads", "1", "--set", "train.epochs=100000", "--set", f"membership.lease_ms={LEASE_MS}",
                          "--set", "membership.renew_ms=400", "--set", f"checkpoint.every_seconds={options.checkpoint_seconds:g}"]
        self.experiment = os.path.join(ROOT, "configs", "experiments", options.experiment + ".json")
        self.running = {}
        self.marks = []  # (event, generation and commit before it, seconds from that commit to it)

    def start(self, task):
        self.running[task] = self.job.role(task, self.cluster, *self.arguments, experiment=self.experiment)

    def status(self):
        answer = subprocess.run([os.path.join(self.options.bin, "evenkeel"), "status", "--chief", self.chief, "--json"],
                                capture_output=True, text=True)
        harness.check(answer.returncode == 0, f"status: {answer.returncode}, {answer.stderr}{self.job.logs()}")
        return json.loads(answer.stdout)

    def await_training(self, workers):
        """Until so many workers train and commits come."""
        until = time.monotonic() + harness.DEADLINE_SECONDS
        first = None
        while True:
            harness.check(time.monotonic() < until, "the job stands still:\n" + self.job.logs())
            status = self.status()
            ranked = sum(worker["rank"] is not None for worker in status["workers"])
            if status["phase"] == "running" and ranked >= workers and status["commit"] > 0:
                first = first or (status["generation"], status["commit"])
                if (status["generation"], status["commit"]) >= (first[0], first[1] + 5):
                    return
            time.sleep(0.1)

    def await_servers(self, servers, spares):
        until = time.monotonic() + harness.DEADLINE_SECONDS
        while True:
            status = self.status()
            if len(status["servers"]) == servers and len(status["spare_servers"]) == spares:
                return
            harness.check(time.monotonic() < until, "servers do not come or go:\n" + self.job.logs())
            time.sleep(0.05)

    def mark(self, event):
        status = self.status()
        asked = time.monotonic()
        time.sleep(CALM_SECONDS)
        self.marks.append((event, status["generation"], status["commit"], time.monotonic() - asked))

    def act(self, event):
        workers = self.options.workers
        last = f"ps:{self.options.ps - 1}"
        if event == "server added":  # its start is no part of what the others pay
            self.start(last)
            self.await_servers(self.options.ps - 1, 1)
            time.sleep(SETTLE_SECONDS)
        self.mark(event)
        if event == "worker SIGTERM":
            self.running[JOINER].popen.send_signal(signal.SIGTERM)
        elif event == "worker joins":
            self.start(JOINER)
        elif event == "worker kill -9":
            self.running["worker:1"].popen.kill()
        elif event == "server SIGTERM":
            self.running[last].popen.send_signal(signal.SIGTERM)
        elif event == "server added":
            subprocess.run([os.path.join(self.options.bin, "evenkeel"), "scale", "--ps", str(self.options.ps), "--chief",
                            self.chief], capture_output=True, check=True)
        elif event == "server kill -9":
            self.running[last].popen.kill()
            self.running[last].wait()
            self.start(last)
        time.sleep(STRETCH_SECONDS)  # the stretch that is looked at, not a wait for something
        if event == "worker joins":
            self.await_training(workers)
            time.sleep(STRETCH_SECONDS)
        if event == "worker kill -9":
            self.start("worker:1")
        if event == "server SIGTERM":
            self.running[last].expect(0)
            self.await_servers(self.options.ps - 1, 0)
        if event == "server added":
            self.await_servers(self.options.ps, 0)
        self.await_training(workers - 1 if event == "worker SIGTERM" else workers)
        time.sleep(SETTLE_SECONDS)

    def run(self):
        names = ["chief:0", *(f"ps:{i}" for i in range(self.options.ps)), *(f"worker:{i}" for i in range(self.options.workers))]
        for name in names:
            self.start(name)
        self.running["chief:0"].wait_for("describes the model")
        self.await_training(self.options.workers)
        time.sleep(SETTLE_SECONDS)
        for _ in range(self.options.rounds):
            for event in self.options.events:
                self.act(event)
        self.running["chief:0"].popen.send_signal(signal.SIGTERM)
        self.running["chief:0"].expect(0)
        with open(os.path.join(self.job.model_dir, "metrics.csv"), newline="") as file:
            return list(csv.DictReader(file))


def judge(rows, marks, commits):
    """(event, longest gap that counts for it, longest gap of four seconds after it), in seconds, and the median gap."""
    times = [(int(row["generation"]), int(row["commit"]), float(row["seconds"])) for row in rows]
    gaps = [b[2] - a[2] for a, b in zip(times, times[1:])]
    median = statistics.median(gaps)
    found = []
    for event, generation, commit, later in marks:
        at = next(i for i, (g, c, _) in enumerate(times) if (g, c) >= (generation, commit))
        begin = times[at][2] + later
        while times[at + 1][2] < begin:
            at += 1
        if event == "worker joins":
            at = next(i for i in range(at + 1, len(rows)) if JOINER in rows[i]["workers"]) - 1
        until = next((i for i in range(at, len(gaps)) if times[i][2] >= times[at][2] + STRETCH_SECONDS), len(gaps))
        counts = until
        if event in ("quiet", "worker joins"):
            counts = at + commits
        elif event == "worker SIGTERM":
            counts = next(i for i in range(at + 1, len(rows)) if JOINER not in rows[i]["workers"]) + commits
        found.append((event, max(gaps[at:counts]), max(gaps[at:until])))
    return found, median


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"), help="folder of the programs")
    parser.add_argument("--experiment", default="fashion_mlp", help="a name below configs/experiments")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--events", default=",".join(EVENTS), type=lambda text: text.split(","),
                        help="some of: " + ", ".join(EVENTS))
    parser.add_argument("--commits", type=int, default=20, help="in which the cost of a worker's coming or going shows")
    parser.add_argument("--checkpoint-seconds", type=float, default=1)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.events) - set(EVENTS):
        parser.error(f"--events: there is no {', '.join(sorted(unknown))}; there are {', '.join(EVENTS)}")
    if options.ps < 2:
        parser.error("--ps: a server that leaves needs another one; at least 2")
    bench = Bench(options)
    try:
        rows = bench.run()
        found, median = judge(rows, bench.marks, options.commits)
    finally:
        bench.job.close()
    table = []
    for event in LIMITS:
        gaps = sorted(gap for name, gap, _ in found if name == event)
        long = sorted(gap for name, _, gap in found if name == event)
        if gaps:
            table.append({"event": event, "median_gap_ratio": statistics.median(gaps) / median,
                          "worst_gap_ratio": gaps[-1] / median, "median_gap_seconds": statistics.median(gaps),
                          "worst_gap_seconds": gaps[-1], "median_gap_ratio_of_4_s": statistics.median(long) / median,
                          "worst_gap_ratio_of_4_s": long[-1] / median, "limit": LIMITS[event]})
    print(f"{options.experiment}, {options.workers} workers, {options.ps} servers, {len(rows)} commits, "
          f"median gap {1000 * median:.1f} ms")
    print(f"{'event':16} {'gap / median':>13} {'worst':>8} {'gap':>9} {'worst':>9}  {'in 4 s':>7} {'worst':>7}  limit")
    for row in table:
        print(f"{row['event']:16} {row['median_gap_ratio']:13.1f} {row['worst_gap_ratio']:8.1f} "
              f"{row['median_gap_seconds']:7.3f} s {row['worst_gap_seconds']:7.3f} s "
              f"{row['median_gap_ratio_of_4_s']:8.1f} {row['worst_gap_ratio_of_4_s']:7.1f}  {row['limit']}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"median_gap_seconds": median, "events": table}, file, indent=1)


if __name__ == "__main__":
    main()
