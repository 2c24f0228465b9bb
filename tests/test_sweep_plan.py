"""The plan of a sweep, its jobs as they are read, how far they are, and the folders that they claim."""

import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from lipformer.errors import UsageError
from lipformer.program.sweep_progress import SweepProgress, duration
from lipformer.runs.folder import claim_job_folder, record_refusal
from lipformer.runs.lock import LOCK, take_lock
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.plain_files import read_overrides
from lipformer.runs.sweep import WAITING, SweepPlan, quoted, read_jobs, read_plan, resume_command, write_plan
from lipformer.training.resume import carry_metrics


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"program": 1, "arguments": [], "directory": "", "jobs": []}'])
def test_a_damaged_plan(content, tmp_path):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(UsageError, match="is damaged: it does not hold the plan of a sweep"):
        read_plan(tmp_path)


def test_jobs_are_found_by_their_overrides(tmp_path):
    """Folders may be named otherwise than by number, and a job that has not begun has none."""
    plan = SweepPlan("train", ["lr=1,2,3"], "/", [["lr=1"], ["lr=2"], ["lr=3"]])
    write_plan(tmp_path, plan)
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "overrides.yaml").write_text("- lr=3\n")
    Outcome(best=1.0).write(tmp_path / "large")
    jobs = read_jobs(tmp_path)
    assert [job.name for job in jobs] == ["0", "1", "large"]
    assert [job.outcome.status for job in jobs] == [WAITING, WAITING, "finished"]
    assert read_plan(tmp_path) == plan


@given(st.text(st.characters(exclude_characters="\0$", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1))
def test_any_path_is_quoted_for_hydra(text):
    assert OverridesParser.create().parse_override(f"key={quoted(text)}").value() == text


def test_progress_counts_what_has_ended_and_estimates_the_rest(tmp_path, monkeypatch):
    clock = iter([100.0, 700.0])
    monkeypatch.setattr("lipformer.program.sweep_progress.time.monotonic", lambda: next(clock))
    write_plan(tmp_path, SweepPlan("train", [], "/", [[f"lr={number}"] for number in range(6)]))
    for number, outcome in enumerate([Outcome(best=2.0), Outcome("diverged", 3), Outcome("running", None)]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "overrides.yaml").write_text(f"- lr={number}\n")
        if number == 0:
            outcome.write(tmp_path / "0")
            progress = SweepProgress(tmp_path, report=False)  # job 0 had ended before this process began
        outcome.write(tmp_path / str(number))
    progress._ended = 2
    told = progress.line(read_jobs(tmp_path))
    assert told == "sweep: 2 of 6 jobs have ended (1 finished, 1 diverged), about 40 min left"


@pytest.mark.parametrize(("seconds", "told"), [(5.4, "5 s"), (119, "2 min"), (3600, "60 min"), (9000, "2.5 h")])
def test_a_duration_has_one_unit(seconds, told):
    assert duration(seconds) == told


def test_the_report_of_a_sweep_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    """Each report takes 10 s: there is one after the first job, none for 200 s, and one at the end."""
    now, written = [0.0], []
    monkeypatch.setattr("lipformer.program.sweep_progress.time.monotonic", lambda: now[0])

    def write(folder):
        written.append(now[0])
        now[0] += 10
        return [folder, folder]

    monkeypatch.setattr("lipformer.report.sweep.write_sweep_report", write)
    write_plan(tmp_path, SweepPlan("train", [], "/", [[f"lr={number}"] for number in range(8)]))
    progress = SweepProgress(tmp_path, report=True)
    for number in range(7):
        now[0] = 100.0 * (number + 1)
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "overrides.yaml").write_text(f"- lr={number}\n")
        Outcome(best=1.0).write(tmp_path / str(number))
        progress.update()
        progress.update()
    progress.close()
    assert written == [100, 400, 700, 710]


def test_a_report_that_fails_does_not_end_the_sweep(tmp_path, monkeypatch, capsys):
    def fail(folder):
        raise ValueError("a broken file")

    monkeypatch.setattr("lipformer.report.sweep.write_sweep_report", fail)
    write_plan(tmp_path, SweepPlan("train", [], "/", [["lr=1"]]))
    progress = SweepProgress(tmp_path, report=True)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "overrides.yaml").write_text("- lr=1\n")
    Outcome(best=1.0).write(tmp_path / "0")
    progress.update()
    assert "the report of the sweep could not be written (ValueError: a broken file)" in capsys.readouterr().out


def test_what_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    job = tmp_path / "0"
    job.mkdir()
    (job / "overrides.yaml").write_text("- lr=1\n")
    (job / "config.yaml").write_text("lr: 1\n")
    Outcome(best=1.0).write(job)
    first = read_jobs(tmp_path)
    monkeypatch.setattr("lipformer.runs.sweep.read_config", None)
    monkeypatch.setattr("lipformer.runs.sweep.read_overrides", None)
    assert read_jobs(tmp_path) == first
    monkeypatch.undo()
    (job / "overrides.yaml").write_text("- lr=10\n")
    assert read_jobs(tmp_path)[0].overrides == ["lr=10"]


def test_jobs_that_the_plan_does_not_name_are_found_in_their_folders(tmp_path):
    """``hydra/sweeper=basic`` stores no plan of the jobs."""
    write_plan(tmp_path, SweepPlan("train", [], "/", []))
    assert read_jobs(tmp_path) == []
    (tmp_path / "0").mkdir()
    Outcome(best=1.0).write(tmp_path / "0")
    assert [job.outcome for job in read_jobs(tmp_path)] == [Outcome(best=1.0)]


def test_twins_are_told_apart(tmp_path):
    """Of two jobs with equal overrides, the one that has not begun is not shown as the other."""
    write_plan(tmp_path, SweepPlan("train", ["seed=1,1"], "/", [["seed=1"], ["seed=1"]]))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "overrides.yaml").write_text("- seed=1\n")
    Outcome(best=1.0).write(tmp_path / "1")
    assert [(job.name, job.outcome.status) for job in read_jobs(tmp_path)] == [("0", WAITING), ("1", "finished")]


@pytest.mark.parametrize("text", ["lr=1", "name=a\x85b\u2028c", "name='x, y'", "name=\N{GRINNING FACE}", "+a=${depth}"])
def test_a_job_knows_its_folder_again(text, tmp_path):
    claim_job_folder(tmp_path, ["depth=1", text])
    claim_job_folder(tmp_path, ["depth=1", text])
    with pytest.raises(UsageError, match="is not empty: give each job one of its own"):
        claim_job_folder(tmp_path, ["depth=1"])


def test_what_a_process_killed_in_its_first_moments_leaves_is_no_other_job(tmp_path):
    (tmp_path / ".overrides.yaml.123.part").write_text("- lr")
    (tmp_path / LOCK).write_text("")
    claim_job_folder(tmp_path, ["lr=1"])
    assert read_overrides(tmp_path / "overrides.yaml") == ["lr=1"]


@pytest.mark.parametrize(
    ("before", "locked", "after"),
    [
        (None, False, "failed"),
        (Outcome("failed", 1, "earlier"), False, "failed"),
        (None, True, None),
        (Outcome(best=1.0), False, "finished"),
        (Outcome("interrupted", 130), False, "interrupted"),
    ],
)
def test_a_refused_job_does_not_overwrite_what_another_process_did(before, locked, after, tmp_path):
    if before is not None:
        before.write(tmp_path)
    if locked:
        take_lock(tmp_path)
    record_refusal(tmp_path, Outcome("failed", 2, "refused"))
    outcome = read_outcome(tmp_path)
    assert (outcome and outcome.status) == after
    assert outcome is None or outcome.status != "failed" or outcome.reason == "refused"
    assert (tmp_path / LOCK).exists() == locked


@pytest.mark.parametrize("name", ["runs/rates", "a b", "sw5,(x)", "it's", "~/x=1"])
def test_the_command_that_goes_on_is_understood_by_shell_and_hydra(name):
    *words, typed = shlex.split(resume_command("train", Path(name)))
    assert words == ["python", "train.py", "-m"]
    assert OverridesParser.create().parse_override(typed).value() == name


def test_rows_that_cannot_be_read_are_not_replaced(tmp_path):
    (tmp_path / "rows").write_text("epoch,step,x\n0,0,1.5\n")
    (tmp_path / "metrics.csv").symlink_to(tmp_path / "rows")
    with pytest.raises(UsageError, match="its rows would be lost"):
        carry_metrics(tmp_path, tmp_path / "checkpoints" / "last.ckpt", 2, validated=True)
    assert (tmp_path / "rows").read_text() == "epoch,step,x\n0,0,1.5\n"
