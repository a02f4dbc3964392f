"""Runs the real programs and looks at how they end. Standard library only.

A test file defines functions test_*(job) and calls harness.main(). Each gets a Job: a folder of its own, an experiment
with made-up data, and processes that die with it. SKIP is ctest's skip code.
"""
import argparse
import contextlib
import ctypes
import glob
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

SKIP = 77
DEADLINE_SECONDS = 120
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class Skipped(Exception):
    pass


def _die_with_parent():
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count):
    """Different ones: each is held until all are known."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def free_port():
    return free_ports(1)[0]


def check(condition, message):
    if not condition:
        raise AssertionError(message)


class Process:
    def __init__(self, name, popen, log):
        self.name, self.popen, self.log = name, popen, log

    def output(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def wait(self, seconds=DEADLINE_SECONDS):
        try:
            return self.popen.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {seconds} s; its log:\n{self.output()}") from None

    def expect(self, code, seconds=DEADLINE_SECONDS):
        got = self.wait(seconds)
        check(got == code, f"{self.name} ended with {got}, not {code}; its log:\n{self.output()}")

    def stop(self):
        """SIGSTOP; returns once the process stands still."""
        self.popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WNOWAIT)

    def wait_for(self, pattern, seconds=DEADLINE_SECONDS):
        """Until its log has a match."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            match = re.search(pattern, self.output())
            if match:
                return match
            check(self.popen.poll() is None, f"{self.name} ended before '{pattern}':\n{self.output()}")
            time.sleep(0.05)
        raise AssertionError(f"{self.name} did not say '{pattern}' in {seconds} s:\n{self.output()}")


class Job:
    def __init__(self, options):
        self.bin, self.source = os.path.abspath(options.bin), options.source
        self.folder = tempfile.mkdtemp(prefix="evenkeel_cluster_")
        self.model_dir = os.path.join(self.folder, "job")
        self.processes = []
        self.experiment = self.write_experiment("linear.json", {})

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        with open(self.path(name), "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        return self.path(name)

    def write_experiment(self, name, changes):
        """A linear regression on 600 made-up rows; `changes` replace top-level fields."""
        rng = random.Random(7)
        rows = ["a,b,c,y"]
        for _ in range(600):
            a, b, c = (rng.uniform(-1, 1) for _ in range(3))
            rows.append(f"{a:.5f},{b:.5f},{c:.5f},{2 * a - b + 0.5 * c + rng.gauss(0, 0.1):.5f}")
        data = self.write("linear.csv", "\n".join(rows) + "\n")
        experiment = {
            "name": "linear",
            "model": {"layers": [{"dense": {"units": 1}, "name": "y"}], "loss": {"type": "mse"}},
            "input": {"train": {"csv": {"files": [data], "label": "y"}}, "eval_fraction": 0.2},
            "train": {"epochs": 5, "global_batch_size": 50, "seed": 1,
                      "optimizer": {"sgd": {}}, "schedule": {"learning_rate": 0.1}},
            "eval": {"metrics": ["rmse"]},
        }
        experiment.update(changes)
        return self.write(name, json.dumps(experiment))

    def cluster(self, ps=1, workers=1, evaluators=0, **fields):
        ports = iter(free_ports(1 + ps + workers + evaluators))
        address = lambda: f"127.0.0.1:{next(ports)}"
        cluster = {"chief": [address()], "ps": [address() for _ in range(ps)],
                   "worker": [address() for _ in range(workers)]}
        if evaluators:
            cluster["evaluator"] = [address() for _ in range(evaluators)]
        return dict({"cluster": cluster, "model_dir": self.model_dir}, **fields)

    def start(self, name, command, tf_config=None, env=None):
        environment = dict(os.environ, **(env or {}))
        environment.pop("TF_CONFIG", None)
        if tf_config is not None:
            environment["TF_CONFIG"] = tf_config if isinstance(tf_config, str) else json.dumps(tf_config)
        log = self.path(f"{len(self.processes)}-{name.replace(':', '-')}.log")
        with open(log, "w") as out:
            popen = subprocess.Popen([os.path.join(self.bin, command[0])] + command[1:], stdin=subprocess.DEVNULL,
                                     stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=self.folder,
                                     preexec_fn=_die_with_parent)
        process = Process(name, popen, log)
        self.processes.append(process)
        return process

    def role(self, task, cluster, *arguments, experiment=None):
        """A role with its TF_CONFIG in the environment; task is TYPE:INDEX."""
        kind, index = task.split(":")
        config = dict(cluster, task={"type": kind, "index": int(index)})
        return self.start(task, [f"evenkeel-{kind}", "--experiment", experiment or self.experiment, *arguments], config)

    def launch(self, *arguments, experiment=None):
        return self.start("launch", ["evenkeel", "launch", "--experiment", experiment or self.experiment,
                                     "--model-dir", self.model_dir, *arguments])

    def summary(self):
        with open(os.path.join(self.model_dir, "summary.json")) as file:
            return json.load(file)

    def pid_of(self, name):
        """Of a role of a launched job, by its task in TF_CONFIG."""
        kind, index = name.split(":")
        for folder in os.listdir("/proc"):
            if not folder.isdigit():
                continue
            try:
                with open(f"/proc/{folder}/cmdline", "rb") as file:
                    command = file.read()
                with open(f"/proc/{folder}/environ", "rb") as file:
                    environment = file.read()
            except OSError:
                continue
            if self.folder.encode() in command and f"evenkeel-{kind}\0".encode() in command:
                if f'"type":"{kind}","index":{index}'.encode() in environment:
                    return int(folder)
        raise AssertionError(f"no process {name}")

    def left_processes(self):
        """Living processes that know this job's folder."""
        found = []
        for name in glob.glob("/proc/[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                with open(name, "rb") as file:
                    line = file.read().replace(b"\0", b" ").decode(errors="replace")
                if self.folder in line and int(name.split("/")[2]) != os.getpid():
                    found.append(line)
        return found

    def expect_nothing_left(self, seconds=2):
        until = time.monotonic() + seconds
        while self.left_processes() and time.monotonic() < until:
            time.sleep(0.05)
        check(not self.left_processes(), f"processes are left: {self.left_processes()}")

    def wait_for_log(self, name, pattern, seconds=DEADLINE_SECONDS):
        """Until a log of a job that was launched has a match."""
        path = os.path.join(self.model_dir, "logs", name)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(FileNotFoundError), open(path, errors="replace") as file:
                if re.search(pattern, file.read()):
                    return
            time.sleep(0.05)
        raise AssertionError(f"{path} did not say '{pattern}' in {seconds} s")

    def logs(self):
        """The ends of all logs, also those of a job that was launched."""
        text = "".join(f"--- {process.name}\n{process.output()[-3000:]}" for process in self.processes)
        for name in sorted(glob.glob(os.path.join(self.model_dir, "logs", "*.log"))):
            with open(name, errors="replace") as file:
                text += f"--- {os.path.basename(name)}\n{file.read()[-3000:]}"
        return text

    def close(self):
        for process in self.processes:
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def sets(**fields):
    """--set words; "__" stands for the dot."""
    return [word for field, value in fields.items() for word in ("--set", f"{field.replace('__', '.')}={value}")]


def data_folder(*files):
    """The folder of EVENKEEL_DATA; skips where it or one of its files is absent."""
    folder = os.environ.get("EVENKEEL_DATA", "")
    for name in files:
        if not folder or not os.path.exists(os.path.join(folder, name)):
            raise Skipped(f"EVENKEEL_DATA has no {name}")
    return folder


def main(tests):
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, help="folder of the programs")
    parser.add_argument("--source", required=True, help="folder of the source tree")
    parser.add_argument("--keep", action="store_true", help="keep the folders of tests that fail")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    failed, ran = [], 0
    for name, test in sorted(tests.items()):
        if not name.startswith("test_") or (options.names and name not in options.names):
            continue
        job = Job(options)
        start = time.monotonic()
        keep = False
        try:
            test(job)
            ran += 1
            print(f"ok    {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Skipped as reason:
            print(f"skip  {name}: {reason}", flush=True)
        except Exception:
            ran += 1
            failed.append(name)
            keep = options.keep
            traceback.print_exc()
            print(job.logs())
            print(f"FAIL  {name} ({time.monotonic() - start:.1f} s) {job.folder if keep else ''}", flush=True)
        finally:
            if not keep:
                job.close()
    sys.exit(1 if failed else 0 if ran else SKIP)
