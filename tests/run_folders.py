"""Run folders as train.py leaves them, made of smooth functions: a run that goes well, and one that collapses."""

import csv
import json
import math
from pathlib import Path

import numpy as np

LINES = ("a line that the model wrote", "and another, <unk> & all", "  two spaces  before")


def write_run(
    folder: Path,
    *,
    attention: str = "TiedL2Attention",
    lr: float = 0.003,
    steps: int = 3000,
    depth: int = 4,
    every: int = 50,
    diverges_at: int | None = None,
    telemetry: bool = True,
    status: str | None = "finished",
    nats: float = 1.35,
    seed: int = 0,
) -> Path:
    """Write a run folder; a run that diverges has attention that collapses, gradients that grow and no certificate.

    Args:
        folder: to be made.
        attention: the class in its configuration.
        lr: its learning rate.
        steps: of the training.
        depth: blocks.
        every: steps between rows.
        diverges_at: step from which values are nan; the run ends 3 rows later.
        telemetry: whether it has stability/ metrics and what is written with them.
        status: in status.json; None for a run that still goes.
        nats: what the loss comes close to.
        seed: in its configuration.
    """
    folder.mkdir(parents=True)
    rows = []
    last = steps if diverges_at is None else min(steps, diverges_at + 3 * every)
    for step in range(every - 1, last, every):
        rows.append({"epoch": 0, "step": step, **_row(step, steps, depth, lr, diverges_at, telemetry, nats)})
        if (step + 1) % (6 * every) == 0:
            valid = _nats(step, steps, diverges_at, nats) + 0.05
            val = {"val/nats_per_char": valid, "val/bits_per_char": valid / math.log(2)}
            rows.append({"epoch": 0, "step": step, **val})
    names = sorted({name for row in rows for name in row} - {"epoch", "step"})
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["epoch", "step", *names])
        writer.writeheader()
        writer.writerows(rows)
    (folder / "config.yaml").write_text(
        f"name: made_up\ndepth: {depth}\nwidth: 64\nlr: {lr}\nseed: {seed}\n"
        f"attention:\n  _target_: lipformer.modules.attention.{attention}\n"
        f"optimizer:\n  _target_: torch.optim.AdamW\n  lr: {lr}\n"
        f"callbacks:\n  {'stability: {every_n_steps: 50}' if telemetry else 'divergence_guard: {patience: 100}'}\n"
    )
    best = min(row["val/nats_per_char"] for row in rows if row.get("val/nats_per_char", math.nan) < math.inf)
    reason = "step 1,849, blocks.0.attention: the gradient is nan" if status == "diverged" else ""
    if status is not None:
        outcome = {"status": status, "exit_code": 0, "reason": reason, "best": best}
        (folder / "status.json").write_text(json.dumps(outcome))
        metrics = {
            "best/val/nats_per_char": best,
            "parameters": 304_818,
            "steps": last,
            "tokens": 950 * last,
            "seconds": last / 10,
            "tokens_per_second": 9_069.4,
        }
        (folder / "metrics.json").write_text(json.dumps(metrics | ({"stability/seconds": 8.2} if telemetry else {})))
    if telemetry:
        samples = {"step": last, "tokens": 950 * last, "temperature": 0.8, "seed": 0, "sentences": list(LINES)}
        (folder / "samples.json").write_text(json.dumps(samples))
        certificate = _certificate(depth, math.inf if diverges_at else 9.5)
        (folder / "certificate.json").write_text(json.dumps(certificate))
    return folder


def two_runs(folder: Path, **options) -> list[Path]:
    """Write a run that goes well and one that diverges, which differ in attention and learning rate."""
    return [
        write_run(folder / "tied_l2", **options),
        write_run(
            folder / "dot_product",
            attention="DotProductAttention",
            lr=0.03,
            diverges_at=1850,
            status="diverged",
            **options,
        ),
    ]


def residuals(depth: int) -> list[str]:
    """Return the names of a model's residuals."""
    return [f"blocks.{i}.{kind}" for i in range(depth) for kind in ("attention", "feedforward")]


def _nats(step: int, steps: int, diverges_at: int | None, nats: float) -> float:
    if diverges_at is None:
        return nats + 1.9 * math.exp(-5 * step / steps) + 0.02 * math.sin(step)
    return 2.6 + 0.6 * math.exp(-9 * step / steps) + 4.0 * max(0.0, step / diverges_at - 0.8)


def _row(
    step: int, steps: int, depth: int, lr: float, diverges_at: int | None, telemetry: bool, nats: float
) -> dict[str, float]:
    if diverges_at is not None and step >= diverges_at:
        bad = dict.fromkeys(_row(0, steps, depth, lr, None, telemetry, nats), math.nan)
        return bad | {"train/tokens": 950.0 * (step + 1), "train/lr": lr * (1 - step / steps)}
    near = 0.0 if diverges_at is None else step / diverges_at  # how near the end is
    norm = 0.6 * math.exp(-step / steps) * (1 + 0.3 * math.sin(step / 7)) + 40 * near**12
    row = {
        "train/tokens": 950.0 * (step + 1),
        "train/nats_per_char": _nats(step, steps, diverges_at, nats),
        "train/lr": lr * min(1.0, (step + 1) / 300) * (1 - step / steps),
        "train/gradient_norm": norm,
    }
    if not telemetry:
        return row
    shares = [(0.82 - 0.05 * i) * (1 - 0.9 * near) - 0.1 * (1 - near) * step / steps for i in range(depth)]
    stability = {
        "total/gradient_norm": norm,
        "total/gradient_norm_clipped": min(norm, 1.0),
        "total/update_ratio": lr * 0.3 * (1 - step / steps) + 1e-5,
        "total/entropy_share": float(np.mean(shares)),
        "total/entropy_share_lowest_layer": min(shares),
        "trunk/range_ratio": 1.1 + 0.4 * step / steps + 30 * near**6,
        "trunk/output_min": -3.0,
        "trunk/output_max": 3.0 + 50 * near**6,
    }
    for number, layer in enumerate(["embedding", *residuals(depth), "final_norm", "unembedding"]):
        stability[f"{layer}/gradient_norm"] = norm * (0.1 + 0.07 * number)
        stability[f"{layer}/parameter_norm"] = 10.0 + number
    for number, layer in enumerate(residuals(depth)):
        stability[f"{layer}/output_min"] = -2.0 - 0.2 * number
        stability[f"{layer}/output_max"] = 2.0 + 0.3 * number + 50 * near**6
        stability[f"{layer}/branch_gain"] = 0.5 / (1 + 0.5 * number) * (1 + 20 * near**3)
    for i, share in enumerate(shares):
        stability[f"blocks.{i}/output_max"] = 2.0
        stability[f"blocks.{i}.attention.branch/entropy_share"] = share
    certificates = {}
    if (step + 1) % 500 == 0:
        for number, layer in enumerate(residuals(depth)):
            stability[f"{layer}/local_lipschitz"] = 1.2 + 0.1 * number + 20 * near**4
            stability[f"{layer}.branch/local_lipschitz"] = 0.4 + 0.1 * number + 20 * near**4
            stability[f"{layer}.norm/local_lipschitz"] = 1.0
            certificates[f"certificate/{layer}/mixed"] = math.inf if diverges_at else 9.5
        stability["trunk/local_lipschitz"] = 8.0 + 100 * near**3
        certificates["certificate/trunk/mixed"] = math.inf if diverges_at else 3e5 * (1 + step / steps)
    return row | {f"stability/{name}": value for name, value in stability.items()} | certificates


def _certificate(depth: int, bound: float) -> dict:
    plain = "inf" if math.isinf(bound) else bound
    caveat = "no theorem without a bounded input" if math.isinf(bound) else ""
    rows = [
        row
        for layer in residuals(depth)
        for row in (
            {"name": layer, "kind": "PostNorm", "bound": plain, "role": "trunk", "caveat": caveat},
            {"name": f"{layer}.branch", "kind": "TiedL2Attention", "bound": 3.25, "role": "part", "caveat": ""},
        )
    ]
    rows.append({"name": "unembedding", "kind": "Linear", "bound": 1.75, "role": "unembedding", "caveat": ""})
    total = "inf" if math.isinf(bound) else bound ** (2 * depth)
    return {"p": "mixed", "length": 288, "trunk": total, "logits": total, "of": "upper bounds", "rows": rows}
