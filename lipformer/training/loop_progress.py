"""Correcting the loop counters of a Lightning checkpoint, so that a run is continued in the right epoch."""

from typing import Any


def was_validated(checkpoint: dict[str, Any]) -> bool:
    """Return whether the weights in a checkpoint were validated, and the best ones saved, before it was written.

    Version 0.1.0 did not say so, and went on without.
    """
    return bool(checkpoint["lipformer"].get("validated", True))


def align_loop_progress(checkpoint: dict[str, Any], validate_every: int) -> None:
    """Set the loop counters of a checkpoint to the position in the data that the data module has stored beside them.

    To be called in ``LightningModule.on_load_checkpoint``, before Lightning restores its loops. They get the values
    that they have between two batches. With the stored ones, Lightning 2.6 would continue correctly only what was saved
    after a validation in the middle of an epoch:

    1. A run that reaches ``max_steps`` in the middle of an epoch counts that epoch as finished. Continued with more
       steps, Lightning would take the rest of the epoch for a whole one: without a validation at its end, and one epoch
       too few.
    2. A checkpoint written at the end of an epoch's last batch is continued correctly, but Lightning does not count the
       next epoch as started. If the continued run is continued again, an epoch is repeated.
    3. Of a checkpoint written within a step, or between two, Lightning may count the last step twice, or not at all, in
       the rows of the loggers.

    Args:
        checkpoint: changed in place. If it lacks the loops of a fit, or the state of
            :class:`~lipformer.data.datamodule.CharDataModule`, it is left as it is.
        validate_every: batches between two validations.
    """
    place, loops = checkpoint.get("CharDataModule"), checkpoint.get("loops", {}).get("fit_loop")
    if place is None or loops is None:
        return
    epoch, batches, batches_total = place["epoch"], place["batches"], place["batches_total"]
    epochs, steps = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    begun = epoch + (batches > 0)
    for counts in (epochs["total"], epochs["current"]):
        counts.update(ready=begun, started=begun, processed=epoch, completed=epoch)
    for counts, done in ((steps["total"], batches_total), (steps["current"], batches)):
        counts.update(ready=done, started=done, processed=done, completed=done)
    steps["is_last_batch"] = False
    # The loggers number their rows by this counter. Where a validation falls, Lightning passes over it, taking it to be
    # made, and then raises the counter.
    passed_over = batches_total > 0 and batches_total % validate_every == 0
    loops["epoch_loop.state_dict"]["_batches_that_stepped"] = checkpoint["global_step"] - passed_over
