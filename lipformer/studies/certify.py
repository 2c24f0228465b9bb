"""Certify a trained model and its predictions: Lipschitz bounds, and radii within which predictions do not change."""

import csv
import json
import logging
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.table import Table
from rich.text import Text

from lipformer.bounds.certificate import Certificate, certify
from lipformer.bounds.empirical import FromEmbedding, model_constants
from lipformer.bounds.radii import attacked_radii, certified_radii
from lipformer.config import EvaluateConfig
from lipformer.data.collate import IGNORE, Batch
from lipformer.data.corpus import Split
from lipformer.data.resumable_loader import ResumableLoader
from lipformer.errors import UsageError
from lipformer.figures import certified_share
from lipformer.functional.sequence_norms import sequence_norm
from lipformer.functional.spectral import Norm
from lipformer.models.transformer import CharTransformer
from lipformer.options.study import CertifyOptions
from lipformer.runs import layout
from lipformer.runs.folder import write_metrics
from lipformer.runs.metric_names import CERTIFICATE, LOGITS, TRUNK, metric_name
from lipformer.studies.evaluation import METRIC_PREFIX, metrics_table, split_metrics
from lipformer.studies.loading import choose_device, open_run, open_split, record_environment, split_loader
from lipformer.system.atomic import replace_text, replacing
from lipformer.system.terminal import BAD, tracked, wide_console
from lipformer.tasks import LANGUAGE, task_of
from lipformer.telemetry.objective import Average, sum_nats

log = logging.getLogger(__name__)

ATTACKED = 16
"""Number of sentences that are attacked, spread over the split."""
ATTACK_RADII = np.geomspace(1e-3, 2, 16)
"""Radii of the attacks, relative to the norm of an embedded sentence."""
POINTS = 200
"""Number of radii on the curve that is drawn."""
SHARE = "certified_share"
"""Name of the curve's files, without suffix."""
SHARES = (1e-6, 1e-4, 1e-2, 1.0)
"""Radii for which the certified share is a metric."""


class CertifyStudy:
    """``study=certify``: a plain evaluation, Lipschitz bounds of the model, and certified radii of its predictions.

    Args:
        p: the norm of the certificate, "mixed", 2 or inf.
        length: the largest number of tokens for which it holds; None for the context of the training.
    """

    def __init__(self, *, p: Norm = CertifyOptions.p, length: int | None = CertifyOptions.length):
        self.p, self.length = p, length

    def run(self, settings: EvaluateConfig, folder: Path) -> float:
        """Certify a model and its predictions on a split, print tables, and write files into `folder`.

        The files are ``certificate.json`` (rows and totals), ``metrics.json`` (those of a plain evaluation, and
        ``certificate/<layer>/<p>``, ``certificate/trunk/<p>``, ``certificate/logits/<p>``), ``radii.csv`` (a row for
        each sentence), ``certified_share.csv`` and its figure.

        Certificate and predictions are computed in float64. A contractive layer divides by an upper bound of itself
        that allows for the rounding of the precision in use, so that in another precision it is another function.

        Args:
            settings: the validated configuration.
            folder: the folder of this evaluation.

        Returns:
            Nats per character.

        Raises:
            CheckpointError, DataError: as in a plain evaluation.
            UsageError: ``length`` is larger than what the model reads, or smaller than a sentence.
        """
        device = choose_device(settings.accelerator)
        run = open_run(settings)
        task = task_of(run.config)
        if task != LANGUAGE:
            raise UsageError(f"study=certify is of predictions of characters, and {run.path} is of task={task.name}")
        model = run.model.double().to(device)
        try:
            certificate = certify(model, self.p, self.length)
        except (TypeError, ValueError) as error:  # the model has no layers to certify, or reads less
            raise UsageError(f"study=certify: {error}") from error
        data = open_split(run, settings)
        split = cast(Split, settings.split)
        loader = split_loader(data, split)
        longest = int(loader.dataset.lengths.max())
        if longest > certificate.length:
            raise UsageError(
                f"study.length={certificate.length}: {split} has a sentence of {longest} tokens, beyond the "
                f"certificate; take study.length={longest}, or leave such sentences out with "
                f"max_length={certificate.length} (another protocol)"
            )
        record_environment(folder, data)
        log.info("certifying %s on %s", run.path, data.protocol(split))

        radii, measured = certify_predictions(model, loader, certificate)
        metrics = split_metrics(run, data, split, measured)
        local = measure_layers(model, loader, certificate.p)
        every = np.concatenate(radii)
        curve = share_curve(every, attack_predictions(model, loader, certificate.p))
        metrics |= certified_metrics(certificate, local, every)

        write_metrics(folder, metrics)
        write_results(folder, certificate, radii, curve)
        certified_share(
            *zip(*curve, strict=True),
            closest=closest_characters(model, certificate.p),
            title=f"{run.config['name']}, {data.protocol(split)}",
            movement=MOVEMENTS[certificate.p],
            file=folder / f"{SHARE}.png",
        )

        console = wide_console()
        console.print(metrics_table(run, split, metrics))
        console.print(certificate_table(certificate, local))
        console.print(radii_table(metrics, str(certificate.p)))
        if math.isinf(certificate.trunk):
            log.info("there is no finite certificate of the trunk, so every certified radius is 0")
        log.info("files: %s", folder)
        return metrics[LANGUAGE.metric(METRIC_PREFIX[split])]


def write_results(
    folder: Path, certificate: Certificate, radii: list[np.ndarray], curve: list[tuple[float, float, float]]
) -> None:
    """Write ``certificate.json``, ``radii.csv`` and ``certified_share.csv``.

    Args:
        folder: the folder of this evaluation.
        certificate: of the model.
        radii: certified radii of the predictions, an array for each sentence.
        curve: rows of `share_curve`.
    """
    replace_text(folder / layout.CERTIFICATE, json.dumps(certificate.to_plain(), indent=2) + "\n")
    _write_csv(
        folder / "radii.csv",
        ("sentence", "characters", "smallest_radius", "median_radius"),
        [(number, len(row), row.min(), np.median(row)) for number, row in enumerate(radii, start=1)],
    )
    _write_csv(folder / f"{SHARE}.csv", ("radius", "certified", "withstands_attack"), curve)


def certified_metrics(certificate: Certificate, measured: Mapping[str, float], radii: np.ndarray) -> dict[str, float]:
    """Return the metrics of a certificate: the bounds, the constants that were measured, and the radii.

    Args:
        certificate: of the model.
        measured: a lower bound on the constant of each layer.
        radii: certified radii of all predictions.
    """
    p = certificate.p
    return {
        **{metric_name(CERTIFICATE, p, row.name): row.bound for row in certificate.rows},
        metric_name(CERTIFICATE, p, TRUNK): certificate.trunk,
        metric_name(CERTIFICATE, p, LOGITS): certificate.logits,
        **{f"measured/{layer}/{p}": value for layer, value in measured.items()},
        f"radius/median/{p}": float(np.median(radii)),
        **{f"radius/share_{radius:g}/{p}": float(np.mean(radii >= radius)) for radius in SHARES},
    }


@torch.no_grad()
def certify_predictions(
    model: CharTransformer, loader: ResumableLoader, certificate: Certificate
) -> tuple[list[np.ndarray], Average]:
    """Return the certified radii, an array for each sentence in the order of the split, and the nats of the split."""
    device = model.unembedding.weight.device
    measured = Average().to(device)
    radii: dict[int, np.ndarray] = {}
    batches = tracked(loader, "certifying", sys.stdout.isatty())
    for numbers, batch in zip(loader.batch_sampler, batches, strict=True):
        logits = model(batch.inputs.to(device))
        measured.update(*sum_nats(logits, batch.targets.to(device)))
        found = certified_radii(logits, model.unembedding.weight, certificate.trunk, certificate.p).cpu().numpy()
        radii.update({number: row[:n] for number, row, n in zip(numbers, found, batch.lengths.tolist(), strict=True)})
    return [radii[number] for number in sorted(radii)], measured


def measure_layers(model: CharTransformer, loader: ResumableLoader, p: Norm) -> dict[str, float]:
    """Return a lower bound on the constant of each layer, measured at a sentence of median length."""
    lengths = loader.dataset.lengths
    median = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    batch = _batch(model, loader, [median])
    constants = model_constants(model, batch.inputs, p, restarts=2, max_iterations=20)
    return {name: constant.value.item() for name, constant in constants.items()}


def attack_predictions(model: CharTransformer, loader: ResumableLoader, p: Norm) -> np.ndarray:
    """Return, for the predictions of some sentences, the radius at which an attack changes them; inf if none did."""
    count = len(loader.dataset)
    batch = _batch(model, loader, np.linspace(0, count - 1, min(count, ATTACKED)).round().astype(int).tolist())
    with torch.no_grad():
        embedded = model.embed(batch.inputs)
    radii = (ATTACK_RADII * sequence_norm(embedded, p).median().item()).tolist()
    real = batch.targets != IGNORE
    return attacked_radii(FromEmbedding(model), embedded, radii, p, attacked=real)[real].cpu().numpy()


def share_curve(certified: np.ndarray, attacked: np.ndarray) -> list[tuple[float, float, float]]:
    """Return rows of a radius, the share of predictions certified for it, and the share that withstands an attack."""
    drawn = [radii[(radii > 0) & np.isfinite(radii)] for radii in (certified, attacked)]
    ends = np.concatenate(drawn)
    if not len(ends):  # no radius is positive and finite
        ends = np.ones(1)
    grid = np.geomspace(ends.min() / 2, ends.max() * 2, POINTS)
    grid = np.union1d(grid, drawn[1])  # the radii at which the share under attack falls
    return [(float(r), float(np.mean(certified >= r)), float(np.mean(attacked > r))) for r in grid]


@torch.no_grad()
def closest_characters(model: CharTransformer, p: Norm) -> float:
    """Return the smallest distance between the embeddings of two different symbols."""
    vectors = model.embedding.weight
    distances = torch.cdist(vectors, vectors, p=p if p == math.inf else 2).fill_diagonal_(math.inf)
    return distances.min().item()


def certificate_table(certificate: Certificate, measured: Mapping[str, float]) -> Table:
    """Return a table of the bounds, infinity in red, beside the lower bounds that were measured."""
    title = f"Lipschitz certificate in the {NAMES[certificate.p]}, up to {certificate.length} tokens"
    table = Table(title=title, caption="measured: at one sentence, a lower bound")
    table.add_column("layer", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("at most", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("caveat", overflow="fold")
    for row in certificate.rows:
        part = row.role == "part"
        name = Text(f"  {row.name.rpartition('.')[2]}" if part else row.name, style="dim" if part else "")
        table.add_row(name, Text(row.kind), _number(row.bound), _measured(measured, row.name), Text(row.caveat))
    table.add_section()
    table.add_row("trunk", "", _number(certificate.trunk), _measured(measured, "trunk"), "embedded tokens to features")
    table.add_row("logits", "", _number(certificate.logits), _measured(measured, "logits"), "embedded tokens to logits")
    return table


def radii_table(metrics: Mapping[str, Any], name: str) -> Table:
    """Return a table of how far embedded tokens may move before a prediction can change."""
    table = Table(title="Certified predictions", show_header=False)
    table.add_row("median radius", f"{metrics[f'radius/median/{name}']:.3g}")
    for radius in SHARES:
        table.add_row(
            f"share with a radius of at least {radius:g}", f"{metrics[f'radius/share_{radius:g}/{name}']:.2%}"
        )
    return table


def _batch(model: CharTransformer, loader: ResumableLoader, numbers: list[int]) -> Batch:
    return Batch(*(tensor.to(model.unembedding.weight.device) for tensor in loader.gather(numbers)))


def _number(value: float) -> Text:
    return Text("inf", style=BAD) if math.isinf(value) else Text(f"{value:.4g}")


def _measured(measured: Mapping[str, float], name: str) -> str:
    return f"{measured[name]:.4g}" if name in measured else ""


def _write_csv(file: Path, header: tuple[str, ...], rows: list[tuple]) -> None:
    with replacing(file, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerows([header, *rows])


NAMES: dict[Norm, str] = {2: "2-norm", math.inf: "inf-norm", "mixed": "mixed norm"}
MOVEMENTS: dict[Norm, str] = {
    2: "movement of the embedded sentence (Euclidean, all tokens together)",
    math.inf: "movement of each feature of each embedded token",
    "mixed": "movement of each embedded token (Euclidean)",
}
