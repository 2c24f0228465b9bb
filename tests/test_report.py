"""The report is one file that is well-formed, complete, and safe whatever its runs hold."""

import dataclasses
import itertools
import json
import logging
import os
import re
from collections import Counter
from pathlib import Path

import bokeh
import numpy as np
import pytest
from html_pages import Page
from run_folders import LINES, two_runs, write_run

from lipformer.errors import LipformerError, UsageError
from lipformer.report import write_report
from lipformer.report.charts import charted, draw_charts
from lipformer.report.tables import runs_table
from lipformer.runs.quantities import CATALOGUE
from lipformer.runs.record import RunRecord, Series, read_record
from lipformer.studies.report import ReportStudy, printed
from lipformer.system.text import visible
from lipformer.tasks import LANGUAGE

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--"


def page_of(folders: list[Path], file: Path) -> Page:
    return Page(write_report([read_record(folder) for folder in folders], file).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Page, Path, list[Path]]:
    folder = tmp_path_factory.mktemp("pair")
    folders = two_runs(folder / "runs")
    return page_of(folders, folder / "report.html"), folder / "report.html", folders


def test_page_is_well_formed_with_headings_and_labels(pair):
    page, file, _ = pair
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert dict(page.elements)["html"]["lang"] == "en"
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.elements
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert max(ids.values()) == 1
    addresses = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert {address.removeprefix("#") for address in addresses if address.startswith("#")} <= set(ids)
    assert page.count("h1") == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_nothing_comes_from_outside(pair):
    page, file, _ = pair
    for _, attributes in page.elements:
        assert not {"src", "srcset", "action", "data", "poster", "xlink:href"} & set(attributes)
        assert not re.match("(https?:)?//", attributes.get("href") or "")
    assert page.count("link") == page.count("img") == page.count("iframe") == 0
    policy = next(attributes["content"] for tag, attributes in page.elements if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    style = re.search("<style>(.*?)</style>", file.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_bokeh_is_in_it_once_without_what_is_not_used(pair):
    _, file, _ = pair
    text = file.read_text(encoding="utf-8")
    scripts = Path(bokeh.__file__).parent / "server" / "static" / "js"
    assert text.count((scripts / "bokeh.min.js").read_text(encoding="utf-8")) == 1
    for part in ("gl", "widgets", "tables", "mathjax", "api"):
        assert (scripts / f"bokeh-{part}.min.js").read_text(encoding="utf-8")[-2000:] not in text


def test_page_shows_each_section(pair):
    page, _, _ = pair
    ids = {attributes.get("id") for _, attributes in page.elements}
    for key, quantity, chart in charted([LANGUAGE]):
        assert (chart.title or quantity.title) in page.words
        assert f"chart-{key}" in ids
    for quantity in CATALOGUE:
        if quantity.heat_map is not None:
            assert quantity.title in page.words
            assert {f"heat-{quantity.name}-{run}" for run in (0, 1)} <= ids
    for line in LINES:
        assert page.text.count(line) == 2
    assert "1 finished, 1 diverged" in page.words
    assert "step 1,849, blocks.0.attention: the gradient is nan" in page.words
    assert "dot_product, certified: inf at every step" in page.words
    assert "no theorem without a bounded input" in page.words
    assert "lipformer.modules.attention.DotProductAttention" in page.words
    assert "0 0.5 1" in page.words  # the scale of the entropies
    assert "no telemetry" not in page.words


def test_page_of_one_run_has_facts_links_and_no_table_of_runs(tmp_path):
    folder = write_run(tmp_path / "a run", steps=600)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "best.ckpt").touch()
    (folder / "figures").mkdir()
    for name in ("loss 1.png", os.fsdecode(b"\xff.png")):
        (folder / "figures" / name).touch()
    page = page_of([folder], folder / "report.html")
    assert page.count("select") == 0
    assert "time that telemetry took 13.7%" in page.words
    assert "best valid, nats per character" in page.words
    links = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert {"metrics.csv", "config.yaml", "checkpoints/best.ckpt", "figures/loss%201.png", "figures/%FF.png"} <= links
    assert f"python evaluate.py checkpoint='{folder}' split=test" in page.words


def environment(**changes):
    """An entry of environment.json."""
    plain = {"command": None, "seed": 0, "commits": {}, "threads": {}, "determinism": {}, "corpus": {}}
    made = {"started": "2026-01-02T03:04:05+00:00", "versions": {"torch": "2.6"}, "machine": {"cpu": "one"}}
    return {**plain, **made, **changes}


def test_the_page_shows_what_runs_ran_in(tmp_path):
    folders = two_runs(tmp_path / "runs", steps=400)
    assert "there is no environment.json" in page_of(folders[:1], tmp_path / "one.html").words
    (folders[0] / "environment.json").write_text(json.dumps([environment()]))
    later = environment(versions={"torch": "2.7"}, command=HOSTILE)
    (folders[1] / "environment.json").write_text(json.dumps([environment(), later]))
    page = page_of(folders, tmp_path / "two.html")
    assert "versions.torch 2.6 2.7" in page.words
    assert "machine.cpu one one" not in page.words
    assert "2 processes, the last one first" in page.words
    assert page.words.count("machine.cpu: one") == 3
    assert page.count("img") == 0
    assert "environment.json" in page_of(folders[:1], folders[0] / "report.html").words


def test_hostile_text_is_text(tmp_path):
    folder = two_runs(tmp_path / "runs", steps=400)[1]
    benign = page_of([folder], tmp_path / "benign.html")
    hostile = folder.rename(folder.parent / "2026-01-02_03-04-05_678901-ab")
    (hostile / "config.yaml").write_text(
        json.dumps({"name": HOSTILE, HOSTILE: HOSTILE, "callbacks": {"stability": {}}})
    )
    status = {"status": "diverged", "exit_code": 3, "reason": HOSTILE, "best": 1.0}
    (hostile / "status.json").write_text(json.dumps(status))
    samples = json.loads((hostile / "samples.json").read_text()) | {"sentences": [HOSTILE], "step": HOSTILE}
    (hostile / "samples.json").write_text(json.dumps(samples))
    certificate = json.loads((hostile / "certificate.json").read_text())
    certificate["rows"][0] |= {"name": HOSTILE, "kind": HOSTILE, "caveat": HOSTILE, "bound": HOSTILE}
    certificate |= {"p": HOSTILE, "length": HOSTILE}
    (hostile / "certificate.json").write_text(json.dumps(certificate))
    metrics = hostile / "metrics.csv"
    metrics.write_text(metrics.read_text().replace("stability/final_norm/", "stability/$$x$$</script>/"))

    page = page_of([hostile], tmp_path / "report.html")
    assert page.count("img") == 0
    assert page.count("script") == benign.count("script")
    assert page.data["runs"][0]["name"] == f"{HOSTILE} ab"
    assert page.text.count(HOSTILE) >= 5
    assert "$$" not in json.dumps(page.data["heatMaps"])
    several = page_of([hostile, write_run(tmp_path / "other", steps=400)], tmp_path / "several.html")
    assert several.count("img") == 0


def test_hostile_status_is_no_attribute_of_another(tmp_path):
    folder = write_run(tmp_path / "run", steps=400)
    (folder / "status.json").write_text(json.dumps({"status": '" onload="alert(1)', "reason": ""}))
    page = page_of([folder], tmp_path / "report.html")
    assert not any("onload" in attributes for _, attributes in page.elements)


@pytest.mark.parametrize("status", ["finished", "pruned", "diverged", "failed", "interrupted", "terminated", None])
def test_every_way_to_end_has_a_badge(tmp_path, status):
    page = page_of([write_run(tmp_path / "run", steps=400, status=status)], tmp_path / "report.html")
    assert ("span", {"class": f"badge {status or 'running'}"}) in page.elements
    assert ("it left no status.json" in page.words) == (status is None)


def test_run_without_telemetry_says_why(tmp_path):
    page = page_of([write_run(tmp_path / "run", steps=400, telemetry=False)], tmp_path / "report.html")
    assert "no telemetry: callbacks=none" in page.words
    assert [chart["key"] for chart in draw_charts([read_record(tmp_path / "run")], ["run"])] == [
        "train",
        "val",
        "gradient_norm",
        "lr",
    ]
    assert page.data["heatMaps"] == []
    assert "Samples" not in page.words
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().partition("callbacks:")[0])  # as of a version before there was telemetry
    assert "of an earlier version" in page_of([tmp_path / "run"], tmp_path / "report.html").words


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_run_that_has_just_begun(tmp_path, rows):
    folder = write_run(tmp_path / "run", status=None)
    metrics = folder / "metrics.csv"
    metrics.write_text("\n".join(metrics.read_text().split("\n")[: 1 + rows]) + "\n")
    for name in ("samples.json", "certificate.json"):
        (folder / name).unlink()
    page = page_of([folder], tmp_path / "report.html")
    assert ("metrics.csv has no whole row yet" in page.words) == (rows == 0)
    assert [len(curve["values"]) for chart in page.data["charts"] for curve in chart["curves"]][:1] == [rows] * bool(
        rows
    )


def test_empty_folder_has_a_page(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    assert "config.yaml cannot be read" in page_of([folder, folder], tmp_path / "report.html").words


def test_a_page_is_replaced_whole(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", steps=400)
    write_report([read_record(folder)], folder / "report.html")
    before = (folder / "report.html").read_text()
    monkeypatch.setattr(os, "fsync", lambda number: 1 / 0)  # all is written, none of it surely on the disk
    with pytest.raises(ZeroDivisionError):
        write_report([read_record(folder)], folder / "report.html")
    assert (folder / "report.html").read_text() == before
    assert not list(folder.glob(".*"))


def noisy(record: RunRecord, rows: int) -> RunRecord:
    """The run with every metric in each of many rows, as noise, which nothing makes shorter."""
    random = np.random.default_rng(0)
    steps = np.arange(float(rows))
    series = {name: Series(steps, 951 * steps, np.exp(random.normal(size=rows))) for name in record.series}
    return dataclasses.replace(record, series=series)


def test_a_page_of_two_noisy_runs_is_below_two_megabytes(tmp_path):
    records = [noisy(read_record(folder), 3000) for folder in two_runs(tmp_path / "runs", steps=1000)]
    file = write_report(records, tmp_path / "report.html")
    assert file.stat().st_size < 2_000_000
    words = Page(file.read_text(encoding="utf-8")).words
    assert "Long curves are thinned out" in words
    assert "A column stands for several steps and shows their smallest value" in words


@pytest.mark.slow  # quick: test_a_page_of_two_noisy_runs_is_below_two_megabytes
def test_a_page_of_a_hundred_noisy_runs_is_below_ten_megabytes(tmp_path):
    record = noisy(read_record(write_run(tmp_path / "run", steps=1000)), 1000)
    records = [dataclasses.replace(record, folder=tmp_path / f"{number}") for number in range(100)]
    assert write_report(records, tmp_path / "report.html").stat().st_size < 10_000_000


def test_study_writes_the_page_and_prints_a_row_for_each_run(tmp_path, capsys):
    two_runs(tmp_path / "runs", steps=600)
    (tmp_path / "runs" / "no run").mkdir()
    (tmp_path / "out").mkdir()
    ReportStudy(runs=f"{tmp_path}/runs/*").run(None, tmp_path / "out")
    assert "2 runs" in Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8")).words
    assert (tmp_path / "out" / "figures" / "learning.png").is_file()
    rows = [line for line in capsys.readouterr().out.splitlines() if "Attention" in line]
    assert ["dot_product" in row and "inf" in row for row in rows] == [True, False]
    with pytest.raises(UsageError, match="no run folder there"):
        ReportStudy(runs=f"{tmp_path}/nothing/*").run(None, tmp_path / "out")


OVERRIDES = {
    "environment": "- depth=2\n- ${oc.env:LIPFORMER_SECRET}\n",
    "missing": "- depth=2\n- ???\n",
    "number": "- depth=2\n- 3\n- [a]\n",
}


@pytest.mark.parametrize("kind", OVERRIDES)
def test_overrides_are_not_resolved(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("LIPFORMER_SECRET", "hunter2")
    folder = write_run(tmp_path / "run", steps=100, telemetry=False, status=None, every=10)
    (folder / "overrides.yaml").write_text(OVERRIDES[kind])
    page = page_of([folder], tmp_path / "report.html")
    assert "python train.py depth=2" in page.words
    assert "hunter2" not in page.words


@pytest.mark.parametrize("text", ["- [", "- !!python/object:os.system x", "- &a [*a]", "a: 1", "3", "\0"])
def test_broken_overrides_have_no_command(tmp_path, text):
    (tmp_path / "overrides.yaml").write_text(text)
    assert "python train.py" not in page_of([tmp_path], tmp_path / "report.html").words


HUGE = "1" + "0" * 400
ODD = {
    "status.json": '{"status": []}',
    "metrics.json": f'{{"best/val/nats_per_char": {HUGE}, "tokens_per_second": {HUGE}, "steps": []}}',
    "certificate.json": f'{{"rows": 5, "trunk": {HUGE}, "logits": {{}}, "p": []}}',
    "samples.json": '{"sentences": ["\\ud800", {}, null], "step": {}}',
    "metrics.csv": "epoch,step,train/tokens,train/nats_per_char,stability/blocks.²/gradient_norm,"
    "stability/blocks.0/output_min,stability/blocks.0.attention/output_min,stability/blocks.0.attention/output_max\n"
    "0,-inf,1,1,1,1,1,1\n0,1e300,1,1,1,1,1,1\n0,9,1e300,1.7976931348623157e308,-1.7976931348623157e308,-1e308,-1e308,1.7e308\n"
    '0,10,7,2.0,"1.0,2\n',
}  # fmt: skip


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_keeps_no_run_from_being_shown(tmp_path, name):
    folder = write_run(tmp_path / os.fsdecode(b"run\xff"), steps=100, every=10)
    (folder / name).write_text(ODD[name], encoding="utf-8")
    other = write_run(tmp_path / "other", steps=100, every=10)
    page = page_of([folder, other], folder / "report.html")
    assert [run["name"] for run in page.data["runs"]] == ["run?", "other"]


def test_text_that_acts_on_its_surroundings_is_spelled_out(tmp_path):
    hostile = "\u202eabc\x1b[31m\ud800"
    assert visible(hostile) == r"\u202eabc\x1b[31m\ud800"
    assert visible("línea <unk>\n\tα א") == "línea <unk>\n\tα א"
    folder = write_run(tmp_path / "run", steps=100, every=10)
    (folder / "status.json").write_text(json.dumps({"status": hostile, "reason": hostile}))
    (folder / "samples.json").write_text(json.dumps({"sentences": [hostile]}))
    text = write_report([read_record(folder)] * 2, tmp_path / "report.html").read_text(encoding="utf-8")
    page = text.partition("<script>")[0]
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert page.count(visible(hostile)) >= 6
    table = printed(runs_table([read_record(folder)], [hostile]))
    assert [next(iter(column.cells)).plain for column in table.columns[:2]] == [visible(hostile)] * 2


def test_study_leaves_out_what_cannot_be_read_or_shown(tmp_path, monkeypatch, caplog):
    for name in ("good", "unreadable", "unshowable"):
        write_run(tmp_path / "runs" / name, steps=100, every=10, telemetry=False)

    def read(folder):
        if folder.name == "unreadable":
            raise RecursionError("too deep")
        record = read_record(folder)
        return record if folder.name == "good" else dataclasses.replace(record, series={"train/lr": None})

    monkeypatch.setattr("lipformer.studies.report.read_record", read)
    with caplog.at_level(logging.WARNING):
        ReportStudy(runs=f"{tmp_path}/runs/*").run(None, tmp_path)
    left_out = [record.getMessage() for record in caplog.records]
    assert [Path(line.partition(":")[0]).name for line in left_out] == ["unreadable", "unshowable"]
    assert "too deep" in left_out[0]
    assert "good" in Page((tmp_path / "report.html").read_text(encoding="utf-8")).words
    with pytest.raises(LipformerError, match="no run is left"):
        ReportStudy(runs=f"{tmp_path}/runs/un*").run(None, tmp_path)


def test_study_does_without_figures_that_fail(tmp_path, monkeypatch, caplog):
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, steps=100, every=10, telemetry=False)
    monkeypatch.setattr("lipformer.figures.compare_runs", lambda records, folder: 1 / 0)
    with caplog.at_level(logging.WARNING):
        ReportStudy(runs=f"{tmp_path}/runs/*").run(None, tmp_path)
    assert (tmp_path / "report.html").is_file()
    assert "no figures: ZeroDivisionError" in caplog.text
