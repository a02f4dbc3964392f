"""Chaos: workers, servers and the chief of a real job are killed, paused, told to leave, cut off and joined by others, one
event every one to three seconds. The job has to finish, each epoch's samples have to be exact, a replay of the log has to agree, and
nothing may be left running.

As a test it runs a short while in each sync mode. By hand: chaos_test.py --bin DIR --source DIR --seconds 120 [--mode bsp]
[--seed N] [--chief-kills 2] [--server-kills 2] [--server-moves 3] [--set FIELD=VALUE]. A model of a million parameters and more
makes the servers sum steps as they come: --set model.layers=...
"""
import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import harness
from harness import check
from network import make_network, run

LEASE_SECONDS = 1.5
CHIEF_TIMEOUT = 20  # seconds
MODES = {"bsp": [], "asp": ["train.sync.mode=asp"], "ssp": ["train.sync.mode=ssp", "train.sync.staleness=3"]}


class Chaos:
    def __init__(self, job, options, network):
        self.job, self.options, self.network = job, options, network
        self.rng = random.Random(options.seed)
        self.host = network.host if network else "127.0.0.1"
        ports = harness.free_ports(1 + options.ps + options.workers)
        address = [f"{self.host}:{port}" for port in ports]
        self.cluster = {"cluster": {"chief": address[:1], "ps": address[1:1 + options.ps],
                                    "worker": address[1 + options.ps:]}, "model_dir": job.model_dir}
        self.settings = [f"train.epochs={options.epochs}", f"membership.lease_ms={int(LEASE_SECONDS * 1000)}",
                         "membership.renew_ms=300", "membership.workers_min=1", "membership.workers_max=6",
                         "checkpoint.every_seconds=5", "checkpoint.keep_every=1",
                         "membership.ps_timeout_ms=60000", f"membership.chief_timeout_ms={1000 * CHIEF_TIMEOUT}", *MODES[options.mode], *options.set]
        self.processes = {}
        self.restart_at = {}
        self.events = collections.Counter()
        self.later = []  # (time, what)
        self.extra = 0
        self.unexpected = []
        self.told = set()  # names whose next exit is wanted
        self.over = False

    def log(self, text):
        print(f"  {time.monotonic() - self.begin:6.1f} s  {text}", flush=True)

    def start(self, name):
        kind, index = name.split(":")
        arguments = [x for setting in self.settings for x in ("--set", setting)]
        experiment = os.path.join(self.job.source, "configs", "experiments", "fashion_mlp.json")
        environment = {}
        if kind == "extra":
            command = ["evenkeel-worker", "--chief", self.cluster["cluster"]["chief"][0]]
        else:
            command = [f"evenkeel-{kind}", "--experiment", experiment, *arguments]
            environment["TF_CONFIG"] = json.dumps(dict(self.cluster, task={"type": kind, "index": int(index)}))
        command += ["--threads", "1"]
        if os.environ.get("EVENKEEL_DATA") and kind != "ps":
            command += ["--data", os.environ["EVENKEEL_DATA"]]
        command[0] = os.path.join(self.job.bin, command[0])
        if self.network and kind == "worker":
            command = [shutil.which("ip"), "netns", "exec", self.network.space(int(index)), *command]
        self.processes[name] = self.job.start(name, command, environment.get("TF_CONFIG"))

    def alive(self, name):
        return name in self.processes and self.processes[name].popen.poll() is None

    def workers(self):
        return [n for n in self.processes if n.split(":")[0] in ("worker", "extra") and self.alive(n)]

    def send(self, name, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.processes[name].popen.pid, number)

    def event(self):
        workers = [n for n in self.workers() if n not in self.told]
        kinds = ["kill", "stop", "term", "join"] + (["cut"] if self.network else [])
        kind = self.rng.choice(kinds)
        if kind != "join" and len(workers) < 2:
            return
        now = time.monotonic()
        if kind == "join":
            if sum(n.startswith("extra") for n in self.workers()) >= 2:
                return
            name = f"extra:{self.extra}"
            self.extra += 1
            self.start(name)
        else:
            name = self.rng.choice(workers)
            if kind == "cut":
                listed = [n for n in workers if n.startswith("worker")]
                if not listed:
                    return
                name = self.rng.choice(listed)
                index = int(name.split(":")[1])
                self.network.cut(index, True)
                self.later.append((now + self.rng.uniform(0.5, 2 * LEASE_SECONDS),
                                   lambda: self.network.cut(index, False)))
            elif kind == "stop":
                self.send(name, signal.SIGSTOP)
                process = self.processes[name]
                self.later.append((now + LEASE_SECONDS + self.rng.uniform(0.3, 1.5),
                                   lambda: process.popen.poll() is None and process.popen.send_signal(signal.SIGCONT)))
            else:
                self.told.add(name)
                self.send(name, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        self.events[kind] += 1
        self.log(f"{kind} {name}")

    def strike(self, name):
        """kill -9 of a server or of the chief."""
        if not self.alive(name):
            return
        self.told.add(name)
        self.send(name, signal.SIGKILL)
        self.events["kill " + name.split(":")[0]] += 1
        self.log(f"kill {name}")

    def move(self, name):
        """A server is told to leave; it comes back, stands by and takes part again."""
        if not self.alive(name) or name in self.told:
            return
        self.told.add(name)
        self.send(name, signal.SIGTERM)
        self.events["move"] += 1
        self.log(f"term {name}")
        self.later.append((time.monotonic() + 5, self.scale))

    def scale(self):
        answer = subprocess.run([os.path.join(self.job.bin, "evenkeel"), "scale", "--ps", str(self.options.ps), "--chief",
                                 self.cluster["cluster"]["chief"][0]], capture_output=True, text=True)
        self.log(f"scale: {(answer.stdout + answer.stderr).strip()}")

    def supervise(self):
        """Starts again what is listed and ended, a moment later."""
        now = time.monotonic()
        for name, process in list(self.processes.items()):
            code = process.popen.poll()
            if code is None:
                continue
            if name == "chief:0" and code >= 0:
                return True  # the job is over
            if name not in self.told and code == 0:
                self.over = True  # it has heard of the job's end; the chief goes a moment later
            if self.over:
                continue
            if name not in self.told and name not in self.restart_at:
                # A process that was fenced while it stood still, or gave up waiting, ends with a word; nothing else may end.
                self.unexpected.append((name, code, process.output()[-1500:]))
                self.log(f"{name} ended by itself with {code}")
            if name.startswith("extra"):
                self.told.discard(name)
                del self.processes[name]
                continue
            due = self.restart_at.setdefault(name, now + self.rng.uniform(0.3, 1.5))
            if now >= due:
                del self.restart_at[name]
                self.told.discard(name)
                self.start(name)
        return False

    def play(self):
        self.begin = time.monotonic()
        options = self.options
        for name in (["chief:0"] + [f"ps:{i}" for i in range(options.ps)] +
                     [f"worker:{i}" for i in range(options.workers)]):
            self.start(name)
        self.processes["chief:0"].wait_for("admitted with rank 0", 60)
        self.log("training")
        end = time.monotonic() + options.seconds
        for kind, count, do in (("chief", options.chief_kills, self.strike), ("ps", options.server_kills, self.strike),
                                ("ps", options.server_moves, self.move)):
            for _ in range(count):
                name = "chief:0" if kind == "chief" else f"ps:{self.rng.randrange(options.ps)}"
                self.later.append((time.monotonic() + self.rng.uniform(0.1, 0.8) * options.seconds,
                                   lambda name=name, do=do: do(name)))
        next_event = time.monotonic() + self.rng.uniform(1, 3)
        give_up = end + options.patience
        while not self.supervise():
            now = time.monotonic()
            for entry in [e for e in self.later if e[0] <= now]:
                self.later.remove(entry)
                entry[1]()
            if now >= next_event and now < end:
                self.event()
                next_event = now + self.rng.uniform(1, 3)
            check(now < give_up, f"the job still runs {options.patience} s after the last event")
            time.sleep(0.05)  # how often this program looks at its children
        self.log(f"the job is over; events: {dict(self.events)}")
        for when, what in self.later:
            if what != self.scale:
                what()
        early = time.monotonic() < end
        self.settle()
        return early

    def settle(self):
        chief = self.processes["chief:0"]
        check(chief.popen.returncode == 0, f"the chief ended with {chief.popen.returncode}:\n{chief.output()[-3000:]}")
        left = self.await_ends(15)
        # Who was cut off or stood still while the job ended found nobody to tell it, and waits as long as it may.
        for name in self.await_ends(CHIEF_TIMEOUT):
            check(False, f"still running after the job's end: {name}:\n{self.processes[name].output()[-3000:]}")
        for name in left:
            process = self.processes[name]
            check(process.popen.returncode == 4 and "for the chief" in process.output(),
                  f"{name} ended with {process.popen.returncode}:\n{process.output()[-3000:]}")
            self.log(f"{name} had not heard of the end, and waited for the chief")
        wrong = [u for u in self.unexpected if u[1] not in (3, 4)]
        check(not wrong, f"processes ended by themselves: {wrong}")
        self.job.expect_nothing_left()

    def await_ends(self, seconds):
        """Who still runs then."""
        until = time.monotonic() + seconds
        while [n for n in self.processes if self.alive(n)] and time.monotonic() < until:
            time.sleep(0.05)  # as above
        return [n for n in self.processes if self.alive(n)]

    def judge(self):
        summary = self.job.summary()
        samples = summary["samples_per_epoch"]
        check(summary["status"] == "finished", f"status {summary['status']}")
        check(samples == [60000] * self.options.epochs, f"samples per epoch: {samples}")
        self.check_positions()
        replay = subprocess.run([os.path.join(self.job.bin, "evenkeel"), "replay", "--model-dir", self.job.model_dir],
                                capture_output=True, text=True)
        print("  replay: " + (replay.stdout.strip().splitlines() or [replay.stderr.strip()])[-1])
        check(replay.returncode == 0, f"replay: {replay.stdout[-2000:]}{replay.stderr[-2000:]}")
        print(f"  {summary['commits']} commits, {summary['dropped_updates']} updates dropped, "
              f"{summary['samples_rolled_back']} samples rolled back, {summary['wall_seconds']:.1f} s")

    def check_positions(self):
        facts = subprocess.run([os.path.join(self.job.bin, "..", "tests", "log_facts"), self.job.model_dir],
                               capture_output=True, text=True, check=True).stdout
        commits = []
        for line in facts.splitlines():
            record = json.loads(line)
            if record["record"] == "commit":
                commits.append(record)
            elif record["record"] == "rollback":
                commits = [c for c in commits if c["commit"] <= record["commit"]]
        numbers = [c["commit"] for c in commits]
        check(numbers == list(range(1, len(commits) + 1)), "the surviving commits are not numbered without gaps")
        spent = collections.defaultdict(list)
        for commit in commits:
            for update in commit["updates"]:
                spent[update["epoch"]].extend(map(tuple, update["positions"]))
        for epoch, ranges in spent.items():
            ranges.sort()
            edges = [0] + [end for _, end in ranges]
            check([begin for begin, _ in ranges] == edges[:-1] and edges[-1] == 60000,
                  f"epoch {epoch} is not covered once")


def play(job, **changes):
    settings = dict(seconds=8, epochs=6, mode="bsp", seed=1, ps=2, workers=4, chief_kills=0, server_kills=0, server_moves=0, patience=240, set=[])
    options = argparse.Namespace(**{**settings, **changes})
    print(f"  {options.mode}, seed {options.seed}, {options.seconds} s", flush=True)
    network = make_network(options.workers)
    chaos = Chaos(job, options, network)
    try:
        early = chaos.play()
        chaos.judge()
        if early:
            print(f"  the job was over before {options.seconds} s of events were; give it more --epochs", flush=True)
    finally:
        if network:
            network.close()


def test_bsp(job):
    play(job, mode="bsp", chief_kills=1)


def test_asp(job):
    play(job, mode="asp", server_kills=1)


def test_ssp(job):
    play(job, mode="ssp", chief_kills=1, server_moves=1)


def by_hand():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--chief-kills", type=int, default=0)
    parser.add_argument("--server-kills", type=int, default=0)
    parser.add_argument("--server-moves", type=int, default=0, help="so often a server leaves, comes back and takes part")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="further fields of the experiment")
    options = parser.parse_args()
    for mode in options.mode or MODES:
        job = harness.Job(options)
        try:
            play(job, **{**vars(options), "mode": mode})
        except Exception:
            keep = job.folder
            print(job.logs(), f"\nkept: {keep}", flush=True)
            for process in job.processes:
                if process.popen.poll() is None:
                    process.popen.kill()
            raise
        job.close()
        print(f"ok    {mode}", flush=True)


if __name__ == "__main__":
    if "--seconds" in sys.argv:
        by_hand()
    else:
        harness.main(globals())
