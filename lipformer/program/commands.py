"""The command ``lipformer``, which runs one of the programs by its name."""

import runpy
import sys

COMMANDS = {
    "train": "train a character language model; as train.py, and lipformer-train",
    "evaluate": "measure a trained model, let it write, or run a study; as evaluate.py, and lipformer-evaluate",
    "export": "write a trained model as safetensors and JSON",
}
"""Command -> what it does. Each is the module of its name beside this one, run as a program."""
HELP = ("--help", "-h")


def main() -> None:
    """Run the command that the first argument names, with the other arguments, and exit with its code."""
    name, *arguments = sys.argv[1:] or [""]
    if name in HELP:
        print(usage())
    elif name == "--version":
        from lipformer.version import __version__

        print(f"lipformer {__version__}")
    elif name in COMMANDS:
        # Lightning starts the other processes of a distributed training by the module that runs as the program, and by
        # the arguments; so the command must not stand among them.
        sys.argv = [sys.argv[0], *arguments]
        runpy.run_module(f"lipformer.program.{name}", run_name="__main__", alter_sys=True)
    else:
        from lipformer.config.suggestions import suggest
        from lipformer.system.text import print_error

        known = f"it is one of {', '.join(COMMANDS)}; lipformer --help says more"
        wrong = f"lipformer {name}: no such command{suggest(name, list(COMMANDS))}; " if name else "name a command: "
        print_error(f"{wrong}{known}")
        sys.exit(2)


def usage() -> str:
    """Return what ``lipformer --help`` shows."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:{width}}  {does}" for name, does in COMMANDS.items())
    typed = "lipformer <command> [group=choice] [key=value] ..."
    return f"usage: {typed}\n\n{lines}\n\nlipformer <command> --help lists keys."
