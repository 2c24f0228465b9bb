"""The README's commands and code do what it says."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
COMMANDS = [
    shlex.split(re.sub("<[^>]*>", "SOMEWHERE", line), comments=True)[1:]
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]


def test_there_is_something_to_test():
    assert len(COMMANDS) >= 6
    assert TEXT.split("\n")[2].startswith("    make demo")
    assert TEXT.split("\n")[3].startswith("    make test")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_compose(command, tmp_path):
    arguments = [argument for argument in command[1:] if argument not in ("-m", "--help")]
    arguments = [re.sub(r",.*", "", argument) for argument in arguments]
    done = subprocess.run(
        [sys.executable, str(ROOT / command[0]), *arguments, "--cfg", "job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    if "prompt" in str(arguments):
        assert "prompt: 'the '\n" in done.stdout


def test_python_examples_run():
    examples = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})


def test_the_layers_work_in_a_model_of_ones_own(tmp_path):
    (example,) = re.findall(r"## In your own model\n.*?```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(example.split("\n")) - example.count("\n\n") - 1 <= 20  # blank lines are the formatter's
    frameworks = "\nimport sys; print([name for name in ('hydra', 'pytorch_lightning') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.manual_seed(0)\n" + example + frameworks],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (look, step), error, imported = map(ast.literal_eval, done.stdout.splitlines())
    assert 0 < step < 1 < look  # one is Lipschitz, the other a contraction
    assert error < 1e-4
    assert imported == []


def test_every_group_and_choice_is_named():
    from lipformer.config import conf_dir

    for group in (folder for folder in conf_dir().iterdir() if folder.is_dir() and folder.name != "experiment"):
        for choice in group.glob("*.yaml"):
            assert f"`{choice.stem}`" in TEXT, f"{group.name}={choice.stem}"


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", TEXT):
        assert (ROOT / target).exists(), target


def test_the_wandb_sweep_hands_over_what_hydra_reads(tmp_path):
    sweep = yaml.safe_load((ROOT / "docs" / "wandb-sweep.yaml").read_text())
    assert sweep["command"] == ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]
    assert sweep["metric"]["name"] == "val/nats_per_char"
    values = {key: space.get("value", space.get("values", [None])[0]) for key, space in sweep["parameters"].items()}
    assert all(isinstance(value, float) for value in sweep["parameters"]["lr"]["values"])
    arguments = [f"{key}={value}" for key, value in values.items()]  # what ${args_no_hyphens} stands for
    done = subprocess.run(
        [sys.executable, str(ROOT / sweep["program"]), *arguments, "--cfg", "job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "lr: 0.0001\n" in done.stdout
