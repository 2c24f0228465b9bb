"""A training that a search finds hopeless: where it stops, what it leaves, and how its status is read."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from programs import evaluate, train, weights_of, write_text

from lipformer.errors import Pruned
from lipformer.runs.metrics_csv import read_rows
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.search import JobTrial
from lipformer.system.terminal import STATUS_STYLES


@dataclass
class Judged(JobTrial):
    """A trial that is found hopeless at some steps, or whose study is out of reach."""

    hopeless_at: tuple[int, ...] = ()
    broken: bool = False
    told: dict[int, float] = field(default_factory=dict)

    def report(self, step, score):
        if self.broken:
            raise OSError("the database has gone")
        self.told[step] = score
        return step in self.hopeless_at


def train_as(trial, monkeypatch, tmp_path, *arguments) -> tuple[int, Path]:
    """Train nine steps, with a validation after every third, as a trial; return the exit code and the run folder."""
    from lipformer.training import run

    build = run.build_training
    monkeypatch.setattr(run, "build_training", lambda *parts: build(*parts[:4], trial))
    text, folder = write_text(tmp_path / "text.txt"), tmp_path / "run"
    steps = ("trainer.max_steps=9", "trainer.val_every_steps=3")
    return train(monkeypatch, f"data.train={text}", *steps, f"hydra.run.dir={folder}", *arguments), folder


def test_a_hopeless_training_stops_after_the_validation_and_is_whole(monkeypatch, tmp_path, capsys):
    trial = Judged(hopeless_at=(6,))
    code, folder = train_as(trial, monkeypatch, tmp_path, "trainer.report=true")
    assert code == 0
    outcome = read_outcome(folder)
    assert (outcome.status, outcome.exit_code) == ("pruned", 0)
    assert outcome.reason == (
        f"stopped at step 6 with {trial.told[6]:.4f} nats/char: the other trials of the search were better by then"
    )
    assert outcome.best == min(trial.told.values())
    assert sorted(trial.told) == [3, 6]
    scores = [row["val/nats_per_char"] for row in read_rows(folder / "metrics.csv") if row["val/nats_per_char"]]
    assert [float(score) for score in scores] == pytest.approx(list(trial.told.values()))
    assert json.loads((folder / "metrics.json").read_text())["steps"] == 6
    assert weights_of(folder, "last").keys() == weights_of(folder, "best").keys()
    assert '<span class="badge pruned">' in (folder / "report.html").read_text()
    printed = capsys.readouterr()
    assert "the run ended as pruned: stopped at step 6" in printed.out
    assert printed.err == ""
    assert "Traceback" not in (folder / "train.log").read_text()
    assert evaluate(monkeypatch, f"checkpoint={folder}", f"hydra.run.dir={tmp_path / 'evaluated'}") == 0


def test_a_pruned_training_can_be_continued(monkeypatch, tmp_path):
    train_as(Judged(hopeless_at=(3,)), monkeypatch, tmp_path)
    monkeypatch.undo()
    assert train(monkeypatch, f"resume={tmp_path / 'run'}", f"hydra.run.dir={tmp_path / 'on'}") == 0
    assert json.loads((tmp_path / "on" / "metrics.json").read_text())["steps"] == 9
    assert read_outcome(tmp_path / "on").status == "finished"


def test_the_last_validation_is_reported_but_prunes_no_more(monkeypatch, tmp_path):
    trial = Judged(hopeless_at=(9,))
    code, folder = train_as(trial, monkeypatch, tmp_path)
    assert (code, read_outcome(folder).status) == (0, "finished")
    assert sorted(trial.told) == [3, 6, 9]


def test_a_study_out_of_reach_does_not_end_the_training(monkeypatch, tmp_path, capsys):
    code, folder = train_as(Judged(broken=True), monkeypatch, tmp_path)
    assert (code, read_outcome(folder).status) == (0, "finished")
    assert "step 3 could not be reported to the search, the training goes on: OSError: the database has gone" in (
        capsys.readouterr().out
    )


def test_an_exit_code_of_zero_is_no_error():
    outcome = Outcome()
    outcome.end_by(Pruned("hopeless"))
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("pruned", 0, "hopeless")
    assert "pruned" in STATUS_STYLES
