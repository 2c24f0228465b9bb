"""A task names the metrics everywhere, and a second one goes through training, evaluation, report and sweeps."""

import json
import math
from pathlib import Path

import pytest
import torch
import yaml
from programs import ROOT, evaluate, train, write_text
from rich.console import Console

from lipformer import tasks
from lipformer.config.targets import locate
from lipformer.data.collate import IGNORE
from lipformer.program.sweep_table import sweep_table
from lipformer.runs.outcome import Outcome
from lipformer.runs.record import read_record, tasks_of
from lipformer.runs.sweep import SweepJob
from lipformer.tasks import LANGUAGE, Measure, Task, task_of
from lipformer.training.task_module import TaskModule

DOUBT = Task(
    name="doubt",
    objective=Measure("doubt", "doubt", "doubt", "mean doubt"),
    derived=(Measure("doubt_percent", "percent", "%", "doubt in percent", size=0.01),),
    counted="tokens",
    generates=False,
    module=f"{__name__}.DoubtModule",
)


class DoubtModule(TaskModule):
    """Minimises the mean of 1 - p(next character)."""

    task = DOUBT

    @staticmethod
    def sums(outputs, batch):
        real = batch.targets != IGNORE
        p = outputs.double().softmax(-1).gather(-1, batch.targets.clamp_min(0)[..., None])[..., 0]
        return ((1 - p) * real).sum(), real.sum()


@pytest.fixture
def doubt(monkeypatch, tmp_path):
    """A folder of configuration in which a model is of the second task, and a text."""
    monkeypatch.setitem(tasks.TASKS, "doubt", DOUBT)
    for group, name, text in [
        ("task", "doubt", "defaults: [/schema/task@_here_]\nname: doubt\n"),
        (
            "model",
            "doubter",
            "defaults: [/schema/model/model@_here_, override /task@_global_.task: doubt]\n"
            "_target_: lipformer.models.transformer.CharTransformer\n"
            f"reads: {yaml.safe_load((ROOT / 'conf/model/transformer.yaml').read_text())['reads']}\n",
        ),
    ]:
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / f"{name}.yaml").write_text(text)
    write_text(tmp_path / "text.txt")
    return tmp_path


def test_bits_are_nats_over_the_logarithm_of_two():
    assert LANGUAGE.metric("best/val") == "best/val/nats_per_char"
    assert LANGUAGE.metrics("val", math.log(2)) == {
        "val/nats_per_char": math.log(2),
        "val/bits_per_char": pytest.approx(1.0),
    }
    assert LANGUAGE.metrics("val", None) == {"val/nats_per_char": None, "val/bits_per_char": None}
    assert LANGUAGE.describe(1.0) == "1.0000 nats/char = 1.4427 bits"


@pytest.mark.parametrize("node", [None, "language", {}, {"name": None}, {"name": ["x"]}, {"name": "nothing"}, 7])
def test_a_configuration_that_names_no_task_is_of_the_language(node):
    assert task_of({"task": node}) is LANGUAGE
    assert task_of({}) is LANGUAGE


def test_every_choice_names_a_task_with_a_module():
    choices = {file.stem: yaml.safe_load(file.read_text())["name"] for file in (ROOT / "conf" / "task").glob("*.yaml")}
    assert choices == {name: name for name in tasks.TASKS}
    for task in tasks.TASKS.values():
        module = locate(task.module, "task")
        assert issubclass(module, TaskModule)
        assert module.task is task


def test_an_unknown_task_is_one_line(tmp_path, monkeypatch, capsys):
    for typed in ("task.name=colours", "task=colours"):
        assert train(monkeypatch, typed, "data.train=x", f"hydra.run.dir={tmp_path / 'run'}") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "language" in line


def test_a_model_of_another_task_goes_all_the_way(doubt, monkeypatch, capsys):
    run, flag = doubt / "run", f"--config-dir={doubt / 'conf'}"
    options = ("attention=l2", "callbacks=stability", "trainer.report=true", f"data.train={doubt / 'text.txt'}")
    assert train(monkeypatch, flag, "model=doubter", *options, f"hydra.run.dir={run}") == 0
    shown = capsys.readouterr().out
    assert "best valid: 0." in shown
    assert " doubt, " in shown
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["task"] == {"name": "doubt"}
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["best/val/doubt_percent"] == pytest.approx(100 * metrics["best/val/doubt"])
    header = (run / "metrics.csv").read_text().splitlines()[0]
    assert {"train/doubt", "val/doubt", "val/doubt_percent"} <= set(header.split(","))
    assert not any("nats" in name for name in (*metrics, *header.split(",")))
    best = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["lipformer"]["config"]["task"] == {"name": "doubt"}
    page = (run / "report.html").read_text()
    assert "mean doubt" in page
    assert "nats per character" not in page
    assert (run / "figures" / "learning.png").is_file()
    assert not (run / "samples.json").exists(), "it writes no text"
    assert tasks_of([read_record(run), read_record(run)]) == [DOUBT]

    evaluation = doubt / "evaluation"
    assert evaluate(monkeypatch, f"checkpoint={run}", "split=valid", f"hydra.run.dir={evaluation}") == 0
    figures = json.loads((evaluation / "metrics.json").read_text())
    assert figures["val/doubt"] == pytest.approx(metrics["best/val/doubt"], abs=1e-6)
    assert "%" in capsys.readouterr().out
    for number, option in enumerate(("generate.samples=1", "study=certify")):
        assert evaluate(monkeypatch, f"checkpoint={run}", option, f"hydra.run.dir={doubt / str(number)}") == 2
        assert "task=doubt" in capsys.readouterr().err
    more = (flag, f"resume={run}", "trainer.max_steps=5", f"hydra.run.dir={doubt / 'more'}")
    assert train(monkeypatch, *more) == 0
    assert json.loads((doubt / "more" / "metrics.json").read_text())["steps"] == 5


def test_scores_of_two_tasks_are_not_compared(doubt):
    jobs = [
        SweepJob(0, Path("0"), ["a"], Outcome(best=2.5)),
        SweepJob(1, Path("1"), ["b"], Outcome(best=2.25)),
        SweepJob(2, Path("2"), ["c"], Outcome(best=0.5), DOUBT),
    ]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(sweep_table(jobs))
    lines = capture.get().splitlines()
    caption = " ".join(" ".join(lines).split())
    assert "nats: nats per character; doubt: mean doubt; of a training, the best on valid" in caption
    stars = [line.count("*") for line in lines if line.startswith("│")]
    assert stars == [0, 1, 1]
