#!/usr/bin/env python3
"""Synchronous training on workers of unequal speed: batching modes side by side on one machine.

Each worker process gets a CPU quota (cgroup v1 cpu controller, 20 ms period) in the ratio of --speeds, all of them together
--cores. The ideal is the global batch over the summed speeds, each speed measured with that worker alone under its quota.
Absolute times say little on a shared machine; the ratios come from runs one after the other.

  heterogeneity.py --bin build/release/bin --speeds 2,17,20 --modes off,static,model
"""
import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

CGROUP = "/sys/fs/cgroup/cpu"
PERIOD_US = 20000
MODES = ("off", "static", "proportional", "model")


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Quota:
    """A cgroup that gives its processes a share of one core."""

    def __init__(self, name, cores):
        self.path = os.path.join(CGROUP, name)
        os.mkdir(self.path)
        self.set(cores)

    def set(self, cores):
        self.write("cpu.cfs_period_us", PERIOD_US)
        self.write("cpu.cfs_quota_us", max(1000, round(cores * PERIOD_US)))

    def write(self, file, value):
        with open(os.path.join(self.path, file), "w") as out:
            out.write(str(value))

    def enter(self):
        self.write("cgroup.procs", os.getpid())

    def close(self):
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def train(options, quotas, overrides):
    """One job with a worker a quota; returns its summary."""
    folder = tempfile.mkdtemp(prefix="evenkeel_heterogeneity_")
    address = lambda: f"127.0.0.1:{free_port()}"
    cluster = {"cluster": {"chief": [address()], "ps": [address()], "worker": [address() for _ in quotas]},
               "model_dir": os.path.join(folder, "job")}
    arguments = ["--experiment", options.experiment, "--threads", "1", "--log-level", "warning",
                 *[word for field in overrides for word in ("--set", field)]]
    processes = []

    def start(role, index, quota=None):
        environment = dict(os.environ, TF_CONFIG=json.dumps(dict(cluster, task={"type": role, "index": index})))
        arguments_here = [a for a in arguments]
        if role in ("chief", "ps"):
            position = arguments_here.index("--threads")
            del arguments_here[position:position + 2]
        processes.append(subprocess.Popen([os.path.join(options.bin, f"evenkeel-{role}"), *arguments_here],
                                          env=environment, preexec_fn=quota.enter if quota else None))

    try:
        start("chief", 0)
        start("ps", 0)
        for index, quota in enumerate(quotas):
            start("worker", index, quota)
        codes = [process.wait(timeout=options.timeout) for process in processes]
        if any(codes):
            sys.exit(f"a process ended with an error: {codes}")
        with open(os.path.join(cluster["model_dir"], "summary.json")) as file:
            return json.load(file)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(source, "build", "release", "bin"), help="folder of the programs")
    parser.add_argument("--experiment", default=os.path.join(source, "configs", "experiments", "fashion_cnn.json"))
    parser.add_argument("--speeds", default="2,17,20", help="ratio of the workers' speeds")
    parser.add_argument("--modes", default="off,static,model", help=f"of {', '.join(MODES)}")
    parser.add_argument("--cores", type=float, default=1.6, help="that all workers have together")
    parser.add_argument("--batch", type=int, default=585, help="global batch size")
    parser.add_argument("--commits", type=int, default=60, help="steps of each mode")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one job")
    parser.add_argument("--json", help="also write the table to this file")
    options = parser.parse_args()
    speeds = [float(speed) for speed in options.speeds.split(",")]
    modes = options.modes.split(",")
    for mode in modes:
        if mode not in MODES:
            parser.error(f"--modes: '{mode}' is not one of {', '.join(MODES)}")
    if not os.access(CGROUP, os.W_OK):
        print(f"skipped: {CGROUP} (cgroup v1, cpu) is not writable here")
        sys.exit(77)

    common = [f"train.max_commits={options.commits}", "train.epochs=1000", "checkpoint.every_commits=1000000"]
    quotas = []
    try:
        for index, speed in enumerate(speeds):
            quotas.append(Quota(f"evenkeel_{os.getpid()}_{index}", options.cores * speed / sum(speeds)))
        alone = []
        for speed, quota in zip(speeds, quotas):
            batch = max(16, round(options.batch * speed / sum(speeds)))
            summary = train(options, [quota], [*common, f"train.global_batch_size={batch}"])
            alone.append(summary["examples_per_second"])
        ideal = sum(alone)
        print("alone: " + ", ".join(f"{rate:.0f}" for rate in alone) + f" examples/s; ideal {ideal:.0f}", flush=True)
        rows = []
        for mode in modes:
            settings = [*common, f"train.global_batch_size={options.batch}", f"batching.mode={mode}"]
            if mode == "static":
                settings.append(f"batching.speeds={json.dumps(speeds)}")
            summary = train(options, quotas, settings)
            rate = summary["examples_per_second"]
            rows.append({"mode": mode, "examples_per_second": rate, "of_ideal": rate / ideal,
                         "train_loss": summary["train_loss"],
                         "mean_batch": {w["id"]: w["mean_batch"] for w in summary["workers"]}})
            row = rows[-1]
            against = f", {rate / rows[0]['examples_per_second']:.2f} x {rows[0]['mode']}" if len(rows) > 1 else ""
            print(f"{mode:13} {rate:8.0f} examples/s  {row['of_ideal']:.2f} of the ideal{against}  mean batches "
                  + ", ".join(f"{batch:.0f}" for batch in row["mean_batch"].values()), flush=True)
        if options.json:
            with open(options.json, "w") as out:
                json.dump({"speeds": speeds, "batch": options.batch, "commits": options.commits, "alone": alone,
                           "ideal": ideal, "rows": rows}, out, indent=1)
    finally:
        for quota in quotas:
            quota.close()


if __name__ == "__main__":
    main()
