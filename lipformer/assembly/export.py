"""Write a trained model for others: as safetensors and JSON, which hold no code, read back equal before it is there."""

from collections.abc import Sequence
from pathlib import Path

import torch

from lipformer.assembly.checkpoint import Run, find_checkpoint, read_checkpoint, rebuild_run
from lipformer.assembly.exported import write_exported
from lipformer.data.fingerprint import to_plain
from lipformer.errors import CheckpointError, UsageError
from lipformer.runs.layout import EXPORTED_WEIGHTS
from lipformer.system.atomic import making


def export_run(
    checkpoint: str | Path, to: str | Path, *, which: str = "best", allow_targets: Sequence[str] = ()
) -> Path:
    """Export a trained model: `load_run` rebuilds it from the folder with the same weights, bit for bit.

    Args:
        checkpoint: a run folder or a ``.ckpt`` file.
        to: the folder to make; it must not exist, or be empty.
        which: ``best`` or ``last`` of a run folder.
        allow_targets: packages, besides lipformer and torch.nn, whose modules the checkpoint may name.

    Returns:
        The folder.

    Raises:
        CheckpointError: there is no checkpoint, it is truncated, unsafe or inconsistent, or has no place in these
            formats.
        UsageError: the folder is not empty, or is no folder.
        WriteError: it cannot be written; nothing is left of it then.
    """
    folder = Path(to).resolve()
    _refuse_occupied(folder, to)
    path = find_checkpoint(checkpoint, which)
    read = read_checkpoint(path)
    run = rebuild_run(read, path, allow_targets=allow_targets)
    with making(folder) as made:
        write_exported(
            made,
            run.model.state_dict(),
            config=run.config,
            vocabulary=run.vocabulary.to_plain(),
            corpus=to_plain(run.fingerprints),
            versions=read["lipformer"].get("versions", {}),
            step=run.step,
        )
        file = made / EXPORTED_WEIGHTS
        _check_equal(run, rebuild_run(read_checkpoint(file), file, allow_targets=allow_targets))
    return folder


def _refuse_occupied(folder: Path, typed: str | Path) -> None:
    try:
        occupied = any(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"to={typed}: {error.strerror}: name a new folder") from error
    if occupied or folder == Path.cwd():
        raise UsageError(f"to={typed}: the folder {'is not empty' if occupied else 'is in use'}: name a new one")


def _check_equal(run: Run, again: Run) -> None:
    """Check that what was written is read back as the same model.

    Raises:
        CheckpointError: it is not, such as where a configuration has keys that are no text.
    """
    one, other = run.model.state_dict(), again.model.state_dict()
    weights = one.keys() == other.keys() and all(_same_bits(one[name], other[name]) for name in one)
    rest = [(getattr(run, name), getattr(again, name)) for name in ("config", "vocabulary", "step", "fingerprints")]
    if not weights or any(before != after for before, after in rest):
        raise CheckpointError(f"{run.path}: read back from safetensors and JSON it would not be the same model")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other)))
