"""Writing checkpoints: whole or not at all, the last two kept."""

from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from lipformer.runs.layout import LAST, PREVIOUS
from lipformer.system.atomic import naming, replacing


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place, flushes it to the disk, and then gives it its name.

    Lightning's own way is a file in the temporary folder that is moved. To another file system, moving is copying: a
    kill within it leaves a cut-off file in the place of the checkpoint before.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`, whose folder is made where it is missing.

        Args:
            checkpoint: as Lightning dumps it.
            path: of the file.
            storage_options: of other file systems; there are none here.

        Raises:
            WriteError: the file cannot be written; the one before it is whole.
        """
        path = Path(path)
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        previous = path.with_name(PREVIOUS) if path.name == LAST else None
        with replacing(path, previous=previous) as file:
            torch.save(checkpoint, file)
