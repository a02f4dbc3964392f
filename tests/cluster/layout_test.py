"""Servers that leave, are added and are lost while training goes on."""
import json
import os
import signal

import harness
from harness import check

ARGUMENTS = ["--set", "membership.lease_ms=2000", "--set", "membership.renew_ms=400", "--set", "train.epochs=100000",
             "--set", "train.max_commits=3000", "--set", "checkpoint.every_commits=100",
             "--set", "train.optimizer={\"adam\": {}}", "--set", "membership.ps_replacement_timeout_ms=500"]


def start_all(job, listed=2, running=2):
    cluster = job.cluster(ps=listed, workers=2)
    names = ["chief:0", "worker:0", "worker:1"] + [f"ps:{i}" for i in range(running)]
    return cluster, {name: job.role(name, job_cluster(cluster, running), *ARGUMENTS) for name in names}


def job_cluster(cluster, servers):
    """As a cluster file that lists so many servers."""
    fewer = json.loads(json.dumps(cluster))
    fewer["cluster"]["ps"] = fewer["cluster"]["ps"][:servers]
    return fewer


def finish(job, all_roles):
    for process in all_roles.values():
        process.expect(0)
    summary = job.summary()
    check(summary["commits"] == 3000 and summary["samples_trained"] == 3000 * 48, summary)
    check(set(summary["samples_per_epoch"]) == {480}, summary["samples_per_epoch"])
    return summary


def test_stripes_move_live_and_the_bits_are_those_of_an_undisturbed_job(job):
    job.model_dir = job.path("whole")
    _, all_roles = start_all(job)
    whole = finish(job, all_roles)

    job.model_dir = job.path("drained")
    _, all_roles = start_all(job)
    all_roles["chief:0"].wait_for("checkpoint g1-c300 is complete")
    all_roles["ps:1"].popen.send_signal(signal.SIGTERM)
    all_roles.pop("ps:1").expect(0, 10)
    all_roles["chief:0"].wait_for("all 1 servers hold version g1")
    drained = finish(job, all_roles)
    check(drained["samples_rolled_back"] == 0, drained)
    check(drained["parameters_sha256"] == whole["parameters_sha256"], "other parameters after a server left")

    job.model_dir = job.path("scaled")
    cluster, all_roles = start_all(job, listed=3)
    chief = cluster["cluster"]["chief"][0]
    all_roles["chief:0"].wait_for("checkpoint g1-c200 is complete")
    scale = job.start("scale", ["evenkeel", "scale", "--ps", "3", "--chief", chief])
    scale.expect(0)
    check("1 more" in scale.output(), scale.output())
    all_roles["ps:2"] = job.role("ps:2", cluster, *ARGUMENTS)
    all_roles["chief:0"].wait_for("all 3 servers hold version g1")
    scaled = finish(job, all_roles)
    check(scaled["samples_rolled_back"] == 0, scaled)
    check(scaled["parameters_sha256"] == whole["parameters_sha256"], "other parameters after a server was added")


def test_a_killed_server_is_gone_on_without(job):
    _, all_roles = start_all(job)
    all_roles["chief:0"].wait_for("checkpoint g1-c300 is complete")
    all_roles["ps:0"].popen.kill()
    all_roles.pop("ps:0").wait()
    all_roles["chief:0"].wait_for("all 1 servers hold version g2")
    check(finish(job, all_roles)["samples_rolled_back"] > 0, "nothing was rolled back")


def test_launch_adds_the_servers_that_are_asked_for_and_lets_others_go(job):
    run = job.launch("--ps", "1", "--workers", "2", *ARGUMENTS, "--monitor-interval", "0.1")
    chief = run.wait_for(r"chief at (127\.0\.0\.1:\d+)").group(1)
    job.wait_for_log("chief-0.log", "checkpoint g1-c100 is complete")
    job.start("scale", ["evenkeel", "scale", "--ps", "3", "--chief", chief]).expect(0)
    run.wait_for("ps:1 is added, process")
    run.wait_for("ps:2 is added, process")
    job.wait_for_log("chief-0.log", "all 3 servers hold version g1")
    job.start("drain", ["evenkeel", "drain", "ps:0", "--chief", chief]).expect(0)
    job.wait_for_log("chief-0.log", "all 2 servers hold version g1")
    job.start("scale", ["evenkeel", "scale", "--ps", "3", "--chief", chief]).expect(0)
    job.wait_for_log("chief-0.log", "(?s)all 3 servers hold version g1.*all 3 servers hold version g1")
    job.start("drain", ["evenkeel", "drain", "worker:1", "--chief", chief]).expect(0)
    run.wait_for("worker:1 left: evenkeel drain")
    os.kill(job.pid_of("ps:1"), signal.SIGKILL)
    run.expect(0)
    summary = job.summary()
    check(sum(worker["samples"] for worker in summary["workers"]) == summary["samples_trained"], summary["workers"])
    check(summary["commits"] == 3000 and set(summary["samples_per_epoch"]) == {480}, summary)
    job.expect_nothing_left()


harness.main(globals())
