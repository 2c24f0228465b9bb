"""The length for which a contractive layer is normalised."""


def check_length(length: int, context: int) -> None:
    """Raise ``ValueError`` if a sequence is longer than the one that the constant was computed for."""
    if length > context:
        raise ValueError(
            f"a sequence of {length} tokens is longer than the context of {context} "
            "for which contractive attention is normalised"
        )
