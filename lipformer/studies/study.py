"""The protocol of a study, which answers one question by ``python evaluate.py study=<name>``."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lipformer.config import EvaluateConfig
from lipformer.config.targets import factory
from lipformer.errors import UsageError
from lipformer.options.study import StudyOptions


@runtime_checkable
class Study(Protocol):
    """The protocol of a class that ``study=`` can name; it is constructed with the options of its YAML, by their names.

    A study that trains starts ``train.py -m`` in a process of its own, and reads the run folders that this writes.
    """

    def run(self, settings: EvaluateConfig, folder: Path) -> float | None:
        """Answer the question: print the results, and write files into `folder`.

        Args:
            settings: the validated configuration; a study reads keys at its root, such as ``checkpoint``. The study's
                own options are in ``settings.study``, and were given to its constructor.
            folder: a folder that holds nothing but the log; the study writes nowhere else.

        Returns:
            The value that a sweep over studies compares, of which smaller is better; None if there is none.

        Raises:
            LipformerError: the question cannot be answered, for a reason given in one line; a ``UsageError`` if the
                command line is at fault.
        """


def open_study(node: StudyOptions | Mapping[str, Any]) -> Study:
    """Import the class that ``study`` names and construct it with its options.

    Args:
        node: ``_target_`` and options, which have been checked if there is a schema.

    Raises:
        UsageError: there is no such class, it refuses its options, or it is not a study.
    """
    options = asdict(node) if isinstance(node, StudyOptions) else node
    if not isinstance(options, Mapping) or not isinstance(options.get("_target_"), str):
        raise UsageError("study: it names no class; give study._target_=<package.Class>")
    make = factory(options, "study")
    try:
        study = make()
    except (TypeError, ValueError) as error:
        raise UsageError(f"study: {error}") from error
    if not isinstance(study, Study):
        raise UsageError(f"study._target_={options['_target_']}: it has no method run(settings, folder)")
    return study
