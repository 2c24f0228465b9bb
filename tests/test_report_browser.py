"""The report and the page of claims in a real browser: they open from a file without a complaint, and can be read."""

import contextlib
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from browser_pages import CONTRAST, column, drawn, until
from PIL import Image
from run_folders import two_runs, write_run

from lipformer.report import write_report
from lipformer.runs.record import read_record
from lipformer.studies.claims import Claim, write_claims
from lipformer.studies.claims_page import write_claims_page

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'lipformer[dev]'")
HOSTILE = "<img src=x onerror=alert(1)>$$x$$"

VIEW = """(id) => {
    const box = document.getElementById(id);
    return [...Bokeh.index].find((view) => box.contains(view.el));
}"""
STATE = f"""(id) => {{
    const plot = ({VIEW})(id).model;
    return {{
        unit: plot.below[0].axis_label,
        range: [plot.x_range.start, plot.x_range.end],
        ink: plot.below[0].major_label_text_color,
        shown: plot.renderers.filter((r) => r.visible && r.tags.length).map((r) => r.tags[0]),
        colours: plot.renderers.filter((r) => r.tags.length).map((r) => r.glyph.line_color.value ?? r.glyph.line_color),
    }};
}}"""
PLACE = f"""([id, run, column, i]) => {{
    const view = ({VIEW})(id);
    const renderer = view.model.renderers.find((r) => r.tags[0] === run || r.name === run);
    const data = renderer.data_source.data;
    const box = view.el.getBoundingClientRect();
    const [x, y] = [data[column][i], data[column === "x" ? "y" : "values"][i]];
    return [box.x + view.frame.x_scale.compute(x), box.y + view.frame.y_scale.compute(y)];
}}"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    records = [read_record(path) for path in two_runs(folder / "runs")]
    return write_report(records, folder / "report.html")


def point(page, name: str, run: int | str, i: int, column: str = "tokens"):
    """Move the pointer onto the i-th value of a run's curve, or of a heat map's cells."""
    page.mouse.move(0, 0)
    until(page, "!document.querySelector('.bk-Tooltip')")
    for _ in range(20):  # until the page lies still: a chart drawn above may move it under the pointer
        x, y = page.evaluate(PLACE, [name, run, column, i])
        page.mouse.move(x - 1, y - 1)
        page.mouse.move(x, y)
        with contextlib.suppress(playwright.TimeoutError):
            page.locator(".bk-Tooltip").first.wait_for(timeout=2000)
            return
    pytest.fail(f"{name} tells nothing of run {run} at {x}, {y}")


def told(page, text: str):
    """Wait until a tooltip says this."""
    page.locator(".bk-Tooltip").get_by_text(text, exact=True).first.wait_for()


def vermilion(page, name: str) -> int:
    """Count the pixels of a plot that have the second run's colour."""
    image = Image.open(io.BytesIO(page.locator(f"#{name}").screenshot())).convert("RGB")
    return int((np.abs(np.asarray(image, int) - (0xD5, 0x5E, 0x00)).max(axis=2) < 12).sum())


def test_opens_and_draws_every_plot_without_a_complaint(visit, pair):
    page = visit(pair)
    names = page.locator(".plot").evaluate_all("(boxes) => boxes.map((box) => box.id)")
    assert len(names) == 9 + 2 * 5
    drawn(page, *names)
    sizes = page.locator(".plot").evaluate_all("(boxes) => boxes.map((box) => box.getBoundingClientRect().height)")
    assert min(sizes) > 100
    assert vermilion(page, "chart-train") > 100


def test_hovering_tells_of_curves_and_cells(visit, pair):
    page = visit(pair)
    drawn(page, "chart-train")
    point(page, "chart-train", 0, 20)
    told(page, "tied_l2")
    told(page, "1,049")
    point(page, "chart-train", 1, 20)
    told(page, "dot_product")
    drawn(page, "heat-entropy_share-0")
    point(page, "heat-entropy_share-0", "cells", 70, column="x")  # of 60 cells a layer
    told(page, "blocks.1.attention.branch")
    told(page, "549")
    drawn(page, "heat-entropy_share-1")
    point(page, "heat-entropy_share-1", "marked", 0, column="x")
    told(page, "nan")


def test_legend_hides_a_run_everywhere(visit, pair):
    page = visit(pair)
    drawn(page, "chart-train")
    button = page.get_by_role("button", name="dot_product")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert set(page.evaluate(STATE, "chart-train")["shown"]) == {0}
    page.mouse.move(0, 0)
    drawn(page, "chart-train")
    assert vermilion(page, "chart-train") == 0
    assert not page.locator("#heat-output_range-1").is_visible()
    assert page.locator("#heat-output_range-0").is_visible()
    assert column(page, "run") == ["tied_l2", "dot_product"]  # the table keeps it
    drawn(page, "chart-branch_gain")  # what is drawn later knows it too
    assert set(page.evaluate(STATE, "chart-branch_gain")["shown"]) == {0}
    button.click()
    assert set(page.evaluate(STATE, "chart-train")["shown"]) == {0, 1}
    assert page.locator("#heat-output_range-1").is_visible()


def test_x_axis_counts_tokens_or_steps(visit, pair):
    page = visit(pair)
    drawn(page, "chart-train", "heat-entropy_share-0")
    for name in ("chart-train", "heat-entropy_share-0"):
        state = page.evaluate(STATE, name)
        assert (state["unit"], state["range"]) == ("tokens", [0, 2_850_000])
    page.get_by_role("group", name="x axis").get_by_role("button", name="steps").click()
    for name in ("chart-train", "heat-entropy_share-0"):
        state = page.evaluate(STATE, name)
        assert (state["unit"], state["range"]) == ("steps", [0, 2999])
    drawn(page, "chart-train")
    point(page, "chart-train", 0, 20, column="steps")
    told(page, "1,049")


def test_zoom_is_shared(visit, pair):
    page = visit(pair)
    drawn(page, "chart-train", "chart-val")
    page.locator("#chart-train").scroll_into_view_if_needed()
    (x0, y0), (x1, y1) = (page.evaluate(PLACE, ["chart-train", 0, "tokens", i]) for i in (10, 30))
    page.mouse.move(x0, y0 - 20)
    page.mouse.down()
    page.mouse.move(x1, y1 + 20, steps=5)
    page.mouse.up()
    until(page, "(id) => (" + STATE + ")(id).range[0] > 0", "chart-train")
    zoomed = page.evaluate(STATE, "chart-train")["range"]
    assert zoomed == pytest.approx([950 * 550, 950 * 1550], rel=0.05)
    assert page.evaluate(STATE, "chart-val")["range"] == zoomed
    drawn(page, "heat-gradient_norm-0")
    assert page.evaluate(STATE, "heat-gradient_norm-0")["range"] == zoomed


def test_colours_follow_the_mode_and_the_button(visit, pair):
    page = visit(pair)
    drawn(page, "chart-train")
    ground = "getComputedStyle(document.body).backgroundColor"
    light, state = page.evaluate(ground), page.evaluate(STATE, "chart-train")
    assert light == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    dark, after = page.evaluate(ground), page.evaluate(STATE, "chart-train")
    assert dark == "rgb(20, 23, 27)"
    assert after["ink"] != state["ink"]
    assert not set(after["colours"]) & set(state["colours"])
    button = page.get_by_role("button", name="Dark")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert page.evaluate(ground) == light
    assert page.evaluate(STATE, "chart-train") == state
    assert button.get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(visit, pair, scheme):
    page = visit(pair, color_scheme=scheme)
    for kind in (
        "p.muted",
        "nav a",
        ".badge.finished",
        ".badge.diverged",
        ".bad",
        "thead th",
        ".switch [aria-pressed=true]",
    ):
        assert page.locator(kind).first.evaluate(CONTRAST) >= 4.5, kind


def test_fits_a_phone(visit, pair):
    page = visit(pair, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    drawn(page, *page.locator(".plot").evaluate_all("(boxes) => boxes.map((box) => box.id)"))
    page.evaluate("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate("document.documentElement.clientWidth") == 360
    widths = page.locator(".plot").evaluate_all("(boxes) => boxes.map((box) => box.getBoundingClientRect().width)")
    assert 300 < min(widths) <= max(widths) <= 360
    assert page.locator("#chart-train .bk-events").evaluate("(layer) => layer.style.touchAction").startswith("pan-y")
    page.locator("#chart-train").scroll_into_view_if_needed()
    page.touchscreen.tap(*page.evaluate(PLACE, ["chart-train", 0, "tokens", 30]))
    told(page, "tied_l2")


SPEEDS = {"run 1": 40.0, "run 2": 5.0, "run 10": 1e9, "run 3": math.inf, "run 4": math.nan, "run 5": None}


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """Runs whose tokens per second are numbers in every form; one has diverged."""
    folder = tmp_path_factory.mktemp("many")
    for number, (name, speed) in enumerate(SPEEDS.items()):
        status = "diverged" if name == "run 3" else "finished"
        run = write_run(folder / "runs" / name, steps=400, telemetry=False, lr=0.001 * (1 + number), status=status)
        metrics = json.loads((run / "metrics.json").read_text())
        (run / "metrics.json").write_text(json.dumps(metrics | {"tokens_per_second": speed}))
    return write_report([read_record(folder / "runs" / name) for name in SPEEDS], folder / "report.html")


def test_table_sorts_numbers_as_such_by_mouse_and_keyboard(visit, many):
    page = visit(many)
    header = page.get_by_role("columnheader", name="tokens/s")
    button = header.get_by_role("button")
    button.click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert column(page, "run") == ["run 2", "run 1", "run 10", "run 3", "run 4", "run 5"]
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert column(page, "run") == ["run 3", "run 10", "run 1", "run 2", "run 4", "run 5"]
    assert column(page, "tokens/s") == ["inf", "1,000,000,000", "40", "5", "nan", "–"]
    page.get_by_role("columnheader", name="run", exact=True).get_by_role("button").press("Enter")
    assert header.get_attribute("aria-sort") == "none"
    assert column(page, "run") == ["run 1", "run 2", "run 3", "run 4", "run 5", "run 10"]


def test_filters_go_for_the_whole_page(visit, many):
    page = visit(many)
    drawn(page, "chart-train")
    page.get_by_label("Filter").fill("run 0.003")
    assert column(page, "run") == ["run 10"]
    assert page.locator("#count").inner_text() == "1 of 6 runs"
    assert set(page.evaluate(STATE, "chart-train")["shown"]) == {2}
    assert page.locator("[data-legend]:visible").all_inner_texts() == ["run 10"]
    page.get_by_label("Filter").fill("")
    page.get_by_label("Status").select_option("diverged")
    assert column(page, "run") == ["run 3"]
    page.get_by_label("Status").select_option("")
    assert len(column(page, "run")) == 6
    assert set(page.evaluate(STATE, "chart-train")["shown"]) == set(range(6))


def test_names_are_no_markup_in_tooltips(visit, tmp_path):
    folder = write_run(tmp_path / HOSTILE, steps=1000)
    page = visit(write_report([read_record(folder)], tmp_path / "report.html"))
    drawn(page, "chart-train")
    point(page, "chart-train", 0, 10)
    told(page, HOSTILE)
    assert page.locator("img").count() == 0  # in tooltips neither


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_claims_open_without_a_complaint_and_can_be_read(visit, tmp_path, scheme):
    """Two studies, with a figure and names that are no markup; the figure is in the page."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (600, 200), "white").save(tmp_path / name / "figure.png")
        write_claims(
            tmp_path / name, [Claim(HOSTILE, "Kim", 1.0, 1.0), Claim("b", "Kim", 2.0, 1.0), Claim("c", "", 3.0)], [0]
        )
    page = visit(
        write_claims_page([(HOSTILE, tmp_path / "one"), ("two", tmp_path / "two")], tmp_path / "claims.html"),
        color_scheme=scheme,
    )
    widths = page.locator("figure img").evaluate_all("(images) => images.map((image) => image.naturalWidth)")
    assert widths == [600, 600]
    assert page.locator("h2").all_inner_texts() == [HOSTILE, "two"]
    assert page.locator(".badge").all_inner_texts() == ["holds", "fails", "measured"] * 2
    for text in page.locator(".badge, h1, h2, td, th, .muted, nav a, code").all():
        assert text.evaluate(CONTRAST) >= 4.5, text.inner_text()
    page.set_viewport_size({"width": 375, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") == 375
