"""The table and the page of a sweep: complete, honest and bounded, whatever state its jobs are in."""

import csv
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from html_pages import Page
from sweep_folders import KINDS, RATES, REFUSED, eighteen, grid, write_job, write_sweep

import lipformer.report.sweep.jobs as reading
from lipformer.report.sweep import write_sweep_report
from lipformer.report.sweep.page import MOST_CURVES
from lipformer.runs.outcome import Outcome
from lipformer.runs.sweep import SweepPlan, write_plan
from lipformer.studies.report import ReportStudy
from lipformer.tasks import LANGUAGE, TASKS, Measure, Task

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--$$x$$"


def report(sweep: Path, **options) -> Page:
    write_sweep_report(sweep, figures=False, **options)
    return Page((options.get("into", sweep) / "sweep.html").read_text(encoding="utf-8"))


def rows(sweep: Path) -> list[dict[str, str]]:
    with (sweep / "sweep.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def the_map(page: Page) -> dict:
    return page.data["sweep"]["maps"][0]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> tuple[Page, Path]:
    folder = eighteen(tmp_path_factory.mktemp("sweep") / "eighteen")
    return report(folder), folder


def test_csv_has_a_row_for_each_job_and_a_column_for_each_swept_key(sweep):
    _, folder = sweep
    found = rows(folder)
    assert list(found[0])[:8] == [
        "job",
        "status",
        "reason",
        "nats_per_char",
        "bits_per_char",
        "lr",
        "attention",
        "depth",
    ]
    assert {"steps", "tokens", "seconds", "tokens_per_second", "parameters", "entropy", "gradient"} <= set(found[0])
    assert [row["job"] for row in found] == [str(number) for number in range(18)]
    assert [(row["lr"], row["attention"], row["depth"]) for row in found] == [
        tuple(override.partition("=")[2] for override in job)
        for job in grid(lr=RATES, attention=tuple(KINDS), depth=("2", "6"))
    ]
    told = json.loads((folder / "7" / "metrics.json").read_text())
    assert float(found[7]["nats_per_char"]) == told["best/val/nats_per_char"]
    assert float(found[7]["bits_per_char"]) == pytest.approx(told["best/val/nats_per_char"] / 0.6931471805599453)
    assert (found[7]["steps"], found[7]["parameters"]) == ("1200", "304818")
    assert float(found[7]["certificate"]) == float(found[7]["certificate_logits"]) == 9.5**12
    assert found[12]["certificate"] == "inf"
    assert (found[5]["status"], found[5]["reason"], found[5]["nats_per_char"]) == ("failed", REFUSED, "")
    assert (found[17]["status"], found[17]["steps"]) == ("waiting", "")


def test_headline_counts_jobs_and_names_the_best_and_how_to_go_on(sweep):
    page, folder = sweep
    assert "15 of 18 jobs done" in page.words
    for told in ("12 finished", "2 diverged", "1 failed", "1 running", "2 waiting"):
        assert told in page.words
    best = min(
        (row for row in rows(folder) if row["status"] == "finished"), key=lambda row: float(row["nats_per_char"])
    )
    assert f"Best job: {best['job']}" in page.words
    assert f"python evaluate.py checkpoint={folder / best['job']} split=test" in page.words
    assert f"python train.py -m sweep.resume={folder}" in page.words
    assert f"python train.py -m sweep.resume={folder} sweep.retry_failed=true" in page.words


def test_page_is_well_formed_and_nothing_comes_from_outside(sweep):
    page, _ = sweep
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert max(ids.values()) == 1
    addresses = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert {address.removeprefix("#") for address in addresses if address.startswith("#")} <= set(ids)
    assert {"7/report.html", "sweep.csv"} <= set(addresses)
    assert "17/report.html" not in addresses
    assert not any({"src", "srcset", "action", "data"} & set(attributes) for _, attributes in page.elements)
    assert not any(re.match("(https?:)?//", address) for address in addresses)
    policy = next(attributes["content"] for tag, attributes in page.elements if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; script-src 'unsafe-inline'")
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_map_has_the_learning_rate_against_the_depth_for_each_attention(sweep):
    page, _ = sweep
    told, keys = the_map(page), page.data["sweep"]["keys"]
    assert [keys[told["keys"][place]]["name"] for place in told["axes"]] == ["lr", "depth", "attention"]
    assert keys[0]["values"] == list(RATES)
    states = Counter(setting["state"] for setting in told["settings"])
    assert states == {"scored": 12, "diverged": 2, "failed": 1, "so_far": 1, "waiting": 2}
    assert [setting["best"] for setting in told["settings"]] == [True] + 17 * [False]
    diverged = next(setting for setting in told["settings"] if setting["state"] == "diverged")
    assert diverged["value"] is None
    assert "blocks.0.attention: the gradient is nan" in dict(diverged["told"])["job 12"]
    assert "best before" in dict(diverged["told"])["job 12"]
    assert REFUSED in str(next(setting["told"] for setting in told["settings"] if setting["state"] == "failed"))


def test_curves_are_those_of_jobs_that_have_some_with_train_pale(sweep):
    page, _ = sweep
    (chart,) = page.data["charts"]
    assert {curve["run"] for curve in chart["curves"]} == set(range(18)) - {5, 16, 17}
    assert {(curve["what"], curve["pale"]) for curve in chart["curves"]} == {("train", True), ("valid", False)}
    assert page.data["runs"][3]["name"] == "job 3: lr=1e-4 attention=tied_l2 depth=6"


def test_a_sweep_of_seeds_has_mean_and_spread_and_loses_no_diverged_one(tmp_path):
    jobs = grid(lr=("1e-4", "1e-3"), seed=("0", "1", "2"))
    page = report(write_sweep(tmp_path / "sweep", jobs, {3: "diverged", 4: "diverged"}, telemetry=False))
    titles = ["lr", "n", "mean nats", "mean bits", "sd", "min", "max", "diverged", "to come"]
    cells = page.words.partition("their mean is of the jobs that finished alone. ")[2].split(" Jobs ")[0]
    found = [float(row["nats_per_char"]) for row in rows(tmp_path / "sweep") if row["lr"] == "1e-4"]
    mean = sum(found) / 3
    deviation = (sum((value - mean) ** 2 for value in found) / 2) ** 0.5
    told = f"1e-4 3 {mean:.4f} {mean / 0.6931471805599453:.4f} {deviation:.4f} {min(found):.4f} {max(found):.4f} 0 0"
    assert cells.startswith(" ".join(titles) + " " + told + " 1e-3 1 ")
    assert cells.strip().endswith("2 of 3 0")
    settings = the_map(page)["settings"]
    assert [setting["counts"] for setting in settings] == [{"finished": 3}, {"diverged": 2, "finished": 1}]
    assert dict(settings[1]["told"])["of"] == "mean of 1 of 3 seeds; 2 diverged"


def test_the_best_job_of_a_setting_that_diverged_with_another_seed_says_so(tmp_path):
    page = report(
        write_sweep(tmp_path / "sweep", grid(lr=("3e-4",), seed=("0", "1")), {0: "diverged"}, telemetry=False)
    )
    assert "mean of 1 of 2 seeds; 1 diverged" in page.words


def test_a_sweep_of_version_0_1_0_and_one_that_was_killed(tmp_path):
    jobs = grid(lr=RATES)
    folder = write_sweep(tmp_path / "sweep", jobs, plan=False, telemetry=False)
    (folder / "2" / "overrides.yaml").unlink()  # killed: it was written at the end
    (folder / "2" / "status.json").unlink()
    page = report(folder)
    assert [row["lr"] for row in rows(folder)][:2] == ["1e-4", "3e-4"]
    assert "sweep.resume" not in page.words
    assert page.data["sweep"]["keys"][0]["values"] == ["1e-4", "3e-4"]


@pytest.mark.parametrize("status", ["interrupted", "terminated", "killed", "pruned", "running"])
def test_a_job_on_its_way_is_shown_so_far(tmp_path, status):
    folder = write_sweep(tmp_path / "sweep", grid(lr=("1e-4", "3e-4")), {1: "waiting"}, telemetry=False)
    told = json.loads((folder / "0" / "status.json").read_text())
    (folder / "0" / "status.json").write_text(json.dumps(told | {"status": status}))
    page = report(folder)
    assert f"so far, {status}" in page.words
    assert the_map(page)["settings"][0]["state"] == "so_far"
    assert not the_map(page)["settings"][0]["best"]


def test_a_sweep_that_has_just_begun(tmp_path):
    write_plan(tmp_path, SweepPlan("train", [], ".", [["lr=1"], ["lr=2"]]))
    page = report(tmp_path)
    assert "0 of 2 jobs done" in page.words
    assert "No job has a score yet" in page.words
    assert page.data["charts"] == []
    assert [row["status"] for row in rows(tmp_path)] == ["waiting", "waiting"]


def test_one_job(tmp_path):
    page = report(write_sweep(tmp_path / "sweep", [["lr=1e-4", "depth=2"]], telemetry=False))
    assert "1 of 1 jobs done" in page.words
    assert page.data["sweep"]["maps"] == []
    assert rows(tmp_path / "sweep")[0]["lr"] == "1e-4"


def test_a_sweep_of_evaluations_is_a_table_alone(tmp_path):
    write_plan(
        tmp_path, SweepPlan("evaluate", [], ".", [["split=test", "study=score"], ["split=valid", "study=score"]])
    )
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        Outcome(best=1.5 + number).write(tmp_path / str(number))
    page = report(tmp_path)
    assert page.data["charts"] == []
    assert "Best job: 0" in page.words
    assert "python evaluate.py checkpoint" not in page.words
    assert [(row["split"], row["nats_per_char"]) for row in rows(tmp_path)] == [("test", "1.5"), ("valid", "2.5")]


def test_tasks_are_not_compared(tmp_path, monkeypatch):
    other = Task("guessing", Measure("errors", "errors", "errors", "errors per guess"), (), "guesses", False, "none")
    monkeypatch.setitem(TASKS, "guessing", other)
    folder = write_sweep(tmp_path / "sweep", grid(lr=("1e-4", "3e-4"), task=("language", "guessing")), telemetry=False)
    for number in (1, 3):
        with (folder / str(number) / "config.yaml").open("a") as stream:
            stream.write("task: {name: guessing}\n")
    page = report(folder)
    assert [told["unit"] for told in page.data["sweep"]["maps"]] == [LANGUAGE.objective.long, "errors per guess"]
    assert [(bool(row["nats_per_char"]), bool(row["errors"])) for row in rows(folder)] == [
        (True, False),
        (False, True),
    ] * 2
    assert page.words.count("Best job") == 2


def test_hostile_text_is_text(tmp_path):
    benign = report(write_sweep(tmp_path / "benign", grid(lr=RATES), {2: "diverged"}, telemetry=False))
    jobs = [["lr=1e-4", f"name={HOSTILE}"], ["lr=3e-4", f"name={HOSTILE}2"], ["lr=1e-3", f"{HOSTILE}=1"]]
    folder = write_sweep(tmp_path / HOSTILE.replace("/", ""), jobs, {2: "diverged"}, telemetry=False)
    told = json.loads((folder / "2" / "status.json").read_text())
    (folder / "2" / "status.json").write_text(json.dumps(told | {"reason": HOSTILE + "\x1b[31m"}))
    page = report(folder)
    assert page.count("img") == 0
    assert page.count("script") == benign.count("script")
    assert HOSTILE in page.words
    assert "\x1b" not in (folder / "sweep.csv").read_text()
    assert rows(folder)[0]["name"] == HOSTILE
    assert rows(folder)[2]["reason"].startswith(HOSTILE)


def test_an_odd_file_keeps_no_job_from_being_shown(tmp_path):
    folder = write_sweep(tmp_path / "sweep", grid(lr=RATES), telemetry=False)
    (folder / "0" / "metrics.json").write_text(
        '{"best/val/nats_per_char": [], "steps": {}, "seconds": "x", "tokens": NaN}'
    )
    (folder / "1" / "metrics.csv").write_bytes(b"\xff\0,step\n1,2,3")
    (folder / "1" / "certificate.json").write_text('{"trunk": {}, "logits": []}')
    (folder / "2" / "config.yaml").write_text("[")
    report(folder)
    assert [row["lr"] for row in rows(folder)] == list(RATES)


def test_what_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    folder = write_sweep(tmp_path / "sweep", grid(lr=RATES), {2: "waiting"}, telemetry=False)
    report(folder)
    read, read_record = [], reading.read_record
    monkeypatch.setattr(reading, "read_record", lambda path: read.append(path.name) or read_record(path))
    write_job(folder / "2", ["lr=1e-3"], telemetry=False)
    assert rows(folder)[2]["status"] == "waiting"
    report(folder)
    assert read == ["2"]
    assert rows(folder)[2]["status"] == "finished"


def many(folder: Path, count: int, steps: int) -> Path:
    """A sweep of many jobs that are copies of one, by links."""
    folder.mkdir()
    one = write_job(folder / "one", ["lr=1e-3"], steps=steps, every=10, telemetry=False)
    kinds = list(KINDS)
    jobs = [[f"lr={job / 7:.4g}", f"attention={kinds[job % 3]}", f"seed={job}"] for job in range(count)]
    for number in range(count):
        (folder / str(number)).mkdir()
        for name in ("config.yaml", "status.json", "metrics.json", "metrics.csv"):
            os.link(one / name, folder / str(number) / name)
    write_plan(folder, SweepPlan("train", [], ".", jobs))
    return folder


@pytest.mark.parametrize(
    ("count", "steps", "most"), [(110, 1500, 6_000), pytest.param(500, 20_000, 250_000, marks=pytest.mark.slow)]
)
def test_a_page_of_many_jobs_is_bounded(tmp_path, monkeypatch, count, steps, most):
    monkeypatch.setattr("lipformer.report.charts.ALL_POINTS", most)
    folder = many(tmp_path / "sweep", count, steps)
    page = report(folder)
    points = sum(len(curve["values"]) for chart in page.data["charts"] for curve in chart["curves"])
    assert points <= most
    assert len({curve["run"] for curve in page.data["charts"][0]["curves"]}) == MOST_CURVES
    assert f"The curves are those of the best {MOST_CURVES} jobs of {count}" in page.words
    assert (folder / "sweep.html").stat().st_size < 10_000_000
    assert len(rows(folder)) == count
    assert len(page.data["sweep"]["keys"][0]["placeNames"]) == 12


def test_files_are_replaced_whole(tmp_path, monkeypatch):
    folder = write_sweep(tmp_path / "sweep", grid(lr=RATES), telemetry=False)
    report(folder)
    before = {name: (folder / name).read_bytes() for name in ("sweep.csv", "sweep.html")}
    monkeypatch.setattr(os, "fsync", lambda number: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        report(folder)
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert not list(folder.glob(".*"))


def test_written_elsewhere_its_links_lead_to_the_jobs(tmp_path):
    folder = write_sweep(tmp_path / "sweep", grid(lr=RATES), telemetry=False)
    (tmp_path / "out").mkdir()
    page = report(folder, into=tmp_path / "out")
    assert "../sweep/1/report.html" in {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert not (folder / "sweep.html").exists()


def test_the_study_writes_the_report_of_one_sweep_and_says_where_those_of_several_are(tmp_path, caplog):
    caplog.set_level("INFO")
    for name in ("a", "b"):
        write_sweep(tmp_path / name, grid(lr=RATES), plan=False, telemetry=False)
    report(tmp_path / "b")
    before = sorted(path.name for path in (tmp_path / "a").iterdir())
    (tmp_path / "one").mkdir()
    ReportStudy(runs=str(tmp_path / "a")).run(None, tmp_path / "one")
    assert (tmp_path / "one" / "sweep.html").is_file()
    assert (tmp_path / "one" / "figures" / "sweep_map.png").is_file()
    assert (tmp_path / "one" / "figures" / "learning.png").is_file()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == before
    (tmp_path / "two").mkdir()
    ReportStudy(runs=str(tmp_path / "[ab]")).run(None, tmp_path / "two")
    assert not (tmp_path / "two" / "sweep.html").exists()
    assert f"report of the sweep: {tmp_path / 'b' / 'sweep.html'}" in caplog.text


def test_no_torch_is_needed(tmp_path):
    folder = write_sweep(tmp_path / "sweep", grid(lr=RATES), telemetry=False)
    program = f"""if True:
        import sys
        from pathlib import Path
        from lipformer.report.sweep import write_sweep_report
        assert "bokeh" not in sys.modules and "matplotlib" not in sys.modules
        assert len(write_sweep_report(Path({str(folder)!r}), figures=False)) == 2
        assert "torch" not in sys.modules and "matplotlib" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
