"""`evenkeel launch`: whole jobs as processes of this machine."""
import json
import os
import re
import signal

import harness
from harness import check

QUICK = ["--set", "membership.lease_ms=2000", "--set", "membership.renew_ms=400", "--set", "membership.drain_ms=2000"]


def test_finishes_and_sums_up(job):
    run = job.launch("--ps", "2", "--workers", "2", *QUICK)
    run.expect(0)
    job.expect_nothing_left()
    summary = job.summary()
    check(summary["status"] == "finished", summary)
    check(summary["samples_per_epoch"] == [480] * 5, summary["samples_per_epoch"])
    check(summary["commits"] == 50, summary["commits"])
    check(summary["samples_trained"] == 2400, summary["samples_trained"])
    check(re.fullmatch("[0-9a-f]{64}", summary["parameters_sha256"]), summary["parameters_sha256"])
    check(summary["train_loss"] < 0.2, summary["train_loss"])
    check(len(summary["workers"]) == 2, summary["workers"])
    check("finished: 50 commits" in run.output(), run.output())
    check(job.model_dir in run.output(), run.output())


def test_evaluator_gives_the_final_score(job):
    run = job.launch("--ps", "1", "--workers", "2", "--evaluator", *QUICK)
    run.expect(0)
    job.expect_nothing_left()
    summary = job.summary()
    check(summary["eval"]["rmse"] < 0.3, summary["eval"])
    check(summary["best"]["metric"] == "rmse", summary["best"])
    out = job.path("best.safetensors")
    export = job.start("export", ["evenkeel", "export", "--model-dir", job.model_dir, "--checkpoint", "best", "--out", out])
    export.expect(0)
    check(os.path.getsize(out) > 0, "empty export")


def test_a_timeline_shows_each_step_of_all_on_one_clock(job):
    trace = job.path("trace.json")
    job.launch("--ps", "1", "--workers", "2", "--trace", trace, *QUICK).expect(0)
    with open(trace) as file:
        events = json.load(file)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    check(sorted(names.values()) == ["chief:0", "ps:0", "worker:0", "worker:1"], names)
    of = lambda process, name: [e for e in events if names.get(e["pid"]) == process and e["name"].startswith(name)]
    commits = {e["name"].split()[1]: e["ts"] for e in of("chief:0", "commit ")}
    check(len(commits) == 50, sorted(commits))
    applied = {e["name"].split()[1]: e["ts"] for e in of("ps:0", "apply ")}
    check(set(applied) == set(commits), f"applied {sorted(applied)}, committed {sorted(commits)}")
    early = {version for version in commits if applied[version] < commits[version] - 1000}
    check(not early, f"applied a millisecond before they were committed: {early}")
    for worker in ("worker:0", "worker:1"):
        check(len(of("chief:0", "wait for the others")) == 100, of("chief:0", "wait for the others")[:3])
        steps = of(worker, "step")
        check(len(of(worker, "pull ")) in (50, 51), of(worker, "pull "))  # perhaps of the version that nobody trains on
        for name in ("forward y", "backward y", "forward loss", "wait for the outcome"):
            inside = [e for e in of(worker, name) if any(
                s["ts"] <= e["ts"] and e["ts"] + e["dur"] <= s["ts"] + s["dur"] + 0.01 for s in steps)]
            check(len(inside) == 50, f"{worker}: {len(inside)} times {name} within a step, of {len(of(worker, name))}")
        # A server asks once more for what comes before the order of its step.
        check(len(of(worker, "stage bucket 0 on ps:0")) >= 50, f"{worker}: buckets")
    check(len(of("ps:0", "bucket 0 of ")) == 100, "staged")


def test_a_timeline_that_cannot_be_written_is_wrong_input(job):
    run = job.launch("--trace", "/nowhere/trace.json", *QUICK)
    run.expect(2)
    check("/nowhere/trace.json: No such file" in run.output(), run.output())


def test_same_command_again_finds_the_job_finished(job):
    job.launch(*QUICK).expect(0)
    before = job.summary()
    job.launch(*QUICK).expect(0)
    check(job.summary() == before, "the summary changed")
    job.expect_nothing_left()


def test_same_seed_gives_the_same_bits(job):
    sums = set()
    for name in ["first", "second"]:
        job.model_dir = job.path(name)
        job.launch("--ps", "2", "--workers", "2", *QUICK).expect(0)
        sums.add(job.summary()["parameters_sha256"])
    check(len(sums) == 1, sums)


def test_chief_that_trains(job):
    job.launch("--chief-trains", "--ps", "1", "--workers", "1", *QUICK).expect(0)
    check({worker["id"] for worker in job.summary()["workers"]} == {"chief:0", "worker:0"}, job.summary()["workers"])
    job.expect_nothing_left()


def test_chief_trains_alone(job):
    job.launch("--chief-trains", "--ps", "1", "--workers", "0", *QUICK).expect(0)
    check(job.summary()["commits"] == 50, job.summary())


def test_modes(job):
    for mode in ["asp", "ssp"]:
        job.model_dir = job.path(mode)
        job.launch("--ps", "2", "--workers", "2", "--set", f"train.sync.mode={mode}", "--set",
                   f"train.sync.staleness={1 if mode == 'ssp' else 0}", *QUICK).expect(0)
        check(job.summary()["samples_per_epoch"] == [480] * 5, job.summary()["samples_per_epoch"])


def long_job(job, *arguments):
    run = job.launch("--ps", "2", "--workers", "2", "--set", "train.epochs=100000", *QUICK, *arguments)
    for worker in ["worker-0.log", "worker-1.log"]:
        job.wait_for_log(worker, "admitted with rank")
    return run


def test_interrupt_stops_with_a_checkpoint_and_the_job_goes_on(job):
    run = long_job(job)
    run.popen.send_signal(signal.SIGINT)
    run.expect(130, 30)
    job.expect_nothing_left()
    first = job.summary()
    check(first["status"] == "stopped", first)
    again = job.launch("--ps", "1", "--workers", "1", "--set", f"train.max_commits={first['commits'] + 20}",
                       "--set", "train.epochs=100000", *QUICK)
    again.expect(0)
    check(job.summary()["commits"] == first["commits"] + 20, job.summary())


def test_second_interrupt_kills(job):
    run = long_job(job)
    run.popen.send_signal(signal.SIGINT)
    run.popen.send_signal(signal.SIGINT)
    run.wait_for("stopping|killing", 5) if run.popen.poll() is None else None
    run.popen.send_signal(signal.SIGINT) if run.popen.poll() is None else None
    run.expect(130, 10)
    job.expect_nothing_left()


def test_killed_worker_does_not_end_the_job(job):
    run = job.launch("--ps", "1", "--workers", "3", "--set", "train.epochs=300", *QUICK)
    job.wait_for_log("worker-1.log", "admitted with rank")
    os.kill(job.pid_of("worker:1"), signal.SIGKILL)
    run.expect(0)
    check("worker:1 ended with signal 9 (Killed)" in run.output(), run.output())
    check(job.summary()["samples_per_epoch"] == [480] * 300, job.summary()["samples_per_epoch"])
    job.expect_nothing_left()


def test_killed_servers_end_all_where_nothing_is_started_again_and_none_is_left(job):
    run = long_job(job, "--max-restarts", "0", "--set", "membership.ps_replacement_timeout_ms=200")
    os.kill(job.pid_of("ps:1"), signal.SIGKILL)
    run.wait_for("on with the other servers")
    job.wait_for_log("chief-0.log", "all 1 servers hold version g2")
    os.kill(job.pid_of("ps:0"), signal.SIGKILL)
    check(run.wait(30) != 0, "exit code 0")
    for name in ["ps:0", "ps:1"]:
        check(f"{name} ended with signal 9 (Killed)" in run.output(), run.output())
    check("the job cannot go on without ps:0" in run.output(), run.output())
    job.expect_nothing_left()


def test_killed_chief_ends_all_where_nothing_is_started_again(job):
    run = long_job(job, "--max-restarts", "0")
    os.kill(job.pid_of("chief:0"), signal.SIGKILL)
    check(run.wait(30) == 1, "exit code")
    check("chief:0 ended with signal 9 (Killed)" in run.output(), run.output())
    job.expect_nothing_left()


def test_killed_launcher_leaves_nothing(job):
    run = long_job(job)
    run.popen.kill()
    run.wait()
    job.expect_nothing_left(5)


def test_fashion_mlp(job):
    if not os.path.exists("/usr/share/datasets/fashion-mnist"):
        harness.data_folder("fashion-mnist")
    experiment = os.path.join(job.source, "configs/experiments/fashion_mlp.json")
    job.launch("--ps", "2", "--workers", "2", "--set", "train.max_commits=50", *QUICK, experiment=experiment).expect(0)
    check(job.summary()["commits"] == 50, job.summary())
    job.expect_nothing_left()


harness.main(globals())
