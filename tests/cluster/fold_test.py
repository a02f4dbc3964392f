"""More workers than a server has room for: a step is summed as it comes, and nothing of it is lost or counted twice."""
import json
import os
import signal
import time

import harness
from harness import check, sets

ROWS = 480  # of the experiment's training set


def experiment(job, optimizer):
    """4 MiB of parameters, so that one server, or two, have room for three updates each."""
    dense = lambda name: {"dense": {"units": 1023, "activation": "tanh"}, "name": name}
    return job.write_experiment("wide.json", {"model": {
        "layers": [dense("a"), dense("b"), {"dense": {"units": 1}, "name": "y"}], "loss": {"type": "mse"}},
        "train": {"epochs": 2, "global_batch_size": 80, "seed": 1, "optimizer": optimizer,
                  "schedule": {"learning_rate": 0.001}}})


def check_replay(job, name):
    process = job.start("replay", ["evenkeel", "replay", "--model-dir", job.model_dir, "--json"])
    process.expect(0)
    report = json.loads(process.output())
    check(report["agrees"] and report["commits_bit_for_bit"] == report["commits"] > 0, f"{name}: {report}")
    return report["commits"]


def await_commit(job, chief, commit):
    until = time.monotonic() + harness.DEADLINE_SECONDS
    while time.monotonic() < until:
        status = job.start("status", ["evenkeel", "status", "--chief", chief, "--json"])
        status.expect(0)
        if json.loads(status.output())["commit"] >= commit:
            return
        time.sleep(0.05)
    raise AssertionError(f"commit {commit} did not come in {harness.DEADLINE_SECONDS} s")


def check_folded(job):
    with open(os.path.join(job.model_dir, "logs", "ps-0.log")) as file:
        log = file.read()
    check("as they come" in log, f"nothing was folded:\n{log[-3000:]}")


def test_each_way_and_wire_type_folds_to_the_same_bits(job):
    file = experiment(job, {"momentum": {}, "clip_norm": 1})
    for path in ("shm", "tcp", "grpc"):
        for wire in ("float32", "bfloat16"):
            job.model_dir = job.path(f"{path}-{wire}")
            fields = sets(train__wire_dtype=wire, batching__mode="off", batching__gradnorm_window=2)
            job.start("launch", ["evenkeel", "launch", "--experiment", file, "--model-dir", job.model_dir, "--ps", "1",
                                 "--workers", "5", "--threads", "1", *fields], env={"EVENKEEL_DATA_PATH": path}).expect(0)
            check_folded(job)
            commits = check_replay(job, job.model_dir)
            check(job.summary()["samples_trained"] == 2 * ROWS, job.summary())
            print(f"      {path}, {wire}: {commits} commits")


def test_workers_that_are_killed_in_a_folded_step_are_replaced(job):
    file = experiment(job, {"sgd": {}})
    launch = job.launch("--ps", "2", "--workers", "7", "--threads", "1", "--max-restarts", "9",
                        *sets(train__epochs=20, membership__lease_ms=1000, membership__renew_ms=200,
                              checkpoint__every_commits=40), experiment=file)
    chief = launch.wait_for(r"chief at (\S+),").group(1)
    for worker in (0, 3, 6):
        await_commit(job, chief, 5 + 10 * worker)
        os.kill(job.pid_of(f"worker:{worker}"), signal.SIGKILL)
    launch.expect(0)
    check_folded(job)
    check(job.summary()["samples_trained"] == 20 * ROWS, job.summary())
    print(f"      {check_replay(job, 'killed')} commits")


harness.main(globals())
