"""Make the loop counters in a Lightning checkpoint agree with the place the datamodule wrote beside them."""

from typing import Any


def align_loop_progress(checkpoint: dict[str, Any]) -> None:
    """Correct, in place, the two states from which Lightning 2.6 resumes in the wrong epoch.

    To be called in ``LightningModule.on_load_checkpoint``, before Lightning restores its loops.

    1. A run that ``max_steps`` ends within an epoch counts that epoch as finished. Resumed with more steps,
       Lightning would take the rest of the epoch for a whole one: no validation at its end, one epoch too few.
    2. A checkpoint written at the end of an epoch's last batch is resumed rightly once, but Lightning does not
       count the next epoch as started, so that resuming the resumed run repeats an epoch.

    In both states the counters are set to what they are between two batches. All other states are left alone,
    those after a validation among them, which Lightning finishes with the epoch's own hooks.

    Args:
        checkpoint: a checkpoint with the loops of a fit and the state of
            :class:`~lipformer.data.datamodule.CharDataModule`; without either it is left as it is.
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
    # The step of the loggers, which Lightning itself would count on only in the states it knows.
    loops["epoch_loop.state_dict"]["_batches_that_stepped"] = checkpoint["global_step"]
