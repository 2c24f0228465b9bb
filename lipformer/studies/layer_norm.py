"""The Lipschitz constants of normalisations: known bounds, beside the steepest inputs that a search finds."""

import csv
import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.bounds.empirical import ascend, steepest_token
from lipformer.config import EvaluateConfig
from lipformer.figures import norm_constants
from lipformer.figures.normalisations import Row
from lipformer.functional.spectral import Norm
from lipformer.modules.normalisations import LayerNorm
from lipformer.options.study import LayerNormOptions
from lipformer.studies.claims import Claim
from lipformer.studies.claims_page import publish_claims
from lipformer.system.atomic import naming
from lipformer.system.terminal import tracked
from lipformer.theorems import layer_norm_row_sum_bound

log = logging.getLogger(__name__)

EPS = 1.0
"""Added to the variance. A constant is proportional to 1/sqrt(eps); with 1 all values are in that unit."""
NORMS: tuple[Norm, ...] = (math.inf, 2)
"""Norms of the features of a token; the constant in the mixed norm is that in the 2-norm."""
LEARNING_RATE = 0.1
"""Step size of the ascents, in units of the entries of the inputs."""
ROUNDING = 1e-9
"""Relative error by which a value measured in float64 may exceed a bound."""
SOURCE = "Kim et al. 2021, sec. 4"
OURS = "docs/mathematics.md, 10"
HERE = "this study"


@dataclass(frozen=True)
class Scale:
    """The extent of the study.

    Attributes:
        widths: the widths D, in increasing order.
        starts: number of starts of the search, at each width.
        steps: number of steps of each ascent.
    """

    widths: tuple[int, ...]
    starts: int
    steps: int


SCALES = {
    "quick": Scale((3, 8, 32, 64, 128, 256, 512), starts=16, steps=100),
    "full": Scale((3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512), starts=50, steps=1000),
}


class Kind(NamedTuple):
    """A normalisation with what is known about its constants.

    Attributes:
        name: its name for the reader.
        make: returns the layer of a width, in float64 and with a scale of ones.
        loose: returns a looser upper bound in the inf-norm than the layer's own, for a width.
        construct: returns an input that attains the layer's constant in the inf-norm, for a width, (D,).
    """

    name: str
    make: Callable[[int], Any]
    loose: Callable[[int], float]
    construct: Callable[[int], Float[Tensor, " D"]]


KINDS = {
    "layer_norm": Kind(
        name="LayerNorm",
        make=lambda width: LayerNorm(width, eps=EPS).double(),
        loose=lambda width: layer_norm_row_sum_bound(torch.ones(width), EPS).item(),
        construct=lambda width: steepest_token(width, EPS),
    ),
}


class LayerNormStudy:
    """``study=layer_norm``: bounds on the constants of normalisations against optimised inputs, by width.

    Args:
        scale: ``quick`` or ``full``.
        seed: the seed of the starts.
    """

    def __init__(self, *, scale: str = LayerNormOptions.scale, seed: int = LayerNormOptions.seed):
        self.scale, self.seed = scale, seed

    def run(self, settings: EvaluateConfig, folder: Path) -> None:
        """Measure, and write ``constants.csv``, a figure, ``claims.json`` and ``claims.html`` into `folder`.

        Each row is written when it is known, so that a study that is interrupted keeps the earlier ones.

        Args:
            settings: the validated configuration, of whose root only the number of threads is read.
            folder: the folder of this evaluation.

        Raises:
            WriteError: a file cannot be written.
        """
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        size = SCALES[self.scale]
        rows = []
        file = folder / "constants.csv"
        with naming(file), file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, [field.name for field in fields(Row)])
            writer.writeheader()
            for kind, p, width in places(size.widths):
                row = measure(kind, p, width, size, self.seed)
                writer.writerow(asdict(row))
                stream.flush()
                rows.append(row)
        for kind in KINDS:
            norm_constants([row for row in rows if row.kind == kind], KINDS[kind].name, folder / f"{kind}.png")
        publish_claims("layer_norm", claims_of(rows), folder, seeds=[self.seed])


def places(widths: Sequence[int]) -> Iterator[tuple[str, Norm, int]]:
    """Yield each (normalisation, norm, width) to measure, with a progress bar, or a line each without a terminal."""
    every = [(kind, p, width) for kind in KINDS for p in NORMS for width in widths]
    for number, (kind, p, width) in enumerate(tracked(every, "searching", sys.stdout.isatty()), start=1):
        if not sys.stdout.isatty():
            log.info("%d of %d: %s, p=%s, D=%d", number, len(every), kind, p, width)
        yield kind, p, width


def measure(kind: str, p: Norm, width: int, size: Scale, seed: int) -> Row:
    """Search for steep inputs of one normalisation at one width.

    Args:
        kind: the normalisation, a key of `KINDS`.
        p: 2 or ``math.inf``.
        width: D.
        size: the extent of the search.
        seed: the seed of its starts.
    """
    _, make, loose, construct = KINDS[kind]
    layer = make(width)
    starts = search_starts(size.starts, width, seed)
    ends = ascend(layer, starts, p, steps=size.steps, lr=LEARNING_RATE).x
    found = local_constants(layer, ends[:, 0], p)
    sizes = torch.logspace(-4, 3, 50, dtype=torch.float64)
    apart = local_constants(layer, sizes[:, None] * torch.eye(width, dtype=torch.float64)[:1], p)
    known = construct(width) if p == math.inf else torch.zeros(width, dtype=torch.float64)
    return Row(
        kind=kind,
        p=str(p),
        width=width,
        loose=loose(width) if p == math.inf else None,
        exact=layer.lipschitz_bound(p).item(),
        found=found.max().item(),
        median=found.median().item(),
        apart=apart.max().item(),
        constructed=local_constants(layer, known[None], p).item(),
    )


def search_starts(count: int, width: int, seed: int) -> Float[Tensor, "count 1 D"]:
    """Draw tokens with normal entries and sizes from 0.01 to 10; every second one has an outlier of sqrt(D)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, width, generator=generator, dtype=torch.float64)
    x[::2, :, 0] *= math.sqrt(width)
    return x * 10 ** (3 * torch.rand(count, 1, 1, generator=generator, dtype=torch.float64) - 2)


def local_constants(layer: nn.Module, x: Float[Tensor, "B D"], p: Norm) -> Float[Tensor, " B"]:
    """Return the norm of the layer's Jacobian at each token, exact up to rounding."""
    jacobian = torch.func.jacrev(layer)
    norms = [torch.linalg.matrix_norm(jacobian(token), p) for token in x]
    return torch.stack(norms).detach()


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about the constants, tested on the rows that were measured.

    Args:
        rows: the rows of one normalisation or several.
    """
    claims = []
    for kind in dict.fromkeys(row.kind for row in rows):
        for p in ("inf", "2"):
            claims += _claims_in_norm([row for row in rows if (row.kind, row.p) == (kind, p)])
    return claims


def _claims_in_norm(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about one normalisation in one norm."""
    kind, p, widths = rows[0].kind, rows[0].p, f"D = {rows[0].width} .. {rows[-1].width}"
    where = f"{KINDS[kind].name}, {p}-norm"
    share = [row.found / row.exact for row in rows]
    claims = [
        Claim(
            f"{where}: no input is steeper than the exact constant (largest found / constant, {widths})",
            OURS,
            measured=max(share),
            expected=1.0,
            relation="at most",
            tolerance=ROUNDING,
        ),
        Claim(
            f"{where}: the exact constant is attained (constructed input / constant, the lowest of {widths})",
            OURS,
            measured=min(row.constructed / row.exact for row in rows),
            expected=1.0,
            relation="at least",
            tolerance=ROUNDING,
        ),
        Claim(
            f"{where}: how close the search comes (largest found / constant, the lowest of {widths})", HERE, min(share)
        ),
    ]
    loose = [(row, row.loose / row.found) for row in rows if row.loose is not None]
    if loose:
        worst = min(rows, key=lambda row: row.apart / row.found)
        claims += [
            Claim(
                f"{where}: Lipschitz, with a bound from row sums of the Jacobian (largest found / bound, {widths})",
                SOURCE,
                measured=max(1 / gap for _, gap in loose),
                expected=1.0,
                relation="at most",
                tolerance=ROUNDING,
            ),
            *(
                Claim(f"{where}: that bound is loose (bound / largest found, D = {row.width})", SOURCE, gap)
                for row, gap in loose
            ),
            Claim(
                f"{where}: inputs with one coordinate apart from all others are steepest "
                f"(such an input / largest found, D = {worst.width}, where it is lowest)",
                f"{SOURCE}, a conjecture",
                worst.apart / worst.found,
            ),
        ]
    return claims
