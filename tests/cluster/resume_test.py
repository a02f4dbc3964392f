"""A job that is killed outright, again and again, ends as one that never was."""
import random
import time

import harness
from harness import check

COMMAND = ["--ps", "2", "--workers", "2", "--set", "train.epochs=500", "--set", "checkpoint.every_commits=37",
           "--set", "membership.drain_ms=2000"]
KILLS = 10


def test_ten_kills_change_nothing(job):
    whole = job.model_dir = job.path("whole")
    job.launch(*COMMAND).expect(0)
    expected = job.summary()
    check(expected["commits"] == 5000, expected["commits"])

    job.model_dir = job.path("killed")
    rng = random.Random(time.time_ns())
    killed = 0
    commits = []
    for _ in range(KILLS):
        moment = rng.uniform(0.05, 0.6)
        run = job.launch(*COMMAND)
        time.sleep(moment)  # the moment is the experiment; nothing below depends on how far the job has come
        if run.popen.poll() is None:
            killed += 1
        run.popen.kill()  # the kernel kills its processes with it
        run.wait()
        job.expect_nothing_left(10)
        commits.append(moment)
    job.launch(*COMMAND).expect(0)
    summary = job.summary()
    where = f"after {killed} kills at {['%.2f' % c for c in commits]} s ({whole})"
    check(summary["status"] == "finished" and summary["commits"] == 5000, f"{where}: {summary}")
    check(summary["samples_per_epoch"] == [480] * 500, where)
    check(summary["parameters_sha256"] == expected["parameters_sha256"], f"{where}: other parameters")


def test_other_numbers_of_servers_and_workers(job):
    """A stopped job goes on with other processes and ends close to one that never stopped."""
    more = ["--set", "membership.drain_ms=2000"]
    job.model_dir = job.path("whole")
    job.launch("--ps", "1", "--workers", "2", *more).expect(0)
    expected = job.summary()
    job.model_dir = job.path("changed")
    # max_commits is no part of what must stay the same on resume.
    job.launch("--ps", "3", "--workers", "3", "--set", "train.max_commits=20", *more).expect(0)
    job.launch("--ps", "2", "--workers", "1", *more).expect(0)
    summary = job.summary()
    check(summary["commits"] == expected["commits"], summary)
    check(summary["samples_per_epoch"] == [480] * 5, summary)
    check(abs(summary["train_loss"] - expected["train_loss"]) < 1e-3 * expected["train_loss"], summary)


harness.main(globals())
