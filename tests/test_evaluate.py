import hashlib
import json
import math
import os
import re
import subprocess
import sys

import pytest
import torch
from programs import ROOT, write_text
from torch.nn import functional as F

from lipformer.assembly.checkpoint import load_run
from lipformer.config import EvaluateConfig
from lipformer.data.collate import collate
from lipformer.data.vocabulary import Vocabulary
from lipformer.errors import UsageError
from lipformer.models.generate import sample
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import DotProductAttention
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import FeedForward
from lipformer.modules.linear import dense
from lipformer.modules.normalisations import LayerNorm
from lipformer.modules.position import LearnedPosition
from lipformer.modules.residual import PreNorm
from lipformer.options.evaluate import GenerateOptions
from lipformer.options.study import ScoreOptions
from lipformer.program import cli
from lipformer.runs.outcome import read_outcome
from lipformer.studies.evaluation import measure
from lipformer.studies.loading import choose_device, open_split

CPU = torch.device("cpu")


@pytest.fixture
def evaluate(monkeypatch, tmp_path, tiny_run, capsys):
    """Run evaluate.py on the tiny run in this process; return exit code, figures, stdout and stderr."""

    def run(*arguments, checkpoint=tiny_run):
        folder = tmp_path / f"evaluation_{len(list(tmp_path.iterdir()))}"
        monkeypatch.setenv(cli.FULL_ERROR, "0")
        options = [f"checkpoint={checkpoint}", f"hydra.run.dir={folder}", "accelerator=cpu", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *options])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.evaluate()
        out, err = capsys.readouterr()
        metrics = folder / "metrics.json"
        figures = json.loads(metrics.read_text()) if metrics.exists() else None
        run.folder = folder
        return exit_.value.code, figures, out, err

    return run


def settings(**changes):
    options = {
        "checkpoint": "",
        "which": "best",
        "split": "test",
        "max_length": "training",
        "batch_tokens": 1000,
        "accelerator": "cpu",
        "threads": None,
        "study": ScoreOptions("lipformer.studies.score.ScoreStudy"),
        "data": {},
        "generate": GenerateOptions(temperature=1.0),
        "allow_targets": [],
    }
    return EvaluateConfig(**{**options, **changes})


def fingerprint(folder):
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- figures -----------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_whole_split(evaluate, tiny_run):
    code, figures, _, err = evaluate()
    assert (code, err) == (0, "")
    run = load_run(tiny_run)
    lines = (tiny_run.parent / "text.txt").read_text().splitlines()[-10:]  # the last twentieth of 200
    nats, tokens = 0.0, 0
    for line in lines:
        ids = run.vocabulary.encode(line)
        inputs, targets = torch.tensor([run.vocabulary.end_id, *ids]), torch.tensor([*ids, run.vocabulary.end_id])
        with torch.no_grad():
            nats += F.cross_entropy(run.model(inputs[None])[0].double(), targets, reduction="sum").item()
        tokens += len(targets)
    assert figures["test/tokens"] == tokens == sum(len(line) + 1 for line in lines)
    assert figures["test/nats_per_char"] == pytest.approx(nats / tokens, rel=1e-6)
    assert figures["test/bits_per_char"] == pytest.approx(figures["test/nats_per_char"] / math.log(2), rel=1e-15)
    assert read_outcome(evaluate.folder).status == "finished"


def test_valid_is_what_training_measured(evaluate, tiny_run):
    _, figures, _, _ = evaluate("split=valid")
    trained = json.loads((tiny_run / "metrics.json").read_text())
    assert figures["val/nats_per_char"] == pytest.approx(trained["best/val/nats_per_char"], rel=1e-6)
    assert not any(name.startswith("test/") for name in figures)


def test_the_table_is_complete_where_nobody_watches(evaluate, tiny_run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, figures, out, _ = evaluate()
    row = {what.strip(): value.strip() for what, value in re.findall(r"│ (.*?) │ (.*?) │", out)}
    assert row["run"] == "default"
    assert row["checkpoint"] == str(tiny_run / "checkpoints" / "best.ckpt")
    assert row["step"] == "3"
    assert row["attention"].startswith("DotProductAttention (fused=")
    assert row["parameters"] == f"{figures['parameters']:,}"
    assert row["protocol"] == figures["protocol"]
    assert row["tokens"] == f"{figures['test/tokens']:,}"
    assert row["softmax size"] == str(figures["softmax_size"])
    assert row["nats/char"] == f"{figures['test/nats_per_char']:.4f}"
    assert row["bits/char"] == f"{figures['test/bits_per_char']:.4f}"
    assert "…" not in out


def test_the_run_is_only_read(evaluate, tiny_run):
    before = fingerprint(tiny_run)
    evaluate()
    evaluate("generate.samples=2")
    assert fingerprint(tiny_run) == before


def test_batches_change_rounding_only():
    """In float64 to 1e-9, in float32 to 1e-6: one line a batch, several, all at once, in any order."""
    torch.manual_seed(0)
    vocabulary = Vocabulary(tuple("abcdefgh"))
    lines = [torch.randint(8, (int(n),)) for n in torch.randint(1, 40, (60,))]
    model = CharTransformer(
        len(vocabulary),
        width=16,
        heads=2,
        depth=2,
        context=40,
        attention=DotProductAttention,
        norm=LayerNorm,
        residual=PreNorm,
        feedforward=FeedForward,
        position=LearnedPosition,
        embedding=TokenEmbedding,
        linear=dense,
    ).eval()
    for parameter in model.parameters():
        parameter.data.normal_()  # far from uniform predictions
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        model.to(dtype)
        results = []
        for size, order in ((1, lines), (7, lines), (13, lines[::-1]), (60, lines)):
            batches = (collate(order[i : i + size], vocabulary.end_id) for i in range(0, 60, size))
            measured = measure(model, batches, device=CPU)
            assert measured.count == sum(len(line) + 1 for line in lines)
            results.append(measured.compute().item())
        assert results == pytest.approx([results[0]] * len(results), rel=tolerance, abs=0)


def test_batch_tokens_do_not_change_the_figures(evaluate):
    figures = [evaluate(f"batch_tokens={tokens}")[1]["test/nats_per_char"] for tokens in (1, 100, 100_000)]
    assert figures == pytest.approx([figures[0]] * 3, rel=1e-6)


def test_training_lines_are_not_read(evaluate, tiny_run, tmp_path):
    """The checkpoint's own vocabulary is used, so a missing training text is no matter."""
    test = tmp_path / "test.txt"
    test.write_text("the cat sat\nand a dog ran\n")
    code, figures, _, _ = evaluate(f"data.test={test}", f"data.train={tmp_path / 'nowhere.txt'}")
    assert code == 0
    assert figures["test/tokens"] == 12 + 14


# --- protocol and data options -----------------------------------------------------------------------------------


def test_max_length_is_part_of_the_protocols_name(evaluate, tiny_run):
    _, training, _, _ = evaluate()
    _, short, out, _ = evaluate("max_length=30")
    assert short["max_length"] == 30
    assert "30" in short["protocol"]
    assert short["protocol"] in out
    assert short["protocol"] != training["protocol"]
    assert short["test/tokens"] < training["test/tokens"]
    assert training["max_length"] == load_run(tiny_run).config["data"]["max_length"]


def test_lines_longer_than_the_model_reads(evaluate, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text("the cat sat\n\n" + "a" * 70 + "\n" + "a" * 63 + "\n")
    for limit in ("null", 100):
        code, figures, _, err = evaluate(f"data.test={text}", f"max_length={limit}")
        assert code == 2
        assert figures is None
        assert len(err.splitlines()) == 1
        for part in ("error: test, ", f"{text}, line 3", "71 tokens", "at most 64", "max_length=64"):
            assert part in err
    code, figures, _, _ = evaluate(f"data.test={text}", "max_length=64")
    assert code == 0
    assert figures["test/tokens"] == 12 + 64


def test_a_model_without_a_limit_reads_any_line(tiny_run, tmp_path):
    run = load_run(tiny_run)
    run.model.position = torch.nn.Identity()
    assert run.model.longest_input is None
    (tmp_path / "long.txt").write_text("a" * 500 + "\n")
    data = open_split(run, settings(max_length=None, data={"test": str(tmp_path / "long.txt")}))
    assert measure(run.model, data.test_dataloader(), device=CPU).count == 501


def test_no_line_is_short_enough(evaluate):
    code, _, _, err = evaluate("max_length=3")
    assert code == 2
    assert "max_length=3: no line of test" in err
    assert "raise it" in err


def test_unknown_characters(evaluate, tmp_path):
    text = write_text(tmp_path / "text.txt", lines=3)
    text.write_text(text.read_text() + "the cät\n")
    code, _, _, err = evaluate(f"data.test={text}")
    assert code == 2
    assert f"{text}, line 4, column 6: character 'ä'" in err
    assert "data.unknown=replace" in err
    code, figures, _, _ = evaluate(f"data.test={text}", "data.unknown=replace")
    assert code == 0
    assert "1 unknown character" in figures["protocol"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("data.dir=x", ["data.dir", "no such option", "train, valid, test, split"]),
        ("+data.colour=red", ["data.colour", "no such option"]),
        ("+data.max_length=9", ["data.max_length", "without data."]),
        ("data.colour=red", ["data.colour"]),
        ("data.test=nowhere.txt", ["data.test=nowhere.txt", "does not exist"]),
        ("max_length=long", ["max_length=long", "null"]),
        ("split=train", ["split=train", "valid, test"]),
        ("generate.samples=1 generate.prompt=Q", ["prompt='Q'", "'Q'", "does not occur"]),
        ("generate.samples=1 generate.max_chars=64", ["max_chars=64", "63"]),
    ],
)
def test_wrong_options(evaluate, option, words):
    code, figures, _, err = evaluate(*option.split())
    assert code == 2
    assert figures is None
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert all(word in err for word in words), err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(UsageError, match="accelerator=gpu: torch finds no CUDA device here; use accelerator=cpu"):
        choose_device("gpu")
    assert choose_device("auto") == choose_device("cpu") == CPU


def test_a_diverged_model_is_an_error(evaluate, tiny_run, tmp_path):
    checkpoint = torch.load(tiny_run / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["state_dict"]["model.unembedding.bias"][0] = math.nan
    torch.save(checkpoint, tmp_path / "diverged.ckpt")
    code, figures, _, err = evaluate(checkpoint=tmp_path / "diverged.ckpt")
    assert code == 2
    assert figures is None
    assert "predicts nan nats, its training diverged" in err


def test_a_folder_without_checkpoints(evaluate, tmp_path):
    code, _, _, err = evaluate(checkpoint=tmp_path)
    assert code == 2
    assert f"checkpoint={tmp_path}: the folder holds no checkpoints/best.ckpt" in err
    assert len(err.splitlines()) == 1


# --- sentences ---------------------------------------------------------------------------------------------------


def test_sentences_are_printed_and_kept(evaluate, tiny_run):
    options = "generate.samples=3 generate.prompt=the generate.seed=4 generate.max_chars=20"
    code, _, out, _ = evaluate(*options.split())
    assert code == 0
    kept = json.loads((evaluate.folder / "samples.json").read_text())
    run = load_run(tiny_run)
    expected = sample(run.model, run.vocabulary, samples=3, prompt="the", temperature=0.8, seed=4, max_chars=20)
    assert kept["sentences"] == expected
    assert kept["prompt"] == "the"
    assert kept["seed"] == 4
    for number, sentence in enumerate(expected, start=1):
        assert f"\n{number}  {sentence}\n" in out


def test_who_writes_does_not_score(evaluate, tmp_path):
    """And reads no corpus, so that one that is not there is no matter."""
    code, figures, out, err = evaluate("generate.samples=2", f"data.test={tmp_path / 'nowhere.txt'}")
    assert (code, err) == (0, "")
    assert figures is None
    assert "nats" not in out
    assert {file.name for file in evaluate.folder.iterdir()} == {
        "samples.json",
        "status.json",
        "evaluate.log",
        "environment.json",
    }
    assert read_outcome(evaluate.folder).best is None


def test_no_sentences_unless_asked_for(evaluate):
    evaluate()
    assert not (evaluate.folder / "samples.json").exists()


# --- the program -------------------------------------------------------------------------------------------------


def run_program(*arguments, folder):
    return subprocess.run(
        [sys.executable, str(ROOT / "evaluate.py"), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_evaluation_in_a_process_of_its_own(tiny_run, tmp_path):
    done = run_program(f"checkpoint={tiny_run}", "threads=1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (folder,) = (tmp_path / "runs" / "evaluate").iterdir()
    assert {p.name for p in folder.iterdir()} == {"metrics.json", "status.json", "evaluate.log", "environment.json"}


@pytest.mark.parametrize("kind", ["truncated", "code in the configuration"])
def test_bad_checkpoints_end_the_program_with_one_line(tiny_run, tmp_path, kind):
    whole = tiny_run / "checkpoints" / "best.ckpt"
    bad = tmp_path / "bad.ckpt"
    if kind == "truncated":
        bad.write_bytes(whole.read_bytes()[:5000])
        expected = "truncated"
    else:
        contents = torch.load(whole, weights_only=True)
        contents["lipformer"]["config"]["data"] = {"_target_": "os.system", "command": "touch executed"}
        torch.save(contents, bad)
        expected = "'os.system', which is outside the trusted packages"
    before = fingerprint(tmp_path)
    done = run_program(f"checkpoint={bad}", "hydra.run.dir=evaluation", folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert str(bad) in line
    assert expected in line
    assert not (tmp_path / "executed").exists()
    assert before.items() <= fingerprint(tmp_path).items()
    assert json.loads((tmp_path / "evaluation" / "status.json").read_text())["exit_code"] == 2
