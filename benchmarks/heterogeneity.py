#!/usr/bin/env python3
"""Training on workers of unequal speed: batching modes side by side on one machine.

Each worker process gets a CPU quota (cgroup v1 cpu controller) in the ratio of its speed, all of them together --cores.
In bsp the ideal is the global batch over the summed speeds, each speed measured with that worker alone under its quota at
its share of the batch, before and after the run that is held to it. Absolute times say little on a shared machine.

  heterogeneity.py --bin build/release/bin                            # the published ratios, all modes
  heterogeneity.py --speeds 2,17,20 --modes off,model --json h.json
  heterogeneity.py --speeds 13,13,13 --modes model --change 40:1:3 --change 80:1:1
  heterogeneity.py --sync asp --speeds 9,12,18 --modes off,model      # the spread of update rates
  heterogeneity.py --experiment linear_regression.json --speeds 1,1 --modes off,model --batch 64 --commits 40000 --turns 0.25
"""
import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CGROUP = "/sys/fs/cgroup/cpu"
PERIOD_US = 10000
LEAST_QUOTA_US = 1000  # the kernel's
SHARES = 262144  # the most that there is, so that what else runs here disturbs little
MODES = ("off", "static", "proportional", "model")
PUBLISHED = ("13,13,13", "9,12,18", "2,17,20", "12,12,8,16", "9,9,6,24", "6,6,4,32")


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Quota:
    """A cgroup that gives its processes a share of one core; None: as much as they need."""

    def __init__(self, name, cores):
        self.path = os.path.join(CGROUP, name)
        self.cores = cores
        os.mkdir(self.path)
        self.write("cpu.shares", SHARES)
        self.slow_down(1)

    def slow_down(self, factor):
        if self.cores is None:
            return
        cores = self.cores / factor
        period = max(PERIOD_US, math.ceil(LEAST_QUOTA_US / cores))
        self.write("cpu.cfs_quota_us", -1)  # any period goes with it
        self.write("cpu.cfs_period_us", period)
        self.write("cpu.cfs_quota_us", max(LEAST_QUOTA_US, round(cores * period)))

    def write(self, file, value):
        with open(os.path.join(self.path, file), "w") as out:
            out.write(str(value))

    def enter(self):
        self.write("cgroup.procs", os.getpid())

    def close(self):
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def read_steps(path):
    """The commits of metrics.csv: seconds since the first ticket, samples, and each worker's fields."""
    steps = []
    try:
        with open(path) as file:
            header = file.readline().strip().split(",")
            for line in file:
                fields = dict(zip(header, line.rstrip("\n").split(",")))
                if len(fields) < len(header):
                    break  # still being written
                workers = {}
                for entry in fields["workers"].split("; "):
                    name, *values = entry.split(" ")
                    workers[name] = {key: float(value) for key, value in (v.split("=") for v in values)}
                steps.append({"commit": int(fields["commit"]), "seconds": float(fields["seconds"]),
                              "samples": int(fields["samples"]), "workers": workers})
    except FileNotFoundError:
        pass
    return steps


def status(binary, address):
    out = subprocess.run([os.path.join(binary, "evenkeel"), "status", "--chief", address, "--json"],
                         capture_output=True, text=True)
    with contextlib.suppress(ValueError):
        return json.loads(out.stdout)
    return {}


class Job:
    """A chief, a server and a worker a quota; it trains from its making on."""

    def __init__(self, options, quotas, overrides):
        self.options = options
        self.quotas = quotas
        self.folder = tempfile.mkdtemp(prefix="evenkeel_heterogeneity_")
        address = lambda: f"127.0.0.1:{free_port()}"
        self.cluster = {"cluster": {"chief": [address()], "ps": [address()], "worker": [address() for _ in quotas]},
                        "model_dir": os.path.join(self.folder, "job")}
        self.arguments = ["--experiment", options.experiment, "--log-level", options.log_level,
                          *[word for field in overrides for word in ("--set", field)]]
        self.processes = []
        self.deadline = time.monotonic() + options.timeout
        try:
            self.start("chief", 0, options.free)
            self.start("ps", 0, options.free)
            for index, quota in enumerate(quotas):
                self.start("worker", index, quota)
        except BaseException:
            self.close()
            raise

    def start(self, role, index, quota):
        environment = dict(os.environ, TF_CONFIG=json.dumps(dict(self.cluster, task={"type": role, "index": index})))
        more = ["--threads", "1"] if role == "worker" else []
        self.processes.append(subprocess.Popen(
            [os.path.join(self.options.bin, f"evenkeel-{role}"), *self.arguments, *more], env=environment,
            preexec_fn=quota.enter))

    def runs(self):
        if time.monotonic() > self.deadline:
            sys.exit(f"a job takes more than --timeout {self.options.timeout:g} s")
        codes = [process.poll() for process in self.processes]
        if any(codes):
            sys.exit(f"a process ended with an error: {codes}")
        return codes[0] is None

    def signal(self, number):
        for process in self.processes:
            process.send_signal(number)

    def change(self, changes):
        """Slows workers down and lets them recover as told; returns what was done (commit seen, index, factor)."""
        applied = []
        pending = sorted(changes)
        while pending:
            if not self.runs():
                sys.exit(f"the job ended before --change {pending[0]}")
            commit = status(self.options.bin, self.cluster["cluster"]["chief"][0]).get("commit", 0)
            while pending and commit >= pending[0][0]:
                _, index, factor = pending.pop(0)
                self.quotas[index].slow_down(factor)
                applied.append((commit, index, factor))
            time.sleep(0.05)
        return applied

    def steps(self):
        return read_steps(os.path.join(self.cluster["model_dir"], "metrics.csv"))

    def end(self):
        """Once it has trained: its summary."""
        codes = [process.wait(timeout=max(1, self.deadline - time.monotonic())) for process in self.processes]
        if any(codes):
            sys.exit(f"a process ended with an error: {codes}")
        with open(os.path.join(self.cluster["model_dir"], "summary.json")) as file:
            summary = json.load(file)
        if self.options.accuracy:
            summary["accuracy"] = accuracy(self.options, self.cluster["model_dir"])
        if self.options.keep:
            shutil.copy(os.path.join(self.cluster["model_dir"], "metrics.csv"), self.options.keep)
        return summary

    def close(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        for quota in self.quotas:
            quota.slow_down(1)


def train(options, quotas, overrides, changes=()):
    """One job; returns its summary, its steps and the changes made."""
    with contextlib.closing(Job(options, quotas, overrides)) as job:
        applied = job.change(changes)
        return job.end(), job.steps(), applied


def accuracy(options, folder):
    """Of the job's last checkpoint, on the evaluation data."""
    subprocess.run([os.path.join(options.bin, "evenkeel-evaluator"), "--model-dir", folder, "--log-level",
                    options.log_level], check=True, preexec_fn=options.free.enter)
    with open(os.path.join(folder, "eval.csv")) as file:
        header, *rows = [line.rstrip("\n").split(",") for line in file]
    return float(dict(zip(header, rows[-1]))["accuracy"])


def waiting(step):
    """The part of the workers' time in which they wait for the slowest."""
    busy = [worker["busy_seconds"] for worker in step["workers"].values()]
    return 1 - statistics.mean(busy) / max(busy) if max(busy) > 0 else 0


def describe(steps):
    """What the later half of a run was like."""
    later = steps[len(steps) // 2:]
    errors = [abs(w["predicted_seconds"] / w["busy_seconds"] - 1) for s in later for w in s["workers"].values()
              if w["predicted_seconds"] > 0 and w["busy_seconds"] > 0]
    return {"waiting_share": statistics.mean(waiting(s) for s in later),
            "prediction_error": statistics.median(errors) if errors else None,
            "last_batches": [w["batch"] for _, w in sorted(steps[-1]["workers"].items())]}


def balanced_after(steps, commit, bound=0.10, window=3):
    """Steps from `commit` until the waiting share stays below the bound (mean of `window`); None: never."""
    shares = [waiting(s) for s in steps if s["commit"] > commit]
    for i in range(len(shares) - window + 1):
        if statistics.mean(shares[i:i + window]) < bound:
            return i + 1
    return None


def rate_spread(summary):
    """The fastest worker's updates over the slowest one's, less one."""
    commits = [worker["commits"] for worker in summary["workers"]]
    return max(commits) / max(1, min(commits)) - 1


def alone_rate(options, quotas, speeds, common):
    """Examples a second of all workers, each measured alone at its share of the batch, one after the other."""
    options = argparse.Namespace(**{**vars(options), "accuracy": False, "keep": None})
    rates = []
    for speed, quota in zip(speeds, quotas):
        batch = max(16, round(options.batch * speed / sum(speeds)))
        _, steps, _ = train(options, [quota], [*common, f"train.global_batch_size={batch}",
                                               f"train.max_commits={min(options.commits, options.alone)}"])
        rates.append(rate(steps))
    print("  alone: " + ", ".join(f"{r:.0f}" for r in rates) + f" examples/s; ideal {sum(rates):.0f}, "
          f"{options.epoch / sum(rates):.1f} s an epoch", flush=True)
    return sum(rates)


def mode_settings(options, speeds, common, mode):
    """The fields of the experiment of a job in this mode."""
    scale = 1 if options.sync == "bsp" else len(speeds)  # a commit is a worker's batch there
    settings = [*common, f"train.global_batch_size={options.batch}", f"batching.mode={mode}"]
    if mode == "off" and options.off_commits:
        settings.append(f"train.max_commits={options.off_commits * scale}")
    if mode == "static":
        settings.append(f"batching.speeds={json.dumps(speeds)}")
    return settings


def bench_mode(options, quotas, speeds, common, mode):
    """One job in this mode; prints and returns its figures, but for what is relative to other jobs."""
    summary, steps, applied = train(options, quotas, mode_settings(options, speeds, common, mode), options.change)
    row = {"mode": mode, "examples_per_second": summary["examples_per_second"],
           "steady_examples_per_second": rate(steps), "train_loss": summary["train_loss"],
           "mean_batch": [w["mean_batch"] for w in summary["workers"]],
           "updates": [w["commits"] for w in summary["workers"]], **describe(steps)}
    row["seconds_per_epoch"] = options.epoch / row["steady_examples_per_second"]
    line = f"  {mode:13} {row['steady_examples_per_second']:6.0f} examples/s (with the start " \
           f"{row['examples_per_second']:.0f})  {row['seconds_per_epoch']:6.1f} s an epoch"
    if options.sync == "bsp":
        line += f"  waiting {row['waiting_share']:.0%}"
    else:
        row["rate_spread"] = rate_spread(summary)
        line += f"  updates {row['updates']}, spread {row['rate_spread']:.0%}"
    if options.accuracy:
        row["accuracy"] = summary["accuracy"]
        line += f"  accuracy {row['accuracy']:.4f}"
    if row["prediction_error"] is not None:
        line += f"  predictions off by {row['prediction_error']:.0%}"
    print(line + "  batches " + ",".join(f"{b:.0f}" for b in row["last_batches"]), flush=True)
    if applied:
        row["balanced_after_steps"] = [[commit, index, factor, balanced_after(steps, commit)]
                                       for commit, index, factor in applied]
        for _, index, factor, after in row["balanced_after_steps"]:
            what = f"balanced again after {after} steps" if after else "never balanced again"
            print(f"    worker {index} {factor:g} times slower than at first: {what}", flush=True)
    return row


def turn_rates(steps, gap):
    """Examples a second of each turn: between two gaps, in which the job was stopped for at least so long."""
    rates, samples, begin = [], 0, steps[0]["seconds"]
    for last, step in zip(steps, steps[1:]):
        if step["seconds"] - last["seconds"] > 0.9 * gap:
            rates.append(samples / max(1e-9, last["seconds"] - begin))
            samples, begin = 0, step["seconds"]
        else:
            samples += step["samples"]
    return rates


def bench_turns(options, quotas, speeds, common):
    """Jobs of all modes side by side, of which one at a time runs, for a turn, so that a machine whose speed changes is
    the same for all; prints and returns the rows. The first turns, in which batches settle, do not count."""
    jobs, result = [], []
    with contextlib.ExitStack() as stack:
        for mode in options.modes:
            jobs.append(stack.enter_context(contextlib.closing(Job(options, quotas, mode_settings(
                options, speeds, common, mode)))))
            while not jobs[-1].steps():
                if not jobs[-1].runs():
                    sys.exit(f"the job of mode {mode} ended before its first commit")
                time.sleep(0.05)
            jobs[-1].signal(signal.SIGSTOP)
        while all(job.runs() for job in jobs):
            for job in jobs:
                job.signal(signal.SIGCONT)
                time.sleep(options.turns)
                if not job.runs():
                    break
                job.signal(signal.SIGSTOP)
        steps = [job.steps() for job in jobs]
        batches = [describe(s)["last_batches"] for s in steps]
    rates = [turn_rates(s, (len(jobs) - 1) * options.turns) for s in steps]
    turns = min(map(len, rates))
    if turns < 8:
        sys.exit(f"only {turns} turns of {options.turns:g} s; more --commits or shorter --turns are needed")
    for mode, rated, batch in zip(options.modes, rates, batches):
        rated = rated[turns // 4:turns]
        ratios = [a / b for a, b in zip(rated, rates[0][turns // 4:turns]) if b > 0]
        row = {"mode": mode, "turns": len(rated), "examples_per_second": statistics.median(rated), "last_batches": batch,
               "over_" + options.modes[0]: statistics.median(ratios)}
        print(f"  {mode:13} {row['examples_per_second']:6.0f} examples/s  {statistics.median(ratios):.3f} x "
              f"{options.modes[0]}, median of {len(rated)} turns  batches " + ",".join(f"{b:.0f}" for b in batch), flush=True)
        result.append(row)
    return result


def bench_row(options, speeds):
    """All modes in turn, --rounds times. In bsp the workers are measured alone before and after each mode: a shared
    machine's speed drifts, and the mean of both is the ideal that this run is held to."""
    bsp = options.sync == "bsp"
    common = ["train.epochs=1000", "checkpoint.every_commits=1000000", f"train.sync.mode={options.sync}", *options.set,
              f"train.max_commits={options.commits * (1 if bsp else len(speeds))}"]
    quotas = []
    result = {"speeds": speeds, "batch": options.batch, "commits": options.commits, "sync": options.sync, "rows": []}
    print(f"speeds {','.join(f'{s:g}' for s in speeds)} of {options.cores:g} cores, global batch {options.batch}, "
          f"{options.sync}", flush=True)
    try:
        for index, speed in enumerate(speeds):
            quotas.append(Quota(f"evenkeel_{os.getpid()}_{index}", options.cores * speed / sum(speeds)))
        if options.turns:
            for number in range(options.rounds):
                result["rows"] += [dict(row, round=number) for row in bench_turns(options, quotas, speeds, common)]
            return result
        before = alone_rate(options, quotas, speeds, common) if bsp else None
        for number in range(options.rounds):
            first = None
            for mode in options.modes:
                row = dict(bench_mode(options, quotas, speeds, common, mode), round=number)
                first = first or row
                row["over_" + first["mode"]] = row["steady_examples_per_second"] / first["steady_examples_per_second"]
                if bsp:
                    after = alone_rate(options, quotas, speeds, common)
                    row["ideal"] = (before + after) / 2
                    row["of_ideal"] = row["steady_examples_per_second"] / row["ideal"]
                    before = after
                result["rows"].append(row)
    finally:
        for quota in quotas:
            quota.close()
    for mode in options.modes:
        rows = [row for row in result["rows"] if row["mode"] == mode]
        line = f"  {mode:13}"
        for key, what in (("of_ideal", "of the ideal"), ("over_" + options.modes[0], "x " + options.modes[0])):
            if key in rows[0] and (key == "of_ideal" or mode != options.modes[0]):
                values = [row[key] for row in rows]
                line += f" {statistics.median(values):.2f} {what}"
                if len(values) > 1:
                    line += " (" + ", ".join(f"{v:.2f}" for v in values) + ")"
        print(line, flush=True)
    return result


def rate(steps, skip=3):
    """Examples a second without the first steps, in which every process warms up."""
    skip = min(skip, len(steps) // 2)
    samples = sum(step["samples"] for step in steps[skip:])
    return samples / (steps[-1]["seconds"] - steps[skip - 1]["seconds"])


def main():
    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(source, "build", "release", "bin"), help="folder of the programs")
    parser.add_argument("--experiment", default=os.path.join(source, "configs", "experiments", "fashion_cnn.json"))
    parser.add_argument("--speeds", action="append", help=f"ratio of the workers' speeds; default: {' '.join(PUBLISHED)}")
    parser.add_argument("--modes", default="off,static,proportional,model", help=f"of {', '.join(MODES)}")
    parser.add_argument("--sync", default="bsp", choices=("bsp", "asp", "ssp"))
    parser.add_argument("--cores", type=float, default=1.2,
                        help="that all workers have together; server and chief need some, or the workers alone are "
                             "faster than together")
    parser.add_argument("--batch", type=int, default=1152, help="global batch size")
    parser.add_argument("--commits", type=int, default=60, help="steps of each mode")
    parser.add_argument("--off-commits", type=int, default=0, help="steps of mode off, whose steps are long; 0: as many")
    parser.add_argument("--alone", type=int, default=16, help="steps of a worker measured alone, at most")
    parser.add_argument("--rounds", type=int, default=1, help="of all modes; the table gives medians")
    parser.add_argument("--turns", type=float, default=0, metavar="SECONDS",
                        help="all modes' jobs are there at once, and each runs for so long while the others are stopped; "
                             "for modes that differ by little and steps that are many in a turn")
    parser.add_argument("--change", action="append", default=[], metavar="COMMIT:WORKER:FACTOR",
                        help="from this commit on the worker is so many times slower than at first")
    parser.add_argument("--set", action="append", default=[], help="further fields of the experiment")
    parser.add_argument("--epoch", type=int, default=60000, help="samples of an epoch, for the table")
    parser.add_argument("--log-level", default="warning")
    parser.add_argument("--accuracy", action="store_true", help="score the last checkpoint of each mode")
    parser.add_argument("--keep", help="copy the last run's metrics.csv here")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one job")
    parser.add_argument("--json", help="also write the tables to this file")
    options = parser.parse_args()
    options.modes = options.modes.split(",")
    for mode in options.modes:
        if mode not in MODES:
            parser.error(f"--modes: '{mode}' is not one of {', '.join(MODES)}")
    try:
        options.change = [(int(c), int(w), float(f)) for c, w, f in (entry.split(":") for entry in options.change)]
    except ValueError:
        parser.error("--change: expected COMMIT:WORKER:FACTOR, such as 40:1:3")
    if options.turns and (len(options.modes) < 2 or options.change or options.accuracy or options.keep):
        parser.error("--turns compares at least two --modes, and takes no --change, --accuracy and --keep")
    if options.turns and not 0 < (len(options.modes) - 1) * options.turns <= 2:
        parser.error("--turns: a job is stopped for 2 s at most, or its leases end")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left behind
    if not os.access(CGROUP, os.W_OK):
        print(f"skipped: {CGROUP} (cgroup v1, cpu) is not writable here")
        sys.exit(77)
    options.free = Quota(f"evenkeel_{os.getpid()}_free", None)
    try:
        results = [bench_row(options, [float(s) for s in speeds.split(",")]) for speeds in options.speeds or PUBLISHED]
    finally:
        options.free.close()
    if options.json:
        with open(options.json, "w") as out:
            json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
