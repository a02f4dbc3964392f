#!/usr/bin/env python3
"""What one parameter server holds in memory with few and with many workers, in BSP.

A job for each number of workers, one after the other, with the same model and the same batch for each worker. Prints the
server's largest resident memory (VmHWM) when --commits are through, what it is to that of the first number, and what a worker
more has cost. Data goes by --data-path; with shm the gradients lie in the workers' own memory, which the server maps, and are
counted with the server too.

  server_memory.py --bin build/release/bin
  server_memory.py --workers 2,4,8,16 --units 2048 --data-path tcp
"""
import argparse
import json
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402


def peak_mib(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:"))


def measure(options, workers):
    job = harness.Job(argparse.Namespace(bin=options.bin, source=ROOT))
    try:
        dense = lambda name: {"dense": {"units": options.units, "activation": "tanh"}, "name": name}
        experiment = job.write_experiment("wide.json", {
            "model": {"layers": [dense("a"), dense("b"), {"dense": {"units": 1}, "name": "y"}], "loss": {"type": "mse"}},
            "train": {"epochs": 1000000, "global_batch_size": 16 * workers, "seed": 1,
                      "optimizer": {options.optimizer: {}}, "schedule": {"learning_rate": 0.0001}}})
        launch = job.start("launch", ["evenkeel", "launch", "--experiment", experiment, "--model-dir", job.model_dir, "--ps",
                                      "1", "--workers", str(workers), "--threads", "1"],
                           env={"EVENKEEL_DATA_PATH": options.data_path})
        chief = launch.wait_for(r"chief at (\S+),").group(1)
        until = time.monotonic() + options.timeout
        while True:
            answer = subprocess.run([os.path.join(options.bin, "evenkeel"), "status", "--chief", chief, "--json"],
                                    capture_output=True, text=True, check=True)
            commit = json.loads(answer.stdout)["commit"]
            if commit >= options.commits:
                return peak_mib(job.pid_of("ps:0"))
            if time.monotonic() > until:
                sys.exit(f"{workers} workers: {commit} of {options.commits} commits in {options.timeout} s\n{job.logs()}")
            time.sleep(0.2)  # how often this program asks
    finally:
        job.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"), help="folder of the programs")
    parser.add_argument("--workers", default="2,16", help="the first is what others are held against")
    parser.add_argument("--units", type=int, default=2047, help="of two dense layers: about units^2 parameters")
    parser.add_argument("--optimizer", default="momentum", choices=["sgd", "momentum", "adam"])
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--data-path", default="tcp", help="as EVENKEEL_DATA_PATH")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one job")
    parser.add_argument("--json", help="also write the table to this file")
    options = parser.parse_args()
    numbers = [int(text) for text in options.workers.split(",")]
    parameters = 4 * options.units + options.units * (options.units + 1) + options.units + 1
    print(f"{parameters / 1e6:.2f} million parameters, {parameters * 4 / 2**20:.1f} MiB; {options.optimizer}, {options.data_path}")
    print(f"{'workers':>8} {'MiB':>8} {'of the first':>13} {'MiB a worker more':>18}")
    rows = []
    for workers in numbers:
        mib = measure(options, workers)
        rows.append({"workers": workers, "mib": mib})
        first = rows[0]
        more = (mib - first["mib"]) / (workers - first["workers"]) if workers != first["workers"] else 0
        print(f"{workers:>8} {mib:>8.1f} {mib / first['mib']:>13.2f} {more:>18.2f}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"parameters": parameters, "optimizer": options.optimizer, "data_path": options.data_path,
                       "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
