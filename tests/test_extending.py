"""docs/extending.md, followed to the letter in an empty folder: its files, its commands, its laws."""

import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from laws import Kind
from programs import ROOT, TINY, write_text

from lipformer.modules import contracts
from lipformer.program import cli
from lipformer.runs.outcome import read_outcome

PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```(?:python|yaml)\n# (\S+\.(?:py|yaml))\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
LOADING = re.search(r"```python\n(from lipformer import .*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, importable as ``PYTHONPATH=.`` makes it, and forgotten afterwards."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    write_text(tmp_path / "text.txt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert "my_package" not in sys.modules, "left by another test"
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("my_package", "test_mean_shift")]:
        del sys.modules[name]


def typed(command: str, run: Path | None = None) -> list[str]:
    """The program and arguments of a command of the page, made small."""
    command = command.replace("<lipformer>", str(ROOT)).replace("<run folder>", str(run))
    _, _, program, *arguments = shlex.split(command, comments=True)
    if program.endswith("train.py") and run is None:
        small = [argument for argument in TINY if not argument.startswith("attention=")]
        arguments += [*small, "data.train=text.txt", "hydra.run.dir=run"]
    return [program, *sorted(arguments, key=lambda argument: not argument.startswith("-"))]  # Hydra's flags first


def run_here(monkeypatch, argv: list[str]) -> int:
    """Run train.py or evaluate.py in this process, which need not import torch again."""
    monkeypatch.setenv(cli.FULL_ERROR, "0")
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as exit_:
        (cli.train if argv[0].endswith("train.py") else cli.evaluate)()
    return exit_.value.code


def law_row() -> tuple[Kind, list]:
    """The row of the page's test file, and the laws it is held to."""
    module = importlib.import_module("test_mean_shift")
    return module.ROW, module.test_mean_shift.pytestmark[0].args[1]


def test_the_page_has_what_is_tested_here():
    listed = re.findall(r"^    (\S+\.(?:py|yaml)) ", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(FILES)
    assert len(COMMANDS) == 9
    assert LOADING is not None


def test_the_table_has_all_that_a_part_can_state():
    table = PAGE[PAGE.index("| you state |") : PAGE.index("contracts.py`]")]
    for name, found in vars(contracts).items():
        if getattr(found, "__module__", "") == contracts.__name__:
            members = {"joined_heads": ["heads`, `out"]}.get(name, [name])
            assert any(f"`{member}" in table for member in members), name
            if inspect.isclass(found):
                assert all(
                    f"`{method}(" in table
                    for method in vars(found)
                    if inspect.isfunction(vars(found)[method]) and not method.startswith("_")
                ), name


def test_train_evaluate_resume_and_load(folder, monkeypatch, capsys):
    train = [command for command in COMMANDS if "train.py" in command and "<run folder>" not in command]
    first, as_a_key, penalised, _ = train
    assert run_here(monkeypatch, typed(first)) == 0
    for command in [command for command in COMMANDS if "<run folder>" in command]:
        assert run_here(monkeypatch, typed(command, folder / "run")) == 0, command
        without_permission = [argument for argument in typed(command, folder / "run") if "allow" not in argument]
        assert run_here(monkeypatch, without_permission) == 2
        assert "allow_targets=[my_package]" in capsys.readouterr().err
    assert run_here(monkeypatch, [*typed(penalised), "hydra.run.dir=penalised"]) == 0
    assert "train/regularizer" in (folder / "penalised" / "metrics.csv").read_text()

    composed = subprocess.run(
        [sys.executable, *typed(as_a_key), "--cfg", "job"], capture_output=True, text=True, timeout=60
    )
    assert "_target_: my_package.mean_shift.MeanShiftAttention" in composed.stdout, composed.stderr

    (study,) = [command for command in COMMANDS if "study=constants" in command]
    assert run_here(monkeypatch, [*typed(study, folder / "run"), "hydra.run.dir=study"]) == 0
    assert "largest constant: " in capsys.readouterr().out
    (constant,) = json.loads((folder / "study" / "constants.json").read_text())
    assert read_outcome(folder / "study").best == constant

    exec(compile(LOADING[1].replace("<run folder>", str(folder / "run")), "extending.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "blocks.0.attention" in printed
    assert "MeanShiftAttention" in printed


def test_a_model_of_ones_own(folder, monkeypatch, capsys):
    (command,) = [command for command in COMMANDS if "model=gru" in command]
    arguments = [argument for argument in typed(command) if not argument.startswith("callbacks=")]
    assert run_here(monkeypatch, arguments) == 0
    config = yaml.safe_load((folder / "run" / "config.yaml").read_text())
    assert config["model"] == {
        "_target_": "my_package.gru.CharGRU",
        "reads": ["width", "depth", "context"],
        "reset_bias": 2,
    }
    assert not {"heads", "dropout", "attention", "norm"} & config.keys()
    assert (folder / "run" / "samples.json").is_file()
    program = str(ROOT / "evaluate.py")
    assert run_here(monkeypatch, [program, "checkpoint=run", "hydra.run.dir=refused"]) == 2
    assert "allow_targets=[my_package]" in capsys.readouterr().err
    allowed = "allow_targets=[my_package]"
    for number, more in enumerate(([], ["generate.samples=1"])):
        assert run_here(monkeypatch, [program, "checkpoint=run", allowed, *more, f"hydra.run.dir={number}"]) == 0
    capsys.readouterr()
    assert run_here(monkeypatch, [program, "checkpoint=run", allowed, "study=certify", "hydra.run.dir=no"]) == 2
    assert "CharGRU" in capsys.readouterr().err
    more = ["resume=run", allowed, "trainer.max_steps=4", "hydra.run.dir=continued"]
    assert run_here(monkeypatch, [str(ROOT / "train.py"), *more]) == 0


def test_the_row_obeys_the_laws(folder):
    row, laws = law_row()
    names = [law.__name__ for law in laws]
    assert {"past_ignores_future", "derivatives_are_right", "bound_withstands_ascent"} <= set(names)
    for law in laws:
        torch.manual_seed(0)
        law(row)


def test_half_the_bound_breaks_a_law(folder):
    formula = folder / "my_package" / "bounds.py"
    assert "bound = 2 * (length - 1)" in formula.read_text()
    formula.write_text(formula.read_text().replace("bound = 2 * (length - 1)", "bound = 1 * (length - 1)"))
    row, laws = law_row()
    (ascent,) = [law for law in laws if law.__name__ == "bound_withstands_ascent"]
    assert "`bound_withstands_ascent` must object" in PAGE
    torch.manual_seed(0)
    with pytest.raises(AssertionError):
        ascent(row)


def test_coinciding_tokens_attain_the_bound(folder):
    importlib.import_module("my_package.mean_shift")
    from my_package.mean_shift import MeanShiftAttention

    layer = MeanShiftAttention(6, 2, context=5).double()
    x, direction = torch.ones(1, 5, 6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    moved = (direction / direction.norm()).repeat(1, 5, 1)
    moved[:, -1] *= -1
    _, y = torch.func.jvp(layer, (x,), (moved,))
    torch.testing.assert_close(y.norm(dim=-1).max(), layer.lipschitz_bound("mixed"), rtol=1e-5, atol=0)
    assert layer.lipschitz_bound(2) <= layer.lipschitz_bound(float("inf"))
