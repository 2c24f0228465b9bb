"""A sweep goes on after a job that fails, keeps its jobs apart, and ends with a table and an exit code."""

import csv
import random
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from programs import train, write_text
from rich.console import Console
from wandb_record import read_runs

from lipformer.program.sweep_report import SweepReport
from lipformer.program.sweep_table import sweep_table
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.sweep import NEVER_ENDED, SweepJob, read_jobs

FINISHED = Outcome(best=2.0)
DIVERGED = Outcome("diverged", 3, "the loss became nan")
FAILED = Outcome("failed", 2, "no such file")


def write_sweep(folder, *outcomes):
    for number, outcome in enumerate(outcomes):
        job = folder / str(number)
        job.mkdir(parents=True)
        OmegaConf.save(OmegaConf.create(["depth=1", f"lr={number}"]), job / "overrides.yaml")
        if outcome is not None:
            outcome.write(job)


def table_text(jobs):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(sweep_table(jobs))
    return capture.get()


def test_jobs_are_listed_in_order_with_the_one_that_was_killed(tmp_path):
    write_sweep(tmp_path, *[FINISHED] * 10, None)
    jobs = read_jobs(tmp_path)
    assert [job.name for job in jobs] == [str(number) for number in range(11)]
    assert jobs[10] == SweepJob(10, tmp_path / "10", ["depth=1", "lr=10"], NEVER_ENDED)


def test_table_names_what_differs_and_marks_the_best():
    jobs = [
        SweepJob(0, Path("0"), ["depth=1", "lr=1"], Outcome(best=2.5)),
        SweepJob(1, Path("1"), ["depth=1", "lr=2"], Outcome(best=2.25)),
        SweepJob(2, Path("2"), ["depth=1", "lr=3"], FAILED),
        SweepJob(3, Path("3"), [], NEVER_ENDED),
        SweepJob(4, Path("4"), ["depth=1", "lr=4"], Outcome("diverged", 3, "the loss became nan", 1.5)),
    ]
    text = table_text(jobs)
    assert "2.5000 " in text
    assert "2.2500 *" in text
    assert "1.5000 " in text
    assert text.count("*") == 1
    assert "lr=3" in text
    assert "no such file" in text
    assert "depth=1" not in text


def test_table_shows_brackets_as_they_are():
    text = table_text(
        [SweepJob(0, Path("0"), ["allow_targets=[/mine]", "lr=1"], Outcome("failed", 1, "no such name: [/data/a]"))]
    )
    assert "allow_targets=[/mine] lr=1" in text
    assert "[/data/a]" in text


def test_table_of_one_job_names_its_overrides():
    assert "depth=1 lr=1" in table_text([SweepJob(0, Path("0"), ["depth=1", "lr=1"], FAILED)])


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([FINISHED, FINISHED], None),
        ([FINISHED, DIVERGED], 3),
        ([FINISHED, FAILED], 1),
        ([DIVERGED, FAILED], 1),
        ([FINISHED, None], 1),
    ],
)
def test_exit_code(tmp_path, outcomes, code):
    write_sweep(tmp_path, *outcomes)
    report = SweepReport("train")
    report._folder = tmp_path
    if code is None:
        report.on_multirun_end(OmegaConf.create())
    else:
        with pytest.raises(SystemExit) as exit_:
            report.on_multirun_end(OmegaConf.create())
        assert exit_.value.code == code


def test_sweep_with_jobs_that_fail(monkeypatch, tmp_path, capsys):
    """Two jobs are refused before they begin, one trains, one finds no text."""
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text")
    assert train(monkeypatch, "-m", "width=15,16", "data.train=text,missing", "hydra.sweep.dir=sweep") == 1
    report = capsys.readouterr()
    assert report.err.count("error: ") == 3
    refused, also_refused, trained, failed = (read_outcome(tmp_path / "sweep" / str(job)) for job in range(4))
    assert "divisible by heads=2" in refused.reason
    assert refused == also_refused
    assert trained.status == "finished"
    assert (failed.status, failed.exit_code) == ("failed", 2)
    assert "data.train=missing does not exist" in failed.reason
    assert "Traceback" in (tmp_path / "sweep" / "3" / "train.log").read_text()
    assert all(f"width={width} data.train={text}" in report.out for width in (15, 16) for text in ("text", "missing"))
    assert f"{trained.best:.4f} *" in report.out


def test_a_sweep_folder_in_use_is_left_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "sweep", FINISHED)
    before = {f: f.read_text() for f in (tmp_path / "sweep").rglob("*.*")}
    assert train(monkeypatch, "-m", "data.train=text", "seed=1,2", "hydra.sweep.dir=sweep") == 2
    captured = capsys.readouterr()
    assert captured.err == "error: the sweep folder sweep is not empty: choose another with hydra.sweep.dir=<folder>\n"
    assert {f: f.read_text() for f in (tmp_path / "sweep").rglob("*.*")} == before


@pytest.mark.parametrize("devices", ["[0,1]", "2", "auto"])
def test_a_job_of_a_sweep_has_one_device(devices, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert train(monkeypatch, "-m", "data.train=text", f"trainer.devices={devices}", "hydra.sweep.dir=sweep") == 1
    assert "does not go with -m: sweep with trainer.devices=1" in capsys.readouterr().err


def test_jobs_are_kept_apart(monkeypatch, tmp_path):
    """One process runs them all; the third has the seed of the first, and must not notice the second."""
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text")
    monkeypatch.setenv("WANDB_RUN_ID", "one-for-all")
    monkeypatch.setenv("WANDB_RESUME", "must")
    threads, state = torch.get_num_threads(), random.getstate()
    try:
        code = train(monkeypatch, "-m", "data.train=text", "seed=5,6,5", "logger=wandb", "hydra.sweep.dir=sweep")
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
        random.setstate(state)
    assert code == 0
    jobs = [tmp_path / "sweep" / str(number) for number in range(3)]
    rows = [list(csv.DictReader((job / "metrics.csv").open())) for job in jobs]
    assert rows[0] == rows[2]
    assert rows[0] != rows[1]
    runs = [run for job in jobs for run in read_runs(job)]
    assert len({run.id for run in runs}) == 3
    assert [run.config["seed"] for run in runs] == [5, 6, 5]
    assert [run.exit_code for run in runs] == [0, 0, 0]
    assert {run.group for run in runs} == {"sweep"}
    assert "seed=6" in runs[1].tags
    for job in jobs:
        assert (job / "train.log").read_text().count("run folder:") == 1
        assert OmegaConf.load(job / "overrides.yaml")[-1] == "logger=wandb"


def test_threads_of_one_job_are_not_those_of_the_next(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # so that null means what torch chooses, however small the model
    monkeypatch.setattr("lipformer.training.threads.DEFAULT", 2)
    threads = torch.get_num_threads()
    try:
        train(monkeypatch, "-m", "data.train=text", "trainer.threads=1,null", "hydra.sweep.dir=sweep")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
