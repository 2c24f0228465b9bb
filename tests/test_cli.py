"""What a user types wrong: one line, the right exit code, and nothing left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(program: str, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / program), *arguments],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


MISTAKES = {
    ("attention=nope",): "attention=nope: no such choice; attention has contractive_l2, contractive_l2_blocks",
    ("model=LSTM",): "model=LSTM: no such choice (did you mean lstm?)",
    ("attention=tied_l2", "attention.scale=0.5"): "unknown key attention.scale: it is an option of "
    "attention=contractive_l2, attention=contractive_l2_blocks, attention=contractive_l2_decoupled",
    ("attention=contractive_l2", "attention.P=inf"): "unknown key attention.P (did you mean attention.p",
    ("data.dir=x",): "unknown key data.dir: it is an option of data=ptb",
    ("study=certify",): "unknown key study: it is a key of evaluate.py",
    ("norm=layernorm",): "did you mean layer_norm",
    ("atention=l2",): "unknown key atention (did you mean attention",
    ("optm.lr=1",): "unknown key optm.lr (did you mean optimizer.lr",
    ("optimizer.lrr=1",): "unknown key optimizer.lrr (did you mean optimizer.lr",
    ("+dept=3",): "unknown key dept (did you mean depth?)",
    ("+attention.scal=0.5",): "unknown key attention.scal (did you mean attention.scale",
    ("depth=abc",): "depth=abc: Value 'abc' of type 'str' could not be converted to Integer",
    ("depth=3.5",): "could not be converted to Integer",
    ("depth=0",): "depth=0: it must be at least 1",
    ("width=130",): "width=130: it must be divisible by heads=4",
    ("dropout=1",): "dropout=1.0: it must be at least 0 and below 1",
    ("lr=0",): "lr=0.0: it must be above 0",
    ("lr=nan",): "lr=nan: it must be above 0",
    ("lr=1e-3,1e-2",): "several values make a sweep, add -m",
    ("seed=-1",): "seed=-1",
    ("depth",): "write key=value",
    ("--depth", "3"): "unknown flag --depth: keys are written depth=<value>",
    ("--lr=3",): "unknown flag --lr",
    ("name=a=b",): "name=a=b: mismatched input '=' expecting <EOF>: write key=value, and quote a value that holds = , "
    "or brackets: 'name=\"a=b\"'",
    ("attention=contractive_l2", "attention.p=3"): "attention.p=3: it must be one of mixed, 2, inf",
    ("attention=contractive_l2", "attention.scale=1"): "attention.scale=1.0: it must be above 0 and below 1",
    ("data=text_files",): "data.train is not set: give data.train=<value>",
    ("data.unknown=skip",): "data.unknown=skip: it must be one of error, replace",
    ("trainer.max_steps=-1", "schedule=constant"): "or training never ends",
    ("trainer.precision=8",): "trainer.precision=8: it must be one of 32-true",
    ("optimizer.betas=[0.9]",): "optimizer.betas=[0.9]: it must be two numbers",
    ("experiment=nope",): "experiment=nope: no such choice",
    ("~depth",): "depth is not set: give depth=<value>",
    ("~trainer",): "trainer is not set: give trainer=<value>",
    ("optimizer.betas=[0.9,???]",): "optimizer.betas.1 is not set",
    ("trainer.devices=0",): "trainer.devices=0: it must be a number of at least 1, -1 or auto",
    ("trainer.devices=two",): "trainer.devices=two: it must be a number of at least 1",
    ("trainer.devices=[]",): "trainer.devices=[]: it must be a number of at least 1",
    ("trainer.devices=[0,0]",): "trainer.devices=[0, 0]: it must be",
    ("trainer.devices=1.5",): "trainer.devices=1.5: it must be",
    ("trainer.devices=null",): "trainer.devices=None: it must be",
    ("trainer.num_nodes=0",): "trainer.num_nodes=0: it must be at least 1",
    ("trainer.strategy=ddp_spawn",): "trainer.strategy=ddp_spawn: it must be one of auto, ddp\n",
    ("trainer.strategy=fsdp",): "trainer.strategy=fsdp: it must be one of auto, ddp: fsdp splits matrices over devices",
}


@pytest.mark.parametrize(("arguments", "expected"), MISTAKES.items(), ids=lambda a: " ".join(a)[:40])
def test_a_mistake_is_one_line_and_exit_code_2(arguments, expected, tmp_path):
    done = run("train.py", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr
    assert not list(tmp_path.rglob("*.*")), "a refused run leaves no file"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("_partial_: true", "error: attention/mine.yaml: leave out _partial_: every class"),
        ("column: 2", "error: attention/mine.yaml: unknown key attention.column"),
        ("columns: two", "error: "),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_names_the_file(line, expected, tmp_path):
    schema, target = "defaults: [/schema/attention/tied_l2@_here_]", "lipformer.modules.attention.TiedL2Attention"
    (tmp_path / "conf" / "attention").mkdir(parents=True)
    (tmp_path / "conf" / "attention" / "mine.yaml").write_text(f"{schema}\n_target_: {target}\n{line}\n")
    done = run("train.py", "--config-dir=conf", "attention=mine", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(expected), done.stderr
    assert done.stderr.count("\n") == 1


def test_full_error_adds_the_trace(tmp_path):
    done = run("train.py", "depth=abc", cwd=tmp_path, HYDRA_FULL_ERROR="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: depth=abc")


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "status.json").write_text("precious")
    done = run("train.py", "hydra.run.dir=mine", cwd=tmp_path)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [f.name for f in (tmp_path / "mine").iterdir()] == ["status.json"]
    assert (tmp_path / "mine" / "status.json").read_text() == "precious"


@pytest.mark.parametrize("program", ["train.py", "evaluate.py"])
@pytest.mark.parametrize("arguments", [("--cfg", "job"), ("--help",)])
def test_looking_at_the_configuration_imports_nothing_heavy(program, arguments, tmp_path):
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{program!r}, *{arguments!r}]\n"
        "try:\n"
        f"    runpy.run_path({str(ROOT / program)!r}, run_name='__main__')\n"
        "except SystemExit as leave:\n"
        "    assert not leave.code, leave.code\n"
        "heavy = {'torch', 'pytorch_lightning', 'wandb', 'datasets', 'numpy', 'scipy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "depth" in done.stdout or program == "evaluate.py"
    assert "schema" not in done.stdout


def test_a_refused_configuration_never_imports_torch(tmp_path):
    code = (
        "import runpy, sys\n"
        "sys.argv = ['train.py', 'width=130']\n"
        "try:\n"
        f"    runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')\n"
        "except SystemExit as leave:\n"
        "    assert leave.code == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_unreadable_text_is_one_line(tmp_path):
    (tmp_path / "latin1.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("")
    for name, expected in {"latin1.txt": "UTF-8", "empty.txt": "empty", "none.txt": "none.txt", ".": "folder"}.items():
        done = run("train.py", "data=text_files", f"data.train={name}", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1, done.stderr
        assert expected in done.stderr
