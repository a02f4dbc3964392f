"""Wrong input ends with code 2 and a message that names the place; nothing crashes."""
import contextlib
import gzip
import json
import os
import re
import shutil
import socket
import struct

import harness
from harness import check

FAST = ["--set", "membership.lease_ms=2000", "--set", "membership.renew_ms=400", "--set", "membership.drain_ms=2000",
        "--set", "membership.chief_timeout_ms=5000"]


def expect_wrong(process, *words, code=2):
    process.expect(code, 30)
    text = process.output()
    for word in words:
        check(re.search(word, text), f"{process.name} does not say '{word}':\n{text}")
    check("terminate called" not in text and "Traceback" not in text, text)


def worker(job, config):
    return job.start("worker", ["evenkeel-worker", "--experiment", job.experiment], config)


def with_task(cluster, kind="worker", index=0):
    return dict(cluster, task={"type": kind, "index": index})


def test_tf_config(job):
    good = job.cluster(ps=2, workers=2)
    both = dict(good, cluster=dict(good["cluster"], master=["127.0.0.1:1"]))
    twice = dict(good, cluster=dict(good["cluster"], worker=["127.0.0.1:4001", "127.0.0.1:4001"]))
    bare_v6 = dict(good, cluster=dict(good["cluster"], worker=["::1:4001"]))
    for config, words in [
        ("{not json", ["TF_CONFIG"]),
        ({"task": {"type": "worker", "index": 0}}, ["TF_CONFIG", "cluster"]),
        (with_task(good, "drummer"), ["task.type", "drummer"]),
        (with_task(both), ["chief", "master"]),
        (with_task(good, index="x"), ["task.index", "x"]),
        (with_task(good, index=7), ["task.index", "7", "out of range"]),
        (with_task(good, index=-1), ["task.index"]),
        (with_task(twice), [r"cluster.worker\[1\]", "4001"]),
        (with_task(bare_v6), [r"cluster.worker\[0\]", "::1"]),
        (with_task(good, "ps"), ["ps:0", "worker"]),
        (good, ["--task"]),
        (None, ["--chief"]),
    ]:
        expect_wrong(worker(job, config), *words)


def test_accepted_clusters(job):
    good = job.cluster(ps=1, workers=1, evaluators=1)
    text_index = with_task(good, index="0")
    v6 = {"cluster": {"chief": ["[::1]:0"], "ps": ["[::1]:0"], "worker": ["[::1]:0"]}, "model_dir": job.model_dir}
    master = {"cluster": {"master": ["127.0.0.1:0"], "ps": ["127.0.0.1:0"]}, "model_dir": job.model_dir}
    for name, config in [("evaluator", with_task(good, "evaluator")), ("text", text_index), ("v6", v6),
                         ("master", master)]:
        path = job.write(f"{name}.json", json.dumps(config))
        process = job.start("check", ["evenkeel", "check", "--cluster", path, "--experiment", job.experiment])
        process.expect(0, 30)


def test_batch_size_list(job):
    for sizes, words in [("[8, 8, 8]", ["batch_size_list", "3"]), ([8, 0], ["batch_size_list", "0"]),
                         ("[8, x]", ["batch_size_list"])]:
        cluster = job.cluster(ps=1, workers=2, batch_size_list=sizes)
        expect_wrong(job.role("chief:0", cluster), *words)


def test_port_in_use(job):
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = job.cluster()
        cluster["cluster"]["chief"] = [f"127.0.0.1:{port}"]
        expect_wrong(job.role("chief:0", cluster), str(port), "in use")
        path = job.write("cluster.json", json.dumps(cluster))
        expect_wrong(job.start("check", ["evenkeel", "check", "--cluster", path, "--experiment", job.experiment]),
                     str(port), "in use")
        cluster = job.cluster()
        cluster["cluster"]["ps"] = [f"127.0.0.1:{port}"]
        expect_wrong(job.role("ps:0", cluster), str(port), "in use")


def test_experiment(job):
    layers = lambda *items: {"model": {"layers": list(items), "loss": {"type": "mse"}}}
    for changes, words in [
        ({"colour": 1}, ["wrong.json", "colour"]),
        (layers({"dence": {"units": 1}}), ["wrong.json", "model.layers", "dence"]),
        (layers({"dense": {"units": 1}}, {"conv2d": {"filters": 2, "kernel": [3, 3]}}), ["conv2d"]),
        ({"train": {"epochs": 1, "global_batch_size": 5, "optimizer": {"sgd": {}}, "schedule": {"learning_rate": -1}}},
         ["wrong.json", "learning_rate", "-1"]),
        ({"train": {"epochs": 1, "global_batch_size": "many"}}, ["wrong.json", "global_batch_size"]),
    ]:
        path = job.write_experiment("wrong.json", changes)
        expect_wrong(job.start("launch", ["evenkeel", "launch", "--experiment", path, "--model-dir", job.model_dir,
                                          *FAST]), *words)
    path = job.write("wrong.json", "{")
    expect_wrong(job.start("launch", ["evenkeel", "launch", "--experiment", path, "--model-dir", job.model_dir]),
                 "wrong.json")
    expect_wrong(job.start("launch", ["evenkeel", "launch", "--experiment", job.path("none.json"), "--model-dir",
                                      job.model_dir]), "none.json")
    expect_wrong(job.launch("--set", "train.sync.mode=bps"), "train.sync.mode", "bps")


def test_command_line(job):
    for arguments in [["evenkeel"], ["evenkeel", "launch"], ["evenkeel", "fly"], ["evenkeel-worker", "--no-such"],
                      ["evenkeel-ps", "--threads", "0"], ["evenkeel-worker"], ["evenkeel-evaluator"]]:
        expect_wrong(job.start("wrong", arguments))
    expect_wrong(job.start("wrong", ["evenkeel", "fly", "high"]), "no command 'fly'")
    for arguments in [["evenkeel-worker", "--chief", "127.0.0.1:1", "--chief-timeout-seconds", "nan"],
                      ["evenkeel", "status", "--chief", "127.0.0.1:1", "--timeout-seconds", "nan"],
                      ["evenkeel", "agent", "--chief", "127.0.0.1:1", "--workers", "1", "--grace", "nan"],
                      ["evenkeel", "replay", "--model-dir", job.model_dir, "--tolerance", "2"]]:
        expect_wrong(job.start("range", arguments), f"{arguments[-2]}: {arguments[-1]} is not a number from")
    for arguments in [["evenkeel", "launch", "--experiment", job.experiment, "--model-dir", ""],
                      ["evenkeel", "replay", "--model-dir", job.model_dir, "--data", ""],
                      ["evenkeel-worker", "--chief", ""]]:
        expect_wrong(job.start("empty", arguments), f"{arguments[-2]}: is empty")
    expect_wrong(job.start("file", ["evenkeel-evaluator", "--model-dir", job.experiment]), "is a file")
    for arguments in [["evenkeel"], ["evenkeel", "launch"], ["evenkeel", "check"], ["evenkeel-chief"],
                      ["evenkeel-worker"], ["evenkeel-ps"], ["evenkeel-evaluator"]]:
        process = job.start("help", [*arguments, "--help"])
        process.expect(0, 10)


def data_worker(job, source, **more):
    changes = {"input": dict({"train": source}, **more)}
    if "classes" in more:
        changes["model"] = {"layers": [{"flatten": {}}, {"dense": {"units": more["classes"]}}],
                            "loss": {"type": "softmax_cross_entropy"}}
        changes["eval"] = {"metrics": ["accuracy"]}
    experiment = job.write_experiment("data.json", changes)
    return job.start("worker", ["evenkeel-worker", "--chief", "127.0.0.1:1", "--experiment", experiment])


def csv_with(job, bad_row):
    return {"csv": {"files": [job.write("bad.csv", "a,b,y\n1,2,3\n4,5,6\n" + bad_row)], "label": "y"}}


def test_csv(job):
    expect_wrong(data_worker(job, {"csv": {"files": [job.path("none.csv")], "label": "y"}}), "none.csv")
    for row in ["7,8\n", "7,nan,9\n", "7,inf,9\n", "7,word,9\n"]:
        expect_wrong(data_worker(job, csv_with(job, row)), "bad.csv", "4|line")


def idx(magic=0x803, labels_magic=0x801, count=4, label=1, cut=0):
    images = struct.pack(">IIII", magic, count, 2, 2) + bytes(4 * count)
    labels = struct.pack(">II", labels_magic, count) + bytes([label] * count)
    return images[:len(images) - cut], labels


def test_idx(job):
    for arguments, words in [({"cut": 3}, ["images"]), ({"magic": 0x777}, ["images", "magic"]),
                             ({"labels_magic": 0x777}, ["labels", "magic"]), ({"label": 12}, ["labels", "12"])]:
        images, labels = idx(**arguments)
        source = {"idx": {"images": job.write("images", images), "labels": job.write("labels", labels)}}
        expect_wrong(data_worker(job, source, classes=10), *words)
    images, labels = idx()
    packed = gzip.compress(images)
    source = {"idx": {"images": job.write("images.gz", packed[:len(packed) // 2]), "labels": job.write("labels", labels)}}
    expect_wrong(data_worker(job, source, classes=10), "images.gz")


def finished_job(job):
    job.launch(*FAST).expect(0)
    checkpoints = os.path.join(job.model_dir, "checkpoints")
    newest = max(os.listdir(checkpoints), key=lambda name: int(name.split("-c")[1]))
    part = os.path.join(checkpoints, newest, "part-0-of-1.safetensors")
    check(os.path.exists(part), os.listdir(os.path.join(checkpoints, newest)))
    return newest, part


def test_truncated_checkpoint(job):
    newest, part = finished_job(job)
    with open(part, "r+b") as file:
        file.truncate(os.path.getsize(part) - 3)
    expect_wrong(job.launch(*FAST, "--set", "train.epochs=6"), newest, "part-0-of-1")


def test_flipped_byte_in_a_checkpoint(job):
    newest, part = finished_job(job)
    with open(part, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    expect_wrong(job.launch(*FAST, "--set", "train.epochs=6"), newest, "part-0-of-1")


def test_checkpoint_of_another_model(job):
    newest, _ = finished_job(job)
    other = job.write_experiment("other.json", {"model": {
        "layers": [{"dense": {"units": 3}, "name": "h"}, {"dense": {"units": 1}, "name": "y"}], "loss": {"type": "mse"}}})
    expect_wrong(job.launch(*FAST, experiment=other), "model|tensor|layout")


def test_other_experiment(job):
    cluster = job.cluster(workers=1)
    chief = job.role("chief:0", cluster, *FAST)
    ps = job.role("ps:0", cluster, *FAST)
    other = job.role("worker:0", cluster, *FAST, "--set", "train.seed=8")
    expect_wrong(other, "train.seed", code=3)
    chief.wait_for("ps:0 joined")
    chief.popen.terminate()
    chief.expect(0, 20)
    ps.expect(0, 20)


def test_two_jobs_in_one_model_dir(job):
    first = job.launch(*FAST, "--set", "train.epochs=100000")
    job.wait_for_log("worker-0.log", "admitted with rank")
    expect_wrong(job.launch(*FAST), re.escape(job.model_dir), "in use", code=3)
    first.popen.terminate()
    first.expect(130, 30)


def test_loss_that_is_not_finite(job):
    run = job.launch(*FAST, "--set", "train.schedule.learning_rate=1e30")
    expect_wrong(run, "chief:0 ended", "worker:0", "step|commit|update", "loss|layer", code=1)
    check(job.summary()["status"] == "failed", job.summary())
    job.expect_nothing_left()


def test_check_says_what_is_wrong(job):
    cluster = job.cluster(ps=1, workers=1)
    cluster["cluster"]["worker"] = ["no-such-host.invalid:4000"]
    path = job.write("cluster.json", json.dumps(cluster))
    process = job.start("check", ["evenkeel", "check", "--cluster", path, "--experiment", job.experiment])
    expect_wrong(process, "no-such-host.invalid", "ok +experiment", "480 samples", "ok +model ")
    shutil.rmtree(job.model_dir, ignore_errors=True)
    job.write("job", "a file where the folder should be")
    expect_wrong(job.start("check", ["evenkeel", "check", "--cluster", path, "--experiment", job.experiment]),
                 "wrong +model_dir")


harness.main(globals())
