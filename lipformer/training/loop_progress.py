"""Correcting the loop counters of a Lightning checkpoint, so that a run is continued in the right epoch."""

from typing import Any


def align_loop_progress(checkpoint: dict[str, Any]) -> None:
    """Set the loop counters of a checkpoint to the position in the data that the data module has stored beside them.

    To be called in ``LightningModule.on_load_checkpoint``, before Lightning restores its loops. Two states are
    corrected, from which Lightning 2.6 would go on in the wrong epoch:

    1. A run that reaches ``max_steps`` in the middle of an epoch counts that epoch as finished. Continued with more
       steps, Lightning would take the rest of the epoch for a whole one: without a validation at its end, and one epoch
       too few.
    2. A checkpoint written at the end of an epoch's last batch is continued correctly, but Lightning does not count the
       next epoch as started. If the continued run is continued again, an epoch is repeated.

    In both states the counters are set to the values that they have between two batches. All other states are left as
    they are; among them those after a validation, where Lightning itself ends the epoch.

    Args:
        checkpoint: changed in place. If it lacks the loops of a fit, or the state of
            :class:`~lipformer.data.datamodule.CharDataModule`, it is left as it is.
    """
    place, loops = checkpoint.get("CharDataModule"), checkpoint.get("loops", {}).get("fit_loop")
    if place is None or loops is None:
        return
    epoch, batches = place["epoch"], place["batches"]
    epochs, steps = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    ended_early = epochs["current"]["processed"] > epoch
    at_last_batch = (
        epochs["current"]["processed"] < epoch and steps["current"]["completed"] < steps["current"]["processed"]
    )
    if not (ended_early or at_last_batch):
        return
    begun = epoch + (batches > 0)
    for counts in (epochs["total"], epochs["current"]):
        counts.update(ready=begun, started=begun, processed=epoch, completed=epoch)
    for counts, done in ((steps["total"], place["batches_total"]), (steps["current"], batches)):
        counts.update(ready=done, started=done, processed=done, completed=done)
    steps["is_last_batch"] = False
    # The loggers number their rows by this counter, which Lightning does not restore in these two states.
    loops["epoch_loop.state_dict"]["_batches_that_stepped"] = checkpoint["global_step"]
