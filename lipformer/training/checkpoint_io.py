"""Writing checkpoints so that each is whole or not there at all; the last two are kept."""

from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

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
