"""train.py in which the second of two processes fails at step 4, as $FAULT says: a loss of nan, or an error."""

import math
import os

from lipformer.program import cli

if os.environ.get("LOCAL_RANK") == "1":
    from lipformer.training.language import LanguageModule

    original = LanguageModule.sums

    def sums(outputs, batch):
        sums.calls += 1
        if sums.calls < 5:
            return original(outputs, batch)
        if os.environ["FAULT"] == "error":
            raise MemoryError("no memory is left on this device")
        return original(outputs * math.nan, batch)

    sums.calls = 0
    LanguageModule.sums = staticmethod(sums)

if __name__ == "__main__":
    cli.train()
