"""Claims: how a verdict is reached, how claims.json is written, and a page that nothing hostile can leave."""

import base64
import json
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lipformer.studies import claims as module
from lipformer.studies.claims import Claim, claims_table, read_claims, write_claims
from lipformer.studies.claims_page import publish_claims, write_claims_page

KEYS = ["claim", "source", "relation", "expected", "measured", "tolerance", "verdict", "seeds", "command", "commit"]
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = "<img src=x onerror=alert(1)></td><script>alert(2)</script>\"'&\x1b[31m\u202e"
NUMBER = st.floats(allow_nan=False)
TOLERANCE = st.floats(0, 1e6)


def claim(measured, expected=None, **options):
    return Claim("the constant", "Kim et al. 2021", measured, expected, **options)


# --- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "expected", "relation", "tolerance", "verdict"),
    [
        (1.0, None, "equal to", 0.0, "measured"),
        (math.nan, None, "at most", 0.0, "measured"),
        (1.0, 1.0, "equal to", 0.0, "holds"),
        (1.1, 1.0, "equal to", 0.2, "holds"),
        (0.9, 1.0, "equal to", 0.2, "holds"),
        (1.3, 1.0, "equal to", 0.2, "fails"),
        (0.7, 1.0, "equal to", 0.2, "fails"),
        (0.1, 1.0, "at most", 0.0, "holds"),
        (1.1, 1.0, "at most", 0.2, "holds"),
        (1.3, 1.0, "at most", 0.2, "fails"),
        (9.0, 1.0, "at least", 0.0, "holds"),
        (0.9, 1.0, "at least", 0.2, "holds"),
        (0.7, 1.0, "at least", 0.2, "fails"),
        (math.inf, math.inf, "equal to", 0.0, "holds"),
        (math.inf, 1.0, "at most", 9.0, "fails"),
        (math.inf, 1.0, "at least", 0.0, "holds"),
        (math.nan, 1.0, "at most", 9.0, "fails"),
        (math.nan, math.inf, "at most", 0.0, "fails"),
    ],
)
def test_verdicts(measured, expected, relation, tolerance, verdict):
    assert claim(measured, expected, relation=relation, tolerance=tolerance).verdict == verdict


@given(NUMBER, NUMBER, TOLERANCE)
def test_equal_is_both_at_most_and_at_least(measured, expected, tolerance):
    equal, most, least = (
        claim(measured, expected, relation=relation, tolerance=tolerance).verdict == "holds"
        for relation in ("equal to", "at most", "at least")
    )
    assert equal == (most and least)
    assert most or least


@given(NUMBER, NUMBER, TOLERANCE, TOLERANCE, st.sampled_from(["equal to", "at most", "at least"]))
def test_more_tolerance_never_makes_a_claim_fail(measured, expected, tolerance, more, relation):
    strict = claim(measured, expected, relation=relation, tolerance=tolerance).verdict
    lenient = claim(measured, expected, relation=relation, tolerance=tolerance + more).verdict
    assert (strict, lenient) != ("holds", "fails")


@given(NUMBER, NUMBER, st.floats(0, 1e6), TOLERANCE)
def test_verdicts_are_monotone_in_what_was_measured(measured, expected, step, tolerance):
    for relation, further in (("at most", measured - step), ("at least", measured + step)):
        if claim(measured, expected, relation=relation, tolerance=tolerance).verdict == "holds":
            assert claim(further, expected, relation=relation, tolerance=tolerance).verdict == "holds"


@pytest.mark.parametrize("options", [{"tolerance": -1.0}, {"tolerance": math.nan}, {"tolerance": math.inf}])
def test_what_no_tolerance_can_be(options):
    with pytest.raises(ValueError, match="tolerance"):
        claim(1.0, 1.0, **options)


def test_nothing_can_be_nan():
    with pytest.raises(ValueError, match="nan"):
        claim(1.0, math.nan)


# --- claims.json -----------------------------------------------------------------------------------------------------


def test_the_form_of_claims_json(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/evaluate.py", "study=layer_norm", "hydra.run.dir=a b"])
    monkeypatch.setattr(module, "code_commit", lambda: "abc-dirty")
    write_claims(tmp_path, [claim(1.5, 1.0, relation="at least", tolerance=0.25), claim(math.inf)], seeds=[0, 1])
    first, second = json.loads((tmp_path / "claims.json").read_text())
    assert list(first) == list(second) == KEYS
    assert first == {
        "claim": "the constant",
        "source": "Kim et al. 2021",
        "relation": "at least",
        "expected": 1.0,
        "measured": 1.5,
        "tolerance": 0.25,
        "verdict": "holds",
        "seeds": [0, 1],
        "command": "python evaluate.py study=layer_norm 'hydra.run.dir=a b'",
        "commit": "abc-dirty",
    }
    assert (second["relation"], second["expected"], second["measured"]) == (None, None, "inf")
    assert read_claims(tmp_path) == [first, second]


@pytest.mark.parametrize("text", ["", "{", "{}", "3", '["a", null, 3]'])
def test_broken_claims_are_none(tmp_path, text):
    assert read_claims(tmp_path) == []
    (tmp_path / "claims.json").write_text(text)
    assert read_claims(tmp_path) == []


# --- the table and the page ------------------------------------------------------------------------------------------


def test_the_table_says_what_is_expected_and_what_was_found():
    console = Console(width=200)
    tested = [claim(1.5, 1.0, relation="at most", tolerance=0.25), claim(2.0), claim(3.0, 3.0, tolerance=0.1)]
    with console.capture() as capture:
        console.print(claims_table(tested))
    rows = [[cell.strip() for cell in line.split("│")[3:-1]] for line in capture.get().splitlines() if "│" in line]
    assert rows == [["at most 1 (+0.25)", "1.5", "fails"], ["", "2", "measured"], ["3 ± 0.1", "3", "holds"]]


class Page(HTMLParser):
    """What a page's elements are, and what they ask for."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self.handlers, self.links = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            self.handlers += [name] if name.startswith("on") else []
            self.sources += [value] if name in ("src", "srcset", "data", "action") else []
            self.links += [value] if name == "href" else []


def test_the_page_is_one_file_and_everything_in_it_is_text(tmp_path, capsys):
    folder = tmp_path / HOSTILE.replace("/", "_")
    folder.mkdir()
    (folder / "figure.png").write_bytes(PIXEL)
    (folder / f"{HOSTILE[:20]}.png").write_bytes(PIXEL)
    (folder / "no_figure.png").write_text(HOSTILE)
    tested = [Claim(HOSTILE, HOSTILE, 2.0, 1.0, "at most"), claim(1.0, 1.0), claim(math.nan)]
    publish_claims(HOSTILE, tested, folder, seeds=[3])
    assert "\x1b[31m\u202e" not in capsys.readouterr().out
    text = (folder / "claims.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert page.handlers == []
    assert page.tags.count("img") == len(page.sources) == 2
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert all(link.startswith("#") for link in page.links)
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:\"" in text
    assert [text.count(f'<span class="badge {verdict}">') for verdict in ("holds", "fails", "measured")] == [1, 1, 1]
    assert "holds: 1, fails: 1, measured: 1" in text


def test_a_hostile_file_of_claims_is_text(tmp_path):
    written = [
        {"claim": {"a": HOSTILE}, "source": [HOSTILE], "expected": "9" * 400, "measured": True, "verdict": HOSTILE},
        {"measured": 10**400, "expected": "inf", "relation": HOSTILE, "seeds": {"a": 1}, "command": HOSTILE},
        {},
    ]
    (tmp_path / "claims.json").write_text(json.dumps(written))
    page = Page(write_claims_page([("study", tmp_path)], tmp_path / "claims.html").read_text())
    assert not {"script", "img"} & set(page.tags)
    assert page.handlers == []


def test_an_overview_has_every_study(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_claims(tmp_path / name, [claim(1.0, 1.0), claim(2.0, 1.0)], seeds=[])
    text = write_claims_page([(name, tmp_path / name) for name in ("one", "two")], tmp_path / "claims.html").read_text()
    assert "<title>Claims · lipformer</title>" in text
    assert "holds: 2, fails: 2" in text
    assert Page(text).links == ["#claims", "#study-1", "#study-2"]
