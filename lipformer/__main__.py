"""``python -m lipformer``, which is the same as ``lipformer``."""

from lipformer.program.commands import main

if __name__ == "__main__":
    main()
