"""The group ``study``: what it composes to, and what is refused, in one line and before anything heavy is imported."""

import re
import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from programs import ROOT, evaluate, train

from lipformer.config import choices_by_option, conf_dir, register, validate
from lipformer.config.renamed import refuse_old_spellings
from lipformer.config.store import SCHEMAS
from lipformer.errors import UsageError
from lipformer.options.study import ClaimsOptions, StudyOptions
from lipformer.studies.study import Study, open_study

STUDIES = sorted(file.stem for file in (conf_dir() / "study").glob("*.yaml"))
NEEDED = {"report": ("study.runs='runs/*'",)}


def composed(*overrides):
    register()
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        return compose("evaluate", list(overrides))


@pytest.mark.parametrize("choice", STUDIES)
def test_every_choice_is_a_study_with_options_of_its_own(choice):
    config = composed(f"study={choice}", "checkpoint=x")
    of_a_run = OmegaConf.get_type(config.study).of_a_run
    settings = validate(composed(f"study={choice}", *NEEDED.get(choice, ()), *(("checkpoint=x",) if of_a_run else ())))
    assert isinstance(settings.study, StudyOptions)
    assert settings.study.choice == choice
    assert isinstance(open_study(settings.study), Study)
    with pytest.raises(UsageError, match=r"^checkpoint(=| is not set)"):
        validate(composed(f"study={choice}", *NEEDED.get(choice, ()), *(() if of_a_run else ("checkpoint=x",))))


def test_plain_evaluation_is_the_default():
    assert validate(composed("checkpoint=x")).study.choice == "score"


def test_the_options_of_all_studies_are_known():
    having = choices_by_option("evaluate")
    assert having["study.p"] == ["study=certify"]
    assert having["study.entity"] == ["study=workspace"]
    assert not [option for option in having if not option.startswith(("study.", "sweep."))]


REFUSED = {
    ("p=2", "study=certify"): "p=2: it is written study.p=2 now",
    ("length=9",): "length=9: it is written study.length=9 now",
    ("study=report", "runs=runs/*"): "runs=runs/*: it is written study.runs=runs/* now",
    ("workspace.entity=us",): "workspace.entity=us: it is written study.entity=us now",
    ("+workspace.project=us",): "it is written study.project=us now",
    ("study=null",): "study=null: what it stood for is study=score now, and the default",
    ("study=certfy", "checkpoint=x"): "study=certfy: no such choice (did you mean certify?)",
    ("study=certify",): "checkpoint is not set: give checkpoint=<a run folder or a .ckpt file>",
    ("study=report", "study.runs=x", "checkpoint=y"): "checkpoint=y: it must be left out with study=report",
    ("study=workspace", "checkpoint=y"): "checkpoint=y: it must be left out with study=workspace",
    ("study=report",): "study.runs is not set: give study.runs=<value>",
    ("study=report", "study.runs=x", "generate.samples=2"): "generate.samples=2: it must be 0 without study=score",
    ("checkpoint=x", "study.p=2"): "unknown key study.p: it is an option of study=certify",
    ("checkpoint=x", "study=certify", "study.lenght=2"): "unknown key study.lenght (did you mean study.length",
    ("checkpoint=x", "attention=l2"): "unknown key attention: it is a key of train.py",
    ("checkpoint=x", "data=ptb"): "unknown key data (did you mean data.",
    ("checkpoint=x", "which=first"): "which=first: it must be one of best, last",
    ("checkpoint=x", "max_length=1"): "max_length=1: it must be training, a number of tokens of at least 2, or null",
    ("checkpoint=x", "generate.top_p=0"): "generate.top_p=0.0: it must be above 0 and at most 1, or null",
    ("checkpoint=x", "generate.samples=-1"): "generate.samples=-1: it must be at least 0",
    ("checkpoint=x", "+study.colour=2"): "unknown key study.colour",
}


@pytest.mark.parametrize(("arguments", "expected"), REFUSED.items(), ids=lambda a: " ".join(a)[:50])
def test_refusals(arguments, expected, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert evaluate(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert expected in err
    assert not list(tmp_path.rglob("*.*")), "a refused evaluation leaves no file"


def test_refusals_come_before_torch(tmp_path):
    code = (
        "import os, runpy, sys\n"
        "for arguments in ['p=2'], ['study=nope'], ['study=certify', 'study.p=3', 'checkpoint=x'], ['study.q=1']:\n"
        "    sys.argv = ['evaluate.py', *arguments]\n"
        "    try:\n"
        f"        runpy.run_path({str(ROOT / 'evaluate.py')!r}, run_name='__main__')\n"
        "    except SystemExit as leave:\n"
        "        assert leave.code == 2\n"
        "    assert not {'torch', 'numpy'} & set(sys.modules), arguments\n"
        "    os.environ.pop('HYDRA_FULL_ERROR', '')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 4


def test_a_renamed_key_of_train_is_answered_with_its_new_name(monkeypatch, capsys, tmp_path):
    key = "callbacks.stability.dear_every_n_steps"
    assert train(monkeypatch, f"{key}=7", f"hydra.run.dir={tmp_path / 'run'}") == 2
    line = f"error: {key}=7: it is written callbacks.stability.expensive_every_n_steps=7 now\n"
    assert capsys.readouterr().err == line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [["-m", "study=score,null"], ["++p=2"], ["~length=9"]])
def test_old_spellings_are_found_wherever_they_stand(arguments):
    with pytest.raises(UsageError):
        refuse_old_spellings("evaluate", arguments)


def test_what_only_looks_like_an_old_spelling():
    refuse_old_spellings(
        "evaluate", ["study.p=2", "--help", "max_length=9", "study=certify,score", "study.entity=null", "p"]
    )


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"_target_": "fractions.Fraction", "numerator": 2}, "no method run"),
        ({"_target_": "no_such_package.Study"}, "no_such_package"),
        ({"_target_": "lipformer.studies.certify.CertifyStudy", "q": 2}, "has no such option; it takes p, length"),
        ({"_target_": "lipformer.studies.report.ReportStudy"}, "study: "),
        ({"p": 2}, "it names no class"),
        ("certify", "it names no class"),
    ],
)
def test_what_is_no_study(node, words):
    with pytest.raises(UsageError, match=words) as error:
        open_study(node)
    assert "\n" not in str(error.value)


def test_make_figures_runs_every_study_that_tests_claims():
    claiming = {schema.choice for schema in SCHEMAS.values() if issubclass(schema, ClaimsOptions)}
    (listed,) = re.findall(r"^STUDIES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(listed.split(",")) == claiming
