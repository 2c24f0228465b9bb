"""A page of HTML taken apart."""

import json
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input", "line", "wbr"}


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
