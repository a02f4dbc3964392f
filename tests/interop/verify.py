"""verify.py FOLDER: the packages' own readers must see exactly the numbers that interop_writer says it wrote."""

import pathlib
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file
from tensorboard.backend.event_processing import event_accumulator


def check(condition, message):
    if not condition:
        sys.exit(f"verify.py: {message}")


def expected_lines(path):
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def verify_scalars(folder):
    expected = {}
    for tag, step, value in expected_lines(folder / "scalars.txt"):
        expected.setdefault(tag, []).append((int(step), np.float32(value)))
    accumulator = event_accumulator.EventAccumulator(
        str(folder / "events"), size_guidance={event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0})
    accumulator.Reload()
    check(accumulator.file_version == 2.0, f"file version is {accumulator.file_version}")
    check(set(accumulator.Tags()["scalars"]) == set(expected), f"tags are {accumulator.Tags()['scalars']}")
    for tag, points in expected.items():
        events = accumulator.Scalars(tag)
        check(all(event.wall_time > 1.6e9 for event in events), f"{tag}: a wall time is not of this age")
        check([(event.step, np.float32(event.value)) for event in events] == points, f"{tag}: other numbers")
    return sum(len(points) for points in expected.values())


def verify_tensors(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    lines = expected_lines(folder / "tensors.txt")
    check(set(tensors) == {line[0] for line in lines}, f"names are {sorted(tensors)}")
    for name, rank, *rest in lines:
        shape = tuple(int(dim) for dim in rest[:int(rank)])
        values = np.array([np.float32(value) for value in rest[int(rank):]], dtype=np.float32).reshape(shape)
        check(tensors[name].dtype == np.float32, f"{name}: dtype is {tensors[name].dtype}")
        check(tensors[name].shape == shape, f"{name}: shape is {tensors[name].shape}, not {shape}")
        check(tensors[name].tobytes() == values.tobytes(), f"{name}: other numbers")
    with safe_open(path, framework="numpy") as file:
        check(file.metadata()["checkpoint"] == "g1-c5", f"metadata is {file.metadata()}")
    # A server's part is a safetensors file too.
    parts = sorted((folder / "checkpoints" / "g1-c5").glob("part-*.safetensors"))
    check(len(parts) == 3, f"{len(parts)} parts")
    total = sum(tensor.size for part in parts for tensor in load_file(part).values())
    check(total == 240, f"the parts hold {total} floats")
    return len(tensors)


def main():
    folder = pathlib.Path(sys.argv[1])
    scalars = verify_scalars(folder)
    tensors = verify_tensors(folder)
    print(f"tensorboard read {scalars} scalars and safetensors {tensors} tensors, all as written")


main()
