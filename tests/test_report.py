"""The report is one file that is well-formed, complete, and safe whatever its runs hold."""

import dataclasses
import itertools
import json
import logging
import math
import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import bokeh
import numpy as np
import pytest
from run_folders import LINES, residuals, two_runs, write_run

from lipformer.errors import LipformerError, UsageError
from lipformer.report import write_report
from lipformer.report.charts import charted, draw_charts, plain
from lipformer.report.heat_maps import draw_heat_maps
from lipformer.report.tables import Cell, certificate_table, facts, fixed, runs_table, short, whole
from lipformer.report.text import visible
from lipformer.report.thinning import bucket_columns, thin
from lipformer.runs.quantities import CATALOGUE
from lipformer.runs.record import RunRecord, Series, read_record
from lipformer.studies.report import ReportStudy, printed
from lipformer.tasks import LANGUAGE

VOID = {"meta", "link", "img", "br", "hr", "input", "line", "wbr"}
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--"


class Page(HTMLParser):
    """A page taken apart: its elements, and whether each that was opened was closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        assert len({name for name, _ in attributes}) == len(attributes), f"<{tag}> has an attribute twice"
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        (self.scripts if self.open[-1:] == ["script"] else self.text).append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    @property
    def data(self) -> dict:
        return json.loads(next(script for script in self.scripts if script.startswith("{")))

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.elements)


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


@pytest.mark.parametrize("status", ["finished", "diverged", "failed", "interrupted", "terminated", None])
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


def test_curves_hold_the_values_at_their_steps(pair):
    _, _, folders = pair
    records = [read_record(folder) for folder in folders]
    charts = {chart["key"]: chart for chart in draw_charts(records, ["a", "b"])}
    for record, curve in zip(records, charts["train"]["curves"], strict=True):
        series = record.series["train/nats_per_char"]
        np.testing.assert_array_equal(np.cumsum(curve["steps"]), series.steps)
        np.testing.assert_array_equal(np.cumsum(curve["tokens"]), series.tokens)
        np.testing.assert_allclose(np.array(curve["values"], float), series.values, rtol=1e-4)
    assert charts["train"]["curves"][1]["values"][-1] == "nan"
    gains = np.stack([records[0].series[f"stability/{layer}/branch_gain"].values for layer in residuals(4)])
    pale, curve = (next(c for c in charts["branch_gain"]["curves"] if c["pale"] == p) for p in (True, False))
    np.testing.assert_allclose(curve["values"], gains.min(0), rtol=1e-4)
    np.testing.assert_allclose(pale["values"], gains.max(0), rtol=1e-4)
    scales = {key: chart["log"] for key, chart in charts.items()}
    assert scales["gradient_norm"]
    assert scales["local_lipschitz"]
    assert not scales["val"]
    assert not scales["lr"]


def test_heat_maps_share_a_scale_and_mark_what_is_not_finite(pair):
    _, _, folders = pair
    records = [read_record(folder) for folder in folders]
    maps = {heat_map["key"]: heat_map for heat_map in draw_heat_maps(records)}
    assert maps["entropy_share"]["scale"] == [0, 1]
    ranges = maps["output_range"]
    assert ranges["runs"][0]["layers"] == [*residuals(4), "trunk"]
    finite = [v for run in ranges["runs"] for row in run["values"] for v in row if isinstance(v, float)]
    assert ranges["scale"] == pytest.approx([min(finite), max(finite)], rel=1e-3)
    series = [records[0].series[f"stability/blocks.1.attention/output_{end}"].values for end in ("max", "min")]
    np.testing.assert_allclose(ranges["runs"][0]["values"][2], series[0] - series[1], rtol=1e-3)
    assert [row[-1] for row in ranges["runs"][1]["values"]] == ["nan"] * 9
    assert ranges["marked"] == {"nan": True, "inf": False}
    local = maps["local_lipschitz"]
    assert local["log"]
    assert "blocks.0.attention.norm" not in local["runs"][0]["layers"]
    assert local["runs"][0]["steps"] == [499, 999, 1499, 1999, 2499, 2999]


def test_thinning_keeps_the_extremes_the_ends_and_what_is_not_finite():
    values = np.random.default_rng(0).normal(size=10_000)
    values[[1234, 7000]] = 50, -50
    values[5000], values[9000:9100] = np.nan, np.inf
    kept = thin(values, 1000)
    assert 500 < len(kept) <= 1000
    assert (np.diff(kept) > 0).all()
    assert {0, 1234, 7000, 5000, 9999} <= set(kept)
    assert np.isinf(values[kept]).any()
    np.testing.assert_array_equal(thin(values[:1000], 1000), np.arange(1000))


def test_merged_columns_keep_the_extremes_and_what_is_not_finite():
    values = np.array([[1.0, 5, 2, 0, 3, 4], [1, np.inf, 2, np.nan, 3, np.nan], [np.nan] * 6])
    stands = np.array([[True] * 6, [True] * 5 + [False], [False] * 6])
    merged, standing, columns = bucket_columns(values, stands, 3, keep="max")
    np.testing.assert_array_equal(merged, [[5, 2, 4], [np.inf, np.nan, 3], [np.nan] * 3])
    np.testing.assert_array_equal(standing, [[True] * 3, [True] * 3, [False] * 3])
    np.testing.assert_array_equal(columns, [1, 3, 5])
    assert bucket_columns(values, stands, 3, keep="min")[0][0].tolist() == [1, 0, 3]


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


@pytest.mark.parametrize(
    ("value", "text", "key"),
    [
        (1.23456, "1.235", "1.23456"),
        (0, "0", "0.0"),
        (3e-5, "3.00e-5", "3e-05"),
        (2.5e17, "2.50e17", "2.5e+17"),
        (-0.5, "-0.5", "-0.5"),
        (math.inf, "inf", "Infinity"),
        (-math.inf, "-inf", "-Infinity"),
        (math.nan, "nan", "NaN"),
        (None, "–", ""),
        ("text", "–", ""),
        (True, "–", ""),
    ],
)
def test_numbers_are_shown_short_and_sorted_exactly(value, text, key):
    assert (short(value).text, short(value).key) == (text, key)


def test_whole_and_fixed_numbers():
    assert [whole(v).text for v in (1234567, 9069.4, math.inf, None)] == ["1,234,567", "9,069", "inf", "–"]
    assert [fixed(v).text for v in (1.41391, 1e9, math.nan, None)] == ["1.4139", "1.00e9", "nan", "–"]


def test_table_of_runs(pair):
    _, _, folders = pair
    columns = {column.title: column for column in runs_table([read_record(folder) for folder in folders], ["a", "b"])}
    assert list(columns) == [
        "run", "status", "nats", "bits", "entropy", "certificate", "gradient", "steps", "tokens/s", "lr", "attention",
    ]  # fmt: skip
    assert [cell.text for cell in columns["attention"].cells] == ["TiedL2Attention", "DotProductAttention"]
    assert columns["lr"].numeric
    assert columns["certificate"].numeric
    assert not columns["attention"].numeric
    assert columns["certificate"].cells[1] == Cell("inf", math.inf)
    nats = columns["nats"].cells[0].number
    assert columns["bits"].cells[0].number == pytest.approx(nats / math.log(2))
    assert 0 < columns["entropy"].cells[1].number < 0.1  # the last before it became nan
    assert 30 < columns["gradient"].cells[1].number < 50


def test_certificate_comes_from_its_file_or_else_from_the_metrics(pair):
    _, _, folders = pair
    record = read_record(folders[0])
    table = certificate_table(record, 0)
    assert table.of == "in the mixed norm, up to 288 tokens"
    assert table.rows[1] == ("branch", "TiedL2Attention", Cell("3.25", 3.25), "", True)
    logged = certificate_table(dataclasses.replace(record, certificate=None), 0)
    assert logged.of == "in the mixed norm, as logged at step 2,999"
    assert [row[0] for row in logged.rows] == residuals(4)
    assert [(name, cell.number) for name, cell in logged.totals] == [("trunk", pytest.approx(6e5, rel=1e-3))]
    assert certificate_table(dataclasses.replace(record, certificate=None, series={}), 0) is None


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


def test_facts_leave_out_what_is_not_known(tmp_path):
    assert facts(read_record(tmp_path)) == []
    record = read_record(write_run(tmp_path / "run", status=None, steps=900))
    told = dict(facts(record))
    assert told["steps"] == "900"
    assert told["tokens"] == "855,000"
    assert "parameters" not in told


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


def test_the_largest_number_is_shown_as_infinite():
    assert plain(1.7976931348623157e308) == "inf"
    assert plain(1.23456789) == 1.2346
    assert whole(1e300).text == "1.00e300"


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
