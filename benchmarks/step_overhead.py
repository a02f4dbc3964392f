#!/usr/bin/env python3
"""What the whole protocol costs a step that computes next to nothing: a model of 1,010 parameters (4 KB) on real processes.

A step is the time between two commits of metrics.csv. Of it, "compute" is the slowest worker's forward and backward pass,
"busy" the slowest worker's time from its ticket's binding until every server has its update, as the chief sees it; what
is left is the chief's own.

  ./dev bench step_overhead [--workers 2] [--ps 1] [--mode bsp] [--data-path shm,tcp,grpc] [--seconds 5] [--json FILE]
"""
import argparse
import csv
import json
import os
import random
import re
import signal
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402

FEATURES, CLASSES, ROWS = 100, 10, 2000


def write_job(job, options):
    rng = random.Random(1)
    rows = [",".join(f"{rng.gauss(0, 1):.3f}" for _ in range(FEATURES)) + f",{rng.randrange(CLASSES)}" for _ in range(ROWS)]
    names = ",".join(f"x{i}" for i in range(FEATURES)) + ",label"
    data = job.write("rows.csv", "\n".join([names, *rows]) + "\n")
    sync = {"mode": options.mode, **({"staleness": 2} if options.mode == "ssp" else {})}
    return job.write("step.json", json.dumps({
        "name": "step_overhead",
        "model": {"layers": [{"dense": {"units": CLASSES}, "name": "out"}], "loss": {"type": "softmax_cross_entropy"}},
        "input": {"train": {"csv": {"files": [data], "separator": ",", "label": "label"}}, "classes": CLASSES},
        "train": {"epochs": 1000000, "global_batch_size": options.workers, "sync": sync, "optimizer": {"sgd": {}},
                  "schedule": {"learning_rate": 0.001}},
        "checkpoint": {"every_seconds": 3600}}))


def run(options):
    job = harness.Job(argparse.Namespace(bin=options.bin, source=ROOT))
    try:
        experiment = write_job(job, options)
        cluster = job.cluster(ps=options.ps, workers=options.workers)
        running = []
        for task in ["chief:0", *(f"ps:{i}" for i in range(options.ps)), *(f"worker:{i}" for i in range(options.workers))]:
            more = [] if task == "chief:0" else ["--data-path", options.data_path]
            running.append(job.role(task, cluster, "--threads", "1", *more, experiment=experiment))
        running[0].wait_for(rf"admitted with rank {options.workers - 1}")
        time.sleep(options.seconds)  # the stretch that is measured
        running[0].popen.send_signal(signal.SIGTERM)
        for process in running:
            process.expect(0)
        with open(os.path.join(job.model_dir, "metrics.csv"), newline="") as file:
            return list(csv.DictReader(file))
    finally:
        job.close()


def judge(rows):
    rows = rows[len(rows) // 4:]  # the first ones warm up
    times = [float(row["seconds"]) for row in rows]
    slowest = lambda row, what: max(float(x) for x in re.findall(rf"\b{what}=([0-9.e+-]+)", row["workers"]))
    gaps = sorted(b - a for a, b in zip(times, times[1:]))
    return {"commits": len(rows), "commits_per_second": len(gaps) / (times[-1] - times[0]),
            "step_us": 1e6 * statistics.median(gaps), "step_p90_us": 1e6 * gaps[len(gaps) * 9 // 10],
            "busy_us": 1e6 * statistics.median(slowest(row, "busy_seconds") for row in rows),
            "compute_us": 1e6 * statistics.median(slowest(row, "step_seconds") for row in rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"), help="folder of the programs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ps", type=int, default=1)
    parser.add_argument("--mode", default="bsp", choices=("bsp", "asp", "ssp"))
    parser.add_argument("--data-path", default="shm,tcp,grpc")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    row = judge(run(options))
    print(f"{options.workers} workers, {options.ps} servers, {options.mode}, {options.data_path}: {row['commits']} commits, "
          f"{row['commits_per_second']:.0f} a second")
    print(f"step {row['step_us']:.0f} us at the median, {row['step_p90_us']:.0f} us at p90; busy {row['busy_us']:.0f} us, "
          f"of it compute {row['compute_us']:.0f} us")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(row, file, indent=1)


if __name__ == "__main__":
    main()
