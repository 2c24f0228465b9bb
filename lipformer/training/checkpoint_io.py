"""Writing checkpoints so that each is whole or not there at all, and reading them; the last two are kept."""

from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from lipformer.assembly.checkpoint import read_checkpoint
from lipformer.runs.layout import LAST, PREVIOUS
from lipformer.system.atomic import naming, replacing


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint into a file beside its place, flushes that to the disk, and then renames it.

    Lightning itself writes into the system's temporary folder and moves the file from there. Moving to another file
    system copies, and a process killed meanwhile leaves a cut-off file in place of the checkpoint before.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`; its folder is made if it is missing.

        Args:
            checkpoint: what Lightning collected.
            path: the file.
            storage_options: has no effect; Lightning passes it for remote file systems.

        Raises:
            WriteError: the file cannot be written; the file before it is left whole.
        """
        path = Path(path)
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        previous = path.with_name(PREVIOUS) if path.name == LAST else None
        with replacing(path, previous=previous) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint as everything else here does, onto the CPU.

        Args:
            path: the file.
            map_location: has no effect; Lightning moves the tensors to where they belong.
            weights_only: has no effect; no code from the file ever runs.

        Raises:
            CheckpointError: it cannot be read, or holds code.
        """
        return read_checkpoint(Path(path))
