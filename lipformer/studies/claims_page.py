"""The claims of studies with their figures, as one self-contained page of HTML."""

import base64
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lipformer.report.environment import environment, shown
from lipformer.runs import layout
from lipformer.studies.claims import Claim, claims_table, read_claims, spell, spell_expected, write_claims
from lipformer.system.atomic import replace_text
from lipformer.system.reading import read_regular
from lipformer.system.terminal import wide_console
from lipformer.version import __version__

log = logging.getLogger(__name__)

VERDICTS = ("holds", "fails", "measured")
PNG = b"\x89PNG\r\n\x1a\n"
LARGEST_FIGURE = 8_000_000
"""Largest size, in bytes, of a figure that is put into the page; larger ones are left out."""


def publish_claims(study: str, claims: Sequence[Claim], folder: Path, seeds: Sequence[int]) -> None:
    """Print the claims of a study, and write ``claims.json`` and, with its figures, ``claims.html``.

    Args:
        study: the name of the study.
        claims: the claims that it tested.
        folder: the folder of its figures, which are PNG files.
        seeds: the seeds that were used.
    """
    write_claims(folder, claims, seeds)
    page = write_claims_page([(study, folder)], folder / layout.CLAIMS_PAGE)
    wide_console().print(claims_table(claims))
    log.info("claims and figures: %s", page)


def write_claims_page(studies: Sequence[tuple[str, Path]], file: Path) -> Path:
    """Write the page of studies that have claims.

    Everything from the folders is escaped: nothing in a claim can become markup.

    Args:
        studies: the name and the folder of each, in the order of the page.
        file: the file to write.

    Returns:
        `file`.

    Raises:
        WriteError: the file cannot be written.
    """
    parts = [_study(name, folder) for name, folder in studies]
    counts = Counter(claim["verdict"] for part in parts for claim in part["claims"])
    text = (
        environment()
        .get_template("claims.html.jinja")
        .render(
            version=__version__,
            made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            title=f"Claims: {parts[0]['name']}" if len(parts) == 1 else "Claims",
            studies=parts,
            counts={verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        )
    )
    replace_text(file, text, errors="replace")
    return file


def _study(name: str, folder: Path) -> dict[str, Any]:
    claims = read_claims(folder)
    origins = dict.fromkeys(
        (str(claim.get("command")), str(claim.get("commit") or "unknown"), _spell_seeds(claim.get("seeds")))
        for claim in claims
    )
    return {
        "name": name,
        "folder": shown(folder),
        "origins": list(origins),
        "claims": [_spelled(claim) for claim in claims],
        "figures": [figure for file in sorted(folder.glob("*.png")) if (figure := _embed(file)) is not None],
    }


def _spelled(claim: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a claim, whatever its file contains."""
    expected, measured, tolerance = (_number(claim.get(key)) for key in ("expected", "measured", "tolerance"))
    relation, verdict = claim.get("relation"), claim.get("verdict")
    return {
        "claim": str(claim.get("claim")),
        "source": str(claim.get("source")),
        "expected": "" if expected is None else spell_expected(str(relation), expected, tolerance or 0.0),
        "measured": "" if measured is None else spell(measured),
        "verdict": verdict if verdict in VERDICTS else "unknown",
    }


def _number(value: Any) -> float | None:
    """Return a number of claims.json; those that JSON does not have are strings there."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return float(value) if value in ("inf", "-inf", "nan") else None


def _spell_seeds(seeds: Any) -> str:
    return ", ".join(map(str, seeds)) if isinstance(seeds, list) and seeds else "none"


def _embed(file: Path) -> dict[str, str] | None:
    """Return the name of a figure and its content as a data address; None if it is not a PNG file."""
    try:
        image = read_regular(file, LARGEST_FIGURE)
    except OSError:
        return None
    if not image.startswith(PNG):
        return None
    return {"name": file.stem, "source": f"data:image/png;base64,{base64.b64encode(image).decode()}"}
