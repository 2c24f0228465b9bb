"""Trainings by two processes on the CPU, each started as a user starts it: by Lightning, or by torchrun.

A step of two processes differs from that of one by rounding alone. How far that moves a weight follows from the
optimizer: Adam's step, lr m / (sqrt(v) + eps), changes by at most 2 lr / eps times a change of the gradients. These are
clipped at norm 1/2, and are wrong by some ten units of rounding at most, whichever way their sums are made.
"""

import csv
import os
import signal
import socket
from pathlib import Path

import pytest
import torch
from programs import ROOT, WATCHED, start_train, wait_for, weights_of, write_text

from lipformer.assembly.checkpoint import read_checkpoint
from lipformer.runs.outcome import read_outcome

pytestmark = pytest.mark.slow

STEPS, STOP, LR, EPS = 20, 9, 3e-3, 1e-4
SINGLE = (
    "data.batch_tokens=512",  # 7 batches an epoch: STOP is within the second one
    "regularizer=jasmin",
    "regularizer.k=3",
    "trainer.gradient_clip=0.5",
    "trainer.val_every_steps=6",
    "schedule.total_steps=100",
    "schedule.warmup_steps=0",
    f"lr={LR}",
    f"optimizer.eps={EPS}",
)
EXACT = (*SINGLE, "trainer.precision=64-true")
METRICS = ("train/nats_per_char", "train/regularizer", "train/gradient_norm", "val/nats_per_char")
SECONDS = 600


def tolerance(dtype: torch.dtype) -> float:
    """How far weights may be apart after `STEPS`."""
    return STEPS * 2 * LR / EPS * 10 * torch.finfo(dtype).eps


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("distributed") / "text.txt")


def run(folder: Path, *options, steps=STEPS, devices=1):
    """Train to an optimizer step in a process of its own, and return the run folder."""
    options = (*options, f"trainer.max_steps={steps}", f"trainer.devices={devices}", f"hydra.run.dir={folder}")
    process = start_train(*options, folder=folder.parent)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    return folder


def logged(folder, name):
    """The values of a metric by step."""
    with (folder / "metrics.csv").open() as file:
        found = [(int(row["step"]), float(row[name])) for row in csv.DictReader(file) if row.get(name)]
    assert len(dict(found)) == len(found), f"a step has two rows with {name}"
    extra = {STOP - 1} if name.startswith("val") else set()  # a run validates after its last step, one that goes on too
    return {step: value for step, value in found if step not in extra}


def distance(one, two):
    """Largest difference of two runs' weights."""
    one, two = weights_of(one), weights_of(two)
    assert one.keys() == two.keys()
    return max((one[name].double() - two[name].double()).abs().max().item() for name in one)


def assert_same_metrics(one, two, tolerance):
    for name in METRICS:
        first, second = logged(one, name), logged(two, name)
        assert len(first) == (4 if name.startswith("val") else STEPS)
        assert second == pytest.approx(first, abs=tolerance), name


def assert_same_run(one, two):
    assert distance(one, two) == 0
    assert all(logged(one, name) == logged(two, name) for name in METRICS)


@pytest.fixture(scope="module")
def alone(text, tmp_path_factory):
    """Run folder of one process."""
    return run(tmp_path_factory.mktemp("alone") / "run", f"data.train={text}", *EXACT)


@pytest.fixture(scope="module")
def pair(text, tmp_path_factory):
    """Run folder of two processes, watched and logged."""
    log = ("logger=wandb", "logger.mode=offline", "trainer.report=true")
    return run(tmp_path_factory.mktemp("pair") / "run", f"data.train={text}", *EXACT, *WATCHED, *log, devices=2)


def test_twenty_steps_of_two_processes_are_those_of_one(alone, pair):
    assert_same_metrics(alone, pair, 1e-6)  # they are kept in float32
    assert distance(alone, pair) < tolerance(torch.float64)


def test_twenty_steps_in_float32(text, tmp_path):
    one, two = (run(tmp_path / str(count), f"data.train={text}", *SINGLE, devices=count) for count in (1, 2))
    assert_same_metrics(one, two, 1e-4)
    assert distance(one, two) < tolerance(torch.float32)


def test_the_first_process_alone_writes(pair):
    names = {path.name for path in pair.iterdir()}
    assert {"train.log", "train_rank1.log", "metrics.csv", "report.html", "certificate.json", "samples.json"} <= names
    assert "train_rank0.log" not in names
    assert {path.name for path in (pair / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt", "previous.ckpt"}
    assert len(list((pair / "wandb").glob("offline-run-*"))) == 1
    assert len(logged(pair, "train/nats_per_char")) == STEPS
    assert sorted(logged(pair, "stability/total/gradient_norm")) == [0, *range(1, STEPS, 2)]
    assert read_outcome(pair).status == "finished"
    assert "step 20/20" in (pair / "train_rank1.log").read_text()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_run_goes_on_with_another_number_of_processes(before, after, text, alone, tmp_path):
    first = run(tmp_path / "first", f"data.train={text}", *EXACT, steps=STOP, devices=before)
    second = run(tmp_path / "second", f"resume={first}", devices=after)
    assert_same_metrics(alone, second, 1e-6)
    assert distance(alone, second) < tolerance(torch.float64)


def test_a_run_of_two_processes_goes_on_bit_for_bit(text, tmp_path):
    options = (f"data.train={text}", *SINGLE, "dropout=0.2")
    whole = run(tmp_path / "whole", *options, devices=2)
    run(tmp_path / "first", *options, steps=STOP, devices=2)
    assert_same_run(whole, run(tmp_path / "second", f"resume={tmp_path / 'first'}", devices=2))


def children_of(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_to_the_second_process_ends_both_with_all_saved(name, code, text, tmp_path):
    options = (f"data.train={text}", *SINGLE, "trainer.report=true", f"hydra.run.dir={tmp_path / 'run'}")
    process = start_train(*options, "trainer.devices=2", "trainer.max_steps=100000", folder=tmp_path)
    wait_for(tmp_path / "run" / "checkpoints" / "last.ckpt", process)
    (other,) = children_of(process)
    os.kill(other, getattr(signal, name))
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == code, errors
    assert errors.count("error: ") == 1
    assert read_outcome(tmp_path / "run").exit_code == code
    assert (tmp_path / "run" / "report.html").is_file()
    step = read_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"]
    whole = run(tmp_path / "whole", *options[:-2], steps=step, devices=2)
    assert distance(tmp_path / "run", whole) == 0


@pytest.mark.parametrize(
    ("fault", "code", "status", "reason"),
    [
        ("nan", 3, "diverged", "the loss became nan at step 4"),
        ("error", 1, "failed", "another process of this training has ended; the logs in"),
    ],
)
def test_a_fault_of_the_second_process_ends_both(fault, code, status, reason, text, tmp_path):
    """The report takes longer than Lightning waits until it kills the first process."""
    options = (f"data.train={text}", *SINGLE, *WATCHED, "trainer.report=true", "trainer.devices=2")
    limits = ("trainer.max_steps=12", f"hydra.run.dir={tmp_path / 'run'}")
    program = (str(Path(__file__).with_name("one_rank_fails.py")),)
    process = start_train(*options, *limits, folder=tmp_path, program=program, FAULT=fault)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == code, errors
    outcome = read_outcome(tmp_path / "run")
    assert (outcome.status, outcome.exit_code) == (status, code)
    assert outcome.reason.startswith(reason)
    assert f"error: {outcome.reason}\n" in errors
    assert errors.count("error: ") == (1 if fault == "nan" else 2)
    assert (tmp_path / "run" / "report.html").is_file()
    files = {path.name for path in (tmp_path / "run").glob("diverged*")}
    assert files == ({"diverged.pt", "diverged_rank1.pt"} if fault == "nan" else set())
    assert ("no memory is left" in (tmp_path / "run" / "train_rank1.log").read_text()) == (fault == "error")


def test_two_machines_of_torchrun_have_one_writer(text, alone, tmp_path):
    """Both processes are the first of their machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = (f"data.train={text}", *EXACT, f"trainer.max_steps={STEPS}", "trainer.num_nodes=2", "hydra.run.dir=run")
    torchrun = ("-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1")
    processes = [
        start_train(
            *options,
            folder=tmp_path,
            program=(*torchrun, f"--master_port={port}", f"--node_rank={node}", str(ROOT / "train.py")),
        )
        for node in (0, 1)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, errors
    assert_same_metrics(alone, tmp_path / "run", 1e-6)
    assert distance(alone, tmp_path / "run") < tolerance(torch.float64)
    assert sorted(path.name for path in (tmp_path / "run").glob("*.log")) == ["train.log", "train_rank1.log"]
