"""`evenkeel replay` of real jobs: bit for bit in every mode, on every kind of data; 1 where it differs, 2 where it can't."""
import json
import os
import shutil

import harness
from harness import Skipped, check, sets

FASHION = "/usr/share/datasets/fashion-mnist"


def experiment(job, name):
    if name.startswith("fashion"):
        here = os.path.exists(os.path.join(os.environ.get("FASHION_MNIST", FASHION), "train-images-idx3-ubyte.gz"))
    else:
        here = "EVENKEEL_DATA" in os.environ
    if not here:
        raise Skipped(f"the data of {name} are not here")
    return os.path.join(job.source, "configs", "experiments", f"{name}.json")


def replay(job, *arguments, code=0):
    process = job.start("replay", ["evenkeel", "replay", "--model-dir", job.model_dir, *arguments])
    process.expect(code)
    return process


def check_same_bits(job, name):
    report = json.loads(replay(job, "--json").output())
    check(report["agrees"] and report["commits_bit_for_bit"] == report["commits"] > 0, f"{name}: {report}")
    arrays = [array for checkpoint in report["checkpoints"] for array in checkpoint["arrays"]]
    check(arrays and all(array["same_bits"] for array in arrays), f"{name}: {report}")
    print(f"      {name}: {report['commits']} commits, {len(report['checkpoints'])} checkpoints, {report['seconds']:.1f} s")


def test_each_mode_replays_bit_for_bit(job):
    file = experiment(job, "fashion_mlp")
    modes = {"bsp": {}, "backup": {"train__sync__backup_workers": 1}, "asp": {"train__sync__mode": "asp"},
             "ssp": {"train__sync__mode": "ssp", "train__sync__staleness": 2}}
    for name, fields in modes.items():
        job.model_dir = job.path(name)
        job.launch("--ps", "2", "--workers", "3", *sets(train__epochs=1, checkpoint__every_commits=50, **fields),
                   experiment=file).expect(0)
        check_same_bits(job, name)


def test_convolutions_augmentation_and_sparse_rows_replay_bit_for_bit(job):
    tried = 0
    for name, commits in [("fashion_cnn", 12), ("cifar_resnet20", 6), ("a9a_logistic", 100), ("wine_dnn", 100)]:
        try:
            file = experiment(job, name)
        except Skipped:
            continue
        tried += 1
        job.model_dir = job.path(name)
        job.launch("--ps", "2", "--workers", "2", *sets(train__max_commits=commits, train__sync__mode="asp"),
                   experiment=file).expect(0)
        check_same_bits(job, name)
    if tried == 0:
        raise Skipped("no data are here")


def test_wrong_input_is_named(job):
    file = experiment(job, "fashion_mlp")
    replay(job, code=2)  # nothing there yet
    job.launch("--ps", "1", "--workers", "2", *sets(train__epochs=1), experiment=file).expect(0)
    check("g7-c1" in replay(job, "--from", "g7-c1", code=2).output(), "the version is not named")
    log = os.path.join(job.model_dir, "chief.wal.1")
    whole = job.path("whole")
    shutil.copy(log, whole)
    with open(log, "r+b") as out:
        out.seek(40)
        out.write(b"\xff\xff")
    check("chief.wal.1" in replay(job, code=2).output(), "the damaged log is not named")
    os.remove(log)
    check("commit log" in replay(job, code=2).output(), "the missing log is not named")
    shutil.copy(whole, log)
    replay(job)


harness.main(globals())
