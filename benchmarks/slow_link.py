#!/usr/bin/env python3
"""Training over slow links: each worker and server in a network namespace whose link has --rate in both directions.

A step is the median time between two commits. It lasts at least as long as the slowest worker computes, measured in the
same job over links without a limit, and as long as its bytes take on the busiest link: gradients into a server and
parameters out of it, one after the other, for a version needs all gradients of the one before. Bytes are those that the
server's link carried. Rates are shaped by tbf, which needs root and iproute2; without them this says so and ends with 0.

  ./dev bench slow_link [--rate 1gbit] [--models cnn] [--wires float32,bfloat16] [--seconds 20] [--json FILE]
"""
import argparse
import csv
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time

from cluster_peers import write_experiment

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402
from network import make_network  # noqa: E402

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bytes_per_second(rate):
    number, unit = re.fullmatch(r"([0-9.]+)(kbit|mbit|gbit)", rate).groups()
    return float(number) * UNITS[unit] / 8


class Link:
    """What a host's link has carried, by the counters of its end at the bridge."""

    def __init__(self, name):
        self.name = name
        self.begin = self.count()

    def count(self):
        total = 0
        for direction in ("rx", "tx"):
            with open(f"/sys/class/net/{self.name}/statistics/{direction}_bytes") as file:
                total += int(file.read())
        return total

    def carried(self):
        return self.count() - self.begin


def train(options, network, experiment, wire, rate):
    """The commits' rows of a stretch, and the bytes that the first server's link carried a commit."""
    job = harness.Job(argparse.Namespace(bin=options.bin, source=ROOT))
    ports = iter(harness.free_ports(1 + options.ps + options.workers))
    hosts = options.ps + options.workers
    for i in range(hosts):
        network.limit(i, rate)
    address = [f"{network.address(i)}:{next(ports)}" for i in range(hosts)]
    cluster = {"cluster": {"chief": [f"{network.host}:{next(ports)}"], "ps": address[:options.ps],
                           "worker": address[options.ps:]}, "model_dir": job.model_dir}
    try:
        tasks = [("chief:0", None), *((f"ps:{i}", i) for i in range(options.ps)),
                 *((f"worker:{i}", options.ps + i) for i in range(options.workers))]
        running = []
        for name, host in tasks:
            role, index = name.split(":")
            command = [os.path.join(options.bin, f"evenkeel-{role}"), "--experiment", experiment, "--threads", "1",
                       "--set", f"train.wire_dtype={wire}", "--set", f"train.parameter_wire_dtype={wire}"]
            if role != "chief":
                command = [shutil.which("ip"), "netns", "exec", network.space(host), *command, "--data-path",
                           options.data_path]
            running.append(job.start(name, command, json.dumps({**cluster, "task": {"type": role, "index": int(index)}})))
        running[0].wait_for(rf"admitted with rank {options.workers - 1}")
        time.sleep(options.warm_up)
        before, link = len(rows_of(job)), Link(network.link(0))
        time.sleep(options.seconds)  # the stretch that is measured
        carried, rows = link.carried(), rows_of(job)
        running[0].popen.send_signal(signal.SIGTERM)
        for process in running:
            process.expect(0)
        rows = rows[before:]
        if len(rows) < 3:
            sys.exit("slow_link: fewer than three commits in the stretch; give more --seconds")
        return rows, carried / len(rows)
    finally:
        job.close()


def rows_of(job):
    with open(os.path.join(job.model_dir, "metrics.csv"), newline="") as file:
        return [row for row in csv.DictReader(file) if row["workers"] and row["seconds"]]


def median_step(rows):
    times = [float(row["seconds"]) for row in rows]
    return statistics.median(b - a for a, b in zip(times, times[1:]))


def median_compute(rows):
    slowest = lambda row: max(float(x) for x in re.findall(r"\bstep_seconds=([0-9.e+-]+)", row["workers"]))
    return statistics.median(map(slowest, rows))


def measure(options, network, folder, model):
    experiment = write_experiment(folder, model)
    compute = median_compute(train(options, network, experiment, "float32", options.no_limit)[0])
    table = []
    for wire in options.wires.split(","):
        rows, carried = train(options, network, experiment, wire, options.rate)
        link = carried / bytes_per_second(options.rate)
        row = {"model": model, "wire": wire, "step_seconds": median_step(rows), "compute_seconds": compute,
               "bytes": carried, "link_seconds": link, "ratio": median_step(rows) / max(compute, link)}
        print(f"{model:<9} {wire:<9} {1e3 * row['step_seconds']:>8.1f} ms {1e3 * compute:>8.1f} ms {carried / 1e6:>8.2f} MB "
              f"{1e3 * link:>8.1f} ms {row['ratio']:>6.2f}", flush=True)
        table.append(row)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"), help="folder of the programs")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc has it (%(default)s)")
    parser.add_argument("--no-limit", default="100gbit", help="of the links of the run that tells the computing time")
    parser.add_argument("--models", default="cnn", help="of cluster_peers.py: mlp, cnn, resnet20")
    parser.add_argument("--wires", default="float32,bfloat16", help="of gradients and parameters")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ps", type=int, default=1)
    parser.add_argument("--data-path", default="tcp,grpc")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    network = make_network(options.ps + options.workers)
    if network is None or shutil.which("tc") is None:
        print("slow_link: nothing is measured here", file=sys.stderr)
        return 0
    table = []
    try:
        print(f"{'model':<9} {'wire':<9} {'step':>11} {'compute':>11} {'bytes':>11} {'on the link':>11} {'ratio':>6}")
        with tempfile.TemporaryDirectory() as folder:
            for model in options.models.split(","):
                table += measure(options, network, folder, model)
    finally:
        network.close()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rate": options.rate, "rows": table}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
