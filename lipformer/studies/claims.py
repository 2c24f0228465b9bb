"""Claims of papers and theorems, beside what was measured here and whether they hold."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from lipformer.runs import layout
from lipformer.runs.plain_files import read_json
from lipformer.system.atomic import replace_text
from lipformer.system.source import code_commit, typed_command
from lipformer.system.terminal import BAD
from lipformer.system.text import visible

Relation = Literal["equal to", "at most", "at least"]
Verdict = Literal["holds", "fails", "measured"]

STYLES: dict[str, str] = {"holds": "green", "fails": BAD, "measured": "blue"}
"""Style of each verdict in the terminal."""


@dataclass(frozen=True)
class Claim:
    """A claim that was tested.

    Attributes:
        claim: a sentence that names the quantity.
        source: where it is claimed: paper and section, or a page of the documentation.
        measured: the value of the quantity that was measured here.
        expected: the value that is claimed; None if there is none, and the quantity is only reported.
        relation: the relation that the measured value should have to the expected one.
        tolerance: the error allowed for rounding or chance, in the unit of the quantity, at least 0.
    """

    claim: str
    source: str
    measured: float
    expected: float | None = None
    relation: Relation = "equal to"
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance={self.tolerance} must be finite and at least 0")
        if self.expected is not None and math.isnan(self.expected):
            raise ValueError("expected is nan, which nothing can be")

    @property
    def verdict(self) -> Verdict:
        """``measured`` if nothing is expected; else ``holds`` or ``fails``, which is the verdict for nan."""
        if self.expected is None:
            return "measured"
        beyond = self.measured - self.expected if self.measured != self.expected else 0.0  # inf - inf is nan
        above, below = beyond <= self.tolerance, beyond >= -self.tolerance
        holds = {"equal to": above and below, "at most": above, "at least": below}[self.relation]
        return "holds" if holds else "fails"


def write_claims(folder: Path, claims: Sequence[Claim], seeds: Sequence[int]) -> None:
    """Write ``claims.json``, a list with an object for each claim, in their order.

    Each has ``claim``, ``source``, ``relation`` (null if nothing is expected), ``expected`` (a number or null),
    ``measured``, ``tolerance``, ``verdict`` (holds, fails or measured), ``seeds``, ``command`` and ``commit``. Numbers
    that JSON does not have are the strings ``inf``, ``-inf`` and ``nan``.

    Args:
        folder: the folder of the study.
        claims: the claims that it tested.
        seeds: the seeds that were used; empty if nothing is random.

    Raises:
        WriteError: the file cannot be written.
    """
    command, commit = typed_command(), code_commit()
    written = [
        {
            "claim": claim.claim,
            "source": claim.source,
            "relation": None if claim.expected is None else claim.relation,
            "expected": None if claim.expected is None else _plain(claim.expected),
            "measured": _plain(claim.measured),
            "tolerance": claim.tolerance,
            "verdict": claim.verdict,
            "seeds": list(seeds),
            "command": command,
            "commit": commit,
        }
        for claim in claims
    ]
    replace_text(folder / layout.CLAIMS, json.dumps(written, indent=2, allow_nan=False) + "\n")


def read_claims(folder: Path) -> list[dict[str, Any]]:
    """Return the claims in the ``claims.json`` of a folder; empty if there is none, or it is broken."""
    told = read_json(folder / layout.CLAIMS)
    return [claim for claim in told if isinstance(claim, dict)] if isinstance(told, list) else []


def claims_table(claims: Sequence[Claim]) -> Table:
    """Return a table of claims for the terminal; those that fail are red."""
    table = Table(title="Claims")
    table.add_column("claim", overflow="fold")
    table.add_column("source", overflow="fold")
    for column in ("expected", "measured"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for claim in claims:
        expected = "" if claim.expected is None else spell_expected(claim.relation, claim.expected, claim.tolerance)
        cells = [visible(claim.claim), visible(claim.source), expected, spell(claim.measured)]
        table.add_row(*map(Text, cells), Text(claim.verdict, style=STYLES[claim.verdict]))
    return table


def spell(number: float) -> str:
    """Return a measured number as text for a reader."""
    return f"{number:.5g}"


def spell_expected(relation: str, expected: float, tolerance: float) -> str:
    """Return the expected value and its tolerance as text: ``at most 1 (+1e-09)``, ``2 ± 0.1``."""
    if relation == "equal to":
        return spell(expected) + (f" ± {tolerance:g}" if tolerance else "")
    sign = "+" if relation == "at most" else "−"
    return f"{relation} {spell(expected)}" + (f" ({sign}{tolerance:g})" if tolerance else "")


def _plain(number: float) -> float | str:
    return float(number) if math.isfinite(number) else str(float(number))
