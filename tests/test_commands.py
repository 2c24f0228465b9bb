"""The command ``lipformer``: the same programs under one name, and light where nothing is computed."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from programs import ROOT, TINY, write_text

from lipformer.errors import UsageError
from lipformer.options.export import ExportOptions
from lipformer.program import export as export_program
from lipformer.program.commands import COMMANDS, usage
from lipformer.program.export import read_options

PROGRAM = (sys.executable, "-m", "lipformer")


def run(*arguments, cwd, **environment):
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_train_evaluate_and_export_by_one_name(tmp_path):
    text = write_text(tmp_path / "text.txt")
    trained = run("train", *TINY, f"data.train={text}", "hydra.run.dir=run", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "finished"
    exported = run("export", "checkpoint=run", "to=exported", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert (
        exported.stdout
        == f"exported to {tmp_path}/exported; read it with: python evaluate.py checkpoint={tmp_path}/exported\n"
    )
    scores = []
    for checkpoint in ("run", "exported"):
        done = run("evaluate", f"checkpoint={checkpoint}", f"hydra.run.dir={checkpoint}-test", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        scores.append(json.loads((tmp_path / f"{checkpoint}-test" / "metrics.json").read_text())["test/nats_per_char"])
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "error: name a command: it is one of train, evaluate, export; lipformer --help says more\n"),
        (("trian", "lr=1"), "error: lipformer trian: no such command (did you mean train?); it is one of train, "),
        (("nonsense",), "error: lipformer nonsense: no such command; it is one of train, evaluate, export; "),
        (("train", "width=130"), "error: width=130: it must be divisible by heads=4\n"),
        (("export", "checkpoint=nowhere", "to=there"), "error: checkpoint=nowhere: no such file or folder\n"),
    ],
)
def test_a_mistake_is_one_line(arguments, words, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "checkpoint is not set: give checkpoint=<value>; lipformer export --help"),
        (("checkpoint=run",), "to is not set: give to=<value>"),
        (("run", "there"), "run: keys are written key=value, such as checkpoint=run"),
        (("--to", "there"), "--to: keys are written key=value, such as checkpoint=to"),
        (("chekpoint=run",), "unknown key chekpoint (did you mean checkpoint?); lipformer export has checkpoint, to"),
        (("+to=x",), "unknown key to; lipformer export has checkpoint, to, which, allow_targets"),
        (("~to=x",), "unknown key to; lipformer export has"),
        (("to=a", "to=b"), "to: it is given twice"),
        (("to=a,b",), "to: one value only; quote a value that holds a comma"),
        (("to=a=b",), "to=a=b: quote a value that holds = , or brackets: 'to=\"a=b\"'"),
        (("checkpoint=x", "to=y", "which=first"), "which=first: it must be one of best, last"),
        (("checkpoint=x", "to=y", "allow_targets=pkg"), "allow_targets=pkg: "),
        (("checkpoint=x", "to=y", "allow_targets={a:1}"), "allow_targets={a:1}: "),
    ],
)
def test_a_mistake_in_the_keys_of_export(arguments, words):
    with pytest.raises(UsageError) as refused:
        read_options(arguments)
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


def test_keys_of_export_are_written_as_those_of_the_other_programs():
    options = read_options(["checkpoint=7", 'to="a=b, c"', "which=last", "allow_targets=[one,two]"])
    assert options == ExportOptions("7", "a=b, c", "last", ["one", "two"])


def test_help_names_commands_and_keys(tmp_path):
    assert all(f"  {name} " in usage() for name in COMMANDS)
    assert run("--version", cwd=tmp_path).stdout.startswith("lipformer 0.")
    assert "which=best" in export_program.usage()
    assert "allow_targets=[]" in export_program.usage()


@pytest.mark.parametrize("arguments", [["--help"], ["nonsense"], ["export", "to=x"], ["train", "--help"]])
def test_what_computes_nothing_imports_nothing_heavy(arguments, tmp_path):
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['lipformer', *{arguments!r}]\n"
        "try:\n"
        "    runpy.run_module('lipformer', run_name='__main__', alter_sys=True)\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'pytorch_lightning', 'wandb', 'datasets', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_processes_of_a_distributed_training_are_started_as_the_same_program(tmp_path):
    """Lightning starts them by the name of the module that is __main__, and by sys.argv without its first."""
    code = (
        "import runpy, sys, __main__\n"
        "from lipformer.program import cli\n"
        "cli.train = lambda: print(sys.modules['__main__'].__spec__.name, sys.argv[1:])\n"
        "sys.argv = ['lipformer', 'train', 'depth=2']\n"
        "runpy.run_module('lipformer', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "lipformer.program.train ['depth=2']\n", done.stderr


def test_the_installed_commands():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"lipformer", "lipformer-train", "lipformer-evaluate"}
    assert scripts["lipformer"] == "lipformer.program.commands:main"
    assert all((ROOT / "lipformer" / "program" / f"{name}.py").is_file() for name in COMMANDS)


def test_an_interrupted_export_leaves_nothing(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lipformer.assembly.export.export_run", interrupt)
    monkeypatch.setattr(sys, "argv", ["export", "checkpoint=x", "to=y"])
    with pytest.raises(SystemExit) as left:
        export_program.export()
    assert left.value.code == 130
    assert capsys.readouterr().err == "error: interrupted by the user (SIGINT)\n"
    assert not Path("y").exists()
