"""Pages in a real browser: how it is started, what a page is held to, and waiting for what it draws."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 120_000  # ms, for a busy machine; nothing waits longer than it has to
CONTRAST = """(element) => {
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => parse(colour).slice(0, 3).map((c) => c / 255)
        .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    let below = element;
    const ground = () => getComputedStyle(below).backgroundColor;
    while (parse(ground())[3] === 0) below = below.parentElement;
    const [a, b] = [light(getComputedStyle(element).color), light(ground())].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
}"""


@contextmanager
def running_browser() -> Iterator[Any]:
    """Start Chromium; the test is skipped where it, or playwright, is not installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'lipformer[dev]'")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE)
        yield chromium
        chromium.close()


@contextmanager
def visiting(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file in a page of its own, and hold it to this: no complaint, no dialog, no request but for the file."""
    complaints, contexts = [], []

    def opened(file: Path, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 500}, "color_scheme": "light"} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message) or dialog.dismiss())
        page.on("request", lambda asked: asked.url.startswith((file.as_uri(), "data:")) or complaints.append(asked.url))
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def until(page, holds: str, argument: object = None) -> None:
    """Wait until an expression, or a function of the argument, is true in the page.

    Playwright's own waiting evaluates it within the page from the second time on, which the page's policy forbids.
    """
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(holds, argument):
        assert time.monotonic() < deadline, holds
        page.wait_for_timeout(20)


def drawn(page, *ids: str):
    """Wait until these plots are drawn, for which they have to be in sight."""
    for name in ids:
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{name}[data-drawn]")
    until(page, "[...Bokeh.documents].every((document) => document.is_idle)")


def column(page, title: str) -> list[str]:
    titles = [cell.strip() for cell in page.locator("#runs thead th").all_inner_texts()]
    cells = page.locator(f"#runs tbody tr:visible > :nth-child({titles.index(title) + 1})").all_inner_texts()
    return [cell.strip() for cell in cells]
