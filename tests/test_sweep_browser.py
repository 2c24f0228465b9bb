"""The page of a sweep in a real browser: its map, its legend and its table answer to pointer, finger and keys."""

from pathlib import Path

import pytest
from browser_pages import CONTRAST, column, drawn, until
from sweep_folders import RATES, eighteen, grid, write_sweep

from lipformer.report.sweep import write_sweep_report

SHOWN = """() => {
    const box = document.querySelector('.plot');
    const plot = [...Bokeh.index].find((view) => box.contains(view.el)).model;
    const lines = plot.renderers.filter((r) => r.visible && r.glyph.type === 'Line' && r.glyph.line_alpha.value !== 0);
    return lines.map((r) => [r.tags[0], r.tags[1], r.glyph.line_color.value ?? r.glyph.line_color,
                             (r.glyph.line_dash.value ?? r.glyph.line_dash).length]);
}"""
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    folder = eighteen(tmp_path_factory.mktemp("sweep") / "eighteen")
    return write_sweep_report(folder, figures=False)[1]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> Path:
    jobs = grid(lr=RATES, attention=("dot_product", "tied_l2"), seed=("0", "1"))
    folder = write_sweep(tmp_path_factory.mktemp("seeds") / "s", jobs, {4: "diverged", 8: "diverged", 9: "diverged"})
    return write_sweep_report(folder, figures=False)[1]


def cells(page) -> list[str]:
    return page.locator("#map-panels td").all_inner_texts()


def options(page, name: str) -> list[str]:
    return page.locator(f"#{name} option").all_inner_texts()


def test_map_marks_what_happened_and_tells_the_reason(visit, sweep):
    page = visit(sweep)
    assert page.locator("#map-panels figcaption").all_inner_texts() == [
        "attention dot_product",
        "attention tied_l2",
        "attention contractive_l2",
    ]
    found = cells(page)
    assert len(found) == 18
    assert (found.count("✕ diverged"), found.count("! failed"), found.count("waiting")) == (2, 1, 2)
    assert len([text for text in found if text.startswith("★")]) == 1
    assert len([text for text in found if text.endswith("…")]) == 1
    tip = page.get_by_role("tooltip")
    assert tip.is_hidden()
    page.locator(".map .diverged").first.hover()
    assert "blocks.0.attention: the gradient is nan" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.locator(".map .failed").focus()
    assert "width=15 is not divisible by heads=2" in tip.inner_text()
    page.locator(".map .waiting").first.focus()
    assert "width=15" not in tip.inner_text()


def test_the_reader_chooses_the_axes(visit, sweep):
    page = visit(sweep)
    assert options(page, "map-x") == ["lr", "attention", "depth"]
    assert options(page, "map-y") == ["best valid", "attention", "depth"]
    page.locator("#map-y").select_option("attention")
    assert page.locator("#map-panels figure").count() == 1
    assert len(cells(page)) == 9
    assert "best setting over depth" in page.locator("#map-about").inner_text()
    page.locator(".map .diverged").first.hover()
    assert "the best of 2 settings here; 2 diverged" in page.get_by_role("tooltip").inner_text()
    page.locator("#map-panel").select_option("depth")
    assert page.locator("#map-panels figcaption").all_inner_texts() == ["depth 2", "depth 6"]
    page.locator("#map-x").select_option("depth")
    assert len(cells(page)) == 6
    page.locator("#map-y").select_option("best valid")
    assert page.locator("#map-panels svg[role=group]").count() == 1


def test_lines_show_the_spread_and_what_diverged(visit, seeds):
    page = visit(seeds)
    dots = page.locator(".lines g[tabindex]")
    assert dots.count() == 6
    assert page.locator(".lines .cross").count() == 2
    assert page.locator(".lines .star").count() == 1
    assert page.locator(".lines .seed").count() == 2 * 4
    told = [dots.nth(i).get_attribute("aria-label") for i in range(6)]
    assert sum("mean of 1 of 2 seeds; 1 diverged" in text for text in told) == 1
    assert sum("2 seeds; 2 diverged" in text for text in told) == 1
    dots.first.focus()
    assert "mean of 2 seeds" in page.get_by_role("tooltip").inner_text()
    assert page.locator(".spread td.bad").all_inner_texts() == ["1 of 2", "2 of 2"]


def test_colours_and_dashes_follow_the_keys_that_the_reader_chooses(visit, sweep):
    page = visit(sweep)
    drawn(page, "chart-loss_0")
    found = page.evaluate(SHOWN)
    assert len(found) == 15, "curves on train are hidden at first where there are many"
    assert {pale for _, pale, _, _ in found} == {False}
    colours = {run: colour for run, _, colour, _ in found}
    assert colours[0] == colours[1] != colours[2], "by attention"
    assert {run: dash for run, _, _, dash in found}[0] == 0 != {run: dash for run, _, _, dash in found}[6], "by lr"
    page.locator("#colour-key").select_option("depth")
    page.locator("#dash-key").select_option("")
    found = page.evaluate(SHOWN)
    assert len({colour for _, _, colour, _ in found}) == 2
    assert {dash for _, _, _, dash in found} == {0}
    page.get_by_role("button", name="depth 6").click()
    assert {run for run, *_ in page.evaluate(SHOWN)} == {0, 2, 4, 6, 8, 10, 12, 14}
    page.get_by_role("button", name="diverged", exact=True).click()
    assert {run for run, *_ in page.evaluate(SHOWN)} == {0, 2, 4, 6, 8, 10, 14}
    page.get_by_role("button", name="train", exact=True).click()
    assert len(page.evaluate(SHOWN)) == 14
    page.get_by_label("Filter").fill("tied_l2")
    assert {run for run, *_ in page.evaluate(SHOWN)} == {2, 8, 14}


def test_table_sorts_and_says_how_many_jobs(visit, sweep):
    page = visit(sweep)
    assert page.locator("#count").inner_text() == "18 of 18 jobs"
    header = page.get_by_role("columnheader", name="job")
    header.get_by_role("button").click()
    header.get_by_role("button").click()
    assert column(page, "job")[:2] == ["17", "16"]
    page.get_by_role("columnheader", name="nats").get_by_role("button").click()
    assert column(page, "job")[0] == "7"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cells_can_be_read(visit, sweep, scheme):
    page = visit(sweep, color_scheme=scheme)
    for cell in page.locator(".map button.scored, .map button.so_far, .badge, .best p, .map th").all():
        assert cell.evaluate(CONTRAST) >= 4.5, cell.inner_text()


def test_fits_a_phone_and_tells_on_a_tap(visit, sweep, seeds):
    for file in (sweep, seeds):
        page = visit(file, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
        drawn(page, "chart-loss_0")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert page.evaluate("document.documentElement.clientWidth") == 360
    page = visit(sweep, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.locator(".map .failed").scroll_into_view_if_needed()
    page.locator(".map .failed").tap()
    until(page, "!document.getElementById('tip').hidden")
    assert page.evaluate("(() => {const b = tip.getBoundingClientRect(); return b.left >= 0 && b.right <= 360})()")


def test_names_and_reasons_are_no_markup(visit, tmp_path):
    jobs = grid(lr=("1e-4", "1e-3"), depth=("2", "6"), name=(HOSTILE, "b"))
    folder = write_sweep(tmp_path / "sweep", jobs, {0: "diverged"}, telemetry=False)
    status = folder / "0" / "status.json"
    status.write_text(status.read_text().replace("step 1,849", HOSTILE))
    page = visit(write_sweep_report(folder, figures=False)[1])
    drawn(page, "chart-loss_0")
    page.locator(".map .diverged").first.hover()
    assert HOSTILE in page.get_by_role("tooltip").inner_text()
    assert page.locator("img").count() == 0
