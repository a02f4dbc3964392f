#!/usr/bin/env python3
"""The gradient noise scale of a real model, estimated with equal and with unequal batches.

Each pair of jobs trains the same model on the same samples with the same global batch; only the division among the workers
differs, so that the updates are the same up to rounding, and so is the noise scale that they should tell. gradnorm_window is
the number of commits, so that the last value is a ratio of means over all of them.

  noise_scale.py --bin build/release/bin
  noise_scale.py --experiment configs/experiments/fashion_cnn.json --commits 500 --speeds "1,1 1,3 1,7"
"""
import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def noise_scale(options, speeds, seed):
    folder = tempfile.mkdtemp(prefix="evenkeel_noise_")
    try:
        fields = ["batching.mode=static", f"batching.speeds={json.dumps(speeds)}",
                  f"batching.gradnorm_window={options.commits}", f"train.global_batch_size={options.batch}",
                  f"train.max_commits={options.commits}", f"train.epochs=1000", f"train.seed={seed}", *options.set]
        command = [os.path.join(options.bin, "evenkeel"), "launch", "--experiment", options.experiment, "--model-dir",
                   os.path.join(folder, "job"), "--workers", str(len(speeds)), "--threads", "1", "--log-level", "warning",
                   *[word for field in fields for word in ("--set", field)]]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=options.timeout)
        if done.returncode != 0:
            sys.exit(f"launch ended with {done.returncode}:\n{done.stdout}")
        with open(os.path.join(folder, "job", "metrics.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        known = [float(row["noise_scale"]) for row in rows if row["noise_scale"]]
        if not known:
            sys.exit(f"speeds {speeds}: the noise scale is not known after {len(rows)} commits")
        return known[-1]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "build", "release", "bin"), help="folder of the programs")
    parser.add_argument("--experiment",
                        default=os.path.join(HERE, "..", "configs", "experiments", "fashion_mlp.json"))
    parser.add_argument("--speeds", default="1,1 1,3 1,7", help="divisions of the batch; the first is what others are "
                                                              "held against")
    parser.add_argument("--batch", type=int, default=256, help="global batch size")
    parser.add_argument("--commits", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1, help="so many pairs, each with a seed of its own")
    parser.add_argument("--set", action="append", default=[], help="further fields of the experiment")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one job")
    parser.add_argument("--json", help="also write the table to this file")
    options = parser.parse_args()
    divisions = [[float(speed) for speed in division.split(",")] for division in options.speeds.split()]
    table = []
    print(f"{'seed':>4}  {'speeds':>12}  {'noise scale':>12}  of equal batches")
    for seed in range(1, options.seeds + 1):
        first = None
        for speeds in divisions:
            value = noise_scale(options, speeds, seed)
            first = first or value
            name = ",".join(f"{speed:g}" for speed in speeds)
            print(f"{seed:4}  {name:>12}  {value:12.1f}  {value / first:.3f}", flush=True)
            table.append({"seed": seed, "speeds": name, "noise_scale": value, "ratio": value / first})
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
