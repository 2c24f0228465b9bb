"""Find checkpoints, read them without running code from them, and rebuild their models."""

import logging
import platform
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from lipformer.assembly.archive import CodeError, FormError, opened_archive, read_archive
from lipformer.assembly.build import LOADER_KEYS, build_model, check_targets
from lipformer.assembly.exported import PREFIX, read_exported
from lipformer.assembly.limits import limited_to
from lipformer.assembly.old_configs import as_written_today, rename_weights
from lipformer.config import MODEL_GROUPS, keys_read
from lipformer.data.fingerprint import Fingerprint, from_plain, to_plain
from lipformer.data.vocabulary import Vocabulary
from lipformer.errors import CheckpointError, LipformerError
from lipformer.options.data import DataOptions
from lipformer.runs import layout
from lipformer.runs.layout import BEST, EXPORTED_MODEL, EXPORTED_WEIGHTS, LAST, PREVIOUS
from lipformer.version import __version__

log = logging.getLogger(__name__)

FORMAT = 1


@dataclass(frozen=True)
class Run:
    """A trained model and what it needs to be used.

    Attributes:
        model: in eval mode; a `CharTransformer`, unless the run chose another (`build_model`).
        vocabulary: maps characters to the model's ids.
        config: the plain configuration it was trained with.
        path: the checkpoint file.
        step: optimizer steps taken.
        fingerprints: those of the splits it was trained and validated on; empty in a checkpoint of an earlier version.
    """

    model: Any  # torch types attributes of modules as tensors
    vocabulary: Vocabulary
    config: dict[str, Any]
    path: Path
    step: int
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)


def checkpoint_extras(
    config: Mapping[str, Any], vocabulary: Vocabulary, fingerprints: Mapping[Any, Fingerprint]
) -> dict[str, Any]:
    """Return what a checkpoint holds besides the weights, in containers that are loaded without running code."""
    versions = {
        "lipformer": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    versions["pytorch_lightning"] = pl.__version__
    return {
        "format": FORMAT,
        "config": dict(config),
        "vocabulary": vocabulary.to_plain(),
        "corpus": to_plain(fingerprints),
        "versions": versions,
    }


def find_checkpoint(path: str | Path, which: str = "best", key: str = "checkpoint") -> Path:
    """Return the checkpoint file that `path` names: the file itself, or one of a run folder.

    Of an exported model it is the file of the weights.

    Args:
        path: a ``.ckpt`` file, a run folder, or the folder of an exported model or one of its files.
        which: ``best`` or ``last``. If there is no best checkpoint yet (before the first validation), the last is
            taken; if the last is missing or damaged, the one before it, and a line in the log says so.
        key: the key that `path` was given by, for messages.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    if "://" in str(path):
        raise CheckpointError(f"{key}={path}: addresses are not loaded; download the file and give its path")
    path = Path(path)
    if path.is_file():
        return path.with_name(EXPORTED_WEIGHTS) if path.name == EXPORTED_MODEL else path
    if not path.is_dir():
        raise CheckpointError(f"{key}={path}: no such file or folder")
    if any((path / name).is_file() for name in (EXPORTED_MODEL, EXPORTED_WEIGHTS)):
        return path / EXPORTED_WEIGHTS
    best, last, previous = (path / layout.CHECKPOINTS / name for name in (BEST, LAST, PREVIOUS))
    if which == "best" and best.is_file():
        if not is_whole(best):
            raise CheckpointError(_damaged(best))
        return best
    if last.is_file() and is_whole(last):
        return last
    if previous.is_file() and is_whole(previous):
        log.warning("%s is %s: taking %s", last, "damaged" if last.is_file() else "missing", previous)
        return previous
    if last.is_file() or previous.is_file():
        raise CheckpointError(_damaged(last if last.is_file() else previous))
    wanted = " or ".join(f"{layout.CHECKPOINTS}/{name}" for name in ((BEST, LAST) if which == "best" else (LAST,)))
    raise CheckpointError(f"{key}={path}: the folder holds no {wanted}; give a run folder or a .ckpt file")


def is_whole(path: Path) -> bool:
    """Return whether a checkpoint is complete, and all its bytes are those that were written."""
    try:
        with opened_archive(path) as archive:
            return archive.testzip() is None
    except PermissionError:  # reported when the file is read
        return True
    except Exception:  # damaged headers raise BadZipFile, OSError, NotImplementedError, RuntimeError and others
        return False


def _damaged(path: Path, fault: str = "truncated, or another kind of file") -> str:
    beside = (name for name in (BEST, LAST, PREVIOUS) if name != path.name)
    others = [name for name in beside if is_whole(path.with_name(name))]
    remedy = f"there is still {' and '.join(map(str, others))}: give one's path" if others else "no other one is left"
    return f"{path}: not a whole checkpoint ({fault}); beside it {remedy}"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain containers are unpickled, so that no code from it can run.

    Of an exported model nothing is unpickled. What is returned then lacks the state of the training.

    Raises:
        CheckpointError: the file cannot be read, is truncated, holds code, or was not written by lipformer.
    """
    if path.name == EXPORTED_WEIGHTS:
        return read_exported(path)
    try:
        checkpoint = read_archive(path)
    except CodeError as error:
        raise CheckpointError(
            f"{path}: it holds code ({error}) and is not loaded; use a checkpoint of lipformer"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}; make the file readable") from error
    except FormError as error:
        raise CheckpointError(_damaged(path, str(error))) from error
    extras = checkpoint.get("lipformer") if isinstance(checkpoint, dict) else None
    if not isinstance(extras, dict) or not {"format", "config", "vocabulary"} <= extras.keys():
        raise CheckpointError(
            f"{path}: not a checkpoint of lipformer (it lacks the configuration and vocabulary); use one that "
            "train.py wrote"
        )
    if extras["format"] != FORMAT:
        raise CheckpointError(f"{path}: format {extras['format']}; this version of lipformer reads format {FORMAT}")
    if isinstance(extras["config"], dict):
        extras["config"] = as_written_today(extras["config"])
        rename_weights(checkpoint)
    return checkpoint


def load_run(path: str | Path, *, which: str = "best", allow_targets: Sequence[str] = ()) -> Run:
    """Rebuild a trained model from its checkpoint, or from what was exported of it, alone.

    Args:
        path: a run folder, a ``.ckpt`` file, or the folder that ``lipformer export`` made.
        which: ``best`` or ``last`` of a run folder.
        allow_targets: packages, besides lipformer and torch.nn, whose modules the checkpoint may name.

    Returns:
        The model in eval mode on the CPU, its vocabulary and configuration.

    Raises:
        CheckpointError: there is no checkpoint, or it is truncated, unsafe or inconsistent.
    """
    path = find_checkpoint(path, which)
    return rebuild_run(read_checkpoint(path), path, allow_targets=allow_targets)


def rebuild_run(checkpoint: Mapping[str, Any], path: Path, *, allow_targets: Sequence[str] = ()) -> Run:
    """Build the model of a checkpoint that has been read, and load its weights.

    Args:
        checkpoint: what `read_checkpoint` returned.
        path: the file, for messages.
        allow_targets: as for `load_run`.

    Raises:
        CheckpointError: the checkpoint is unsafe or inconsistent.
    """
    extras = checkpoint["lipformer"]
    try:
        config, step = extras["config"], checkpoint["global_step"]
        check_targets(config, allow_targets, str(path))
        vocabulary = Vocabulary.from_plain(extras["vocabulary"])
        _check_plain_parts(checkpoint, config)
        state = checkpoint["state_dict"].items()
        weights = {name.removeprefix(PREFIX): tensor for name, tensor in state if name.startswith(PREFIX)}
        with limited_to(weights):
            model = build_model(config, len(vocabulary))
        if path.name == EXPORTED_WEIGHTS:
            _check_types(weights, model.state_dict())
        model.load_state_dict(weights)
    except CheckpointError:
        raise
    except (LipformerError, LookupError, TypeError, AttributeError, ValueError, RuntimeError, MemoryError) as error:
        raise CheckpointError(
            f"{path}: its parts do not fit together ({_reason(error)}); it was altered, or written by another version"
        ) from error
    return Run(model.eval(), vocabulary, config, path, step, from_plain(extras.get("corpus")))


def _check_plain_parts(checkpoint: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Check the types of the values besides the model, and that its sizes fit the weights."""
    for name, value, kind in (("name", config["name"], str), ("global_step", checkpoint["global_step"], int)):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is no {kind.__name__}")
    DataOptions.check(**{key: config["data"][key] for key in LOADER_KEYS})
    _check_sizes(config, checkpoint["state_dict"])


def _check_types(weights: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights of another type than the model's, which would be converted when they are loaded."""
    for name in weights.keys() & expected.keys():
        if weights[name].dtype != expected[name].dtype:
            raise TypeError(f"{name} is of {weights[name].dtype}, and {expected[name].dtype} in the model")


def _check_sizes(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse sizes that are too large for these weights: the model would be built first, and could take all memory.

    Sizes that are too small are found when the weights are loaded.
    """
    largest = max((size for weight in weights.values() for size in weight.shape), default=0)
    keys = keys_read(config["model"])
    options = {f"model.{name}": value for name, value in config["model"].items()}
    for group in (key for key in keys if key in MODEL_GROUPS):
        options.update({f"{group}.{name}": value for name, value in config[group].items()})
    options.update({key: config[key] for key in ("width", "heads") if key in keys})
    for name, size in options.items():
        if isinstance(size, int) and size > largest:
            raise ValueError(f"{name} {size} with weights of at most {largest} rows or columns")
    if "depth" in keys and config["depth"] > len(weights):
        raise ValueError(f"depth {config['depth']} with {len(weights)} weights")


def _reason(error: Exception) -> str:
    """Return the message of an error in one short line, without the headline that torch begins with."""
    lines = [line.strip() for line in str(error).splitlines() if not line.endswith(":")]
    return textwrap.shorten(" ".join(lines), 200, placeholder=" ...") or type(error).__name__
