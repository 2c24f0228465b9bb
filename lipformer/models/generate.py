"""Sample sentences from a trained model, character by character."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipformer.data.vocabulary import Vocabulary
from lipformer.errors import UsageError
from lipformer.modules import contracts
from lipformer.modules.contexts import eval_mode


@torch.no_grad()
def sample(
    model: nn.Module,
    vocabulary: Vocabulary,
    *,
    samples: int,
    prompt: str = "",
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    max_chars: int | None = None,
) -> list[str]:
    """Draw sentences: each starts from the end symbol and the prompt, and stops at the next end symbol.

    Sentence i draws from a random stream of (seed, i) alone. So it stays the same, up to rounding in the model,
    when more sentences are asked for, and no global generator is read or moved. The model is in eval mode
    meanwhile.

    There is no cache of keys: each further character is one forward pass over the sentences so far, all
    unfinished ones in one batch, so N characters cost the forward passes of N (N + 1) / 2 tokens a sentence.

    Args:
        model: maps ids (B, N) to logits (B, N, V) of the next symbol; on any device.
        vocabulary: the vocabulary of the model.
        samples: number of sentences.
        prompt: what each of them begins with.
        temperature: see `next_symbol_probabilities`, as are `top_k` and `top_p`.
        top_k: largest number of symbols to draw from.
        top_p: share of the probability to draw from.
        seed: the seed of the random streams, zero or more.
        max_chars: longest sentence in characters, the prompt included. None: the longest that the model reads
            with its end symbol, or, where it has no limit, the longest it was trained on (``model.context``).

    Returns:
        The sentences, prompts included, without end symbols.

    Raises:
        UsageError: the prompt holds an unknown character or is longer than a sentence may be; `max_chars` is
            more than the model reads, or None where the model states neither; the model predicts nan.
        ValueError: `temperature`, `top_k` or `top_p` is out of its range.
    """
    longest = _longest_sentence(model, max_chars)
    opening = _encode_prompt(prompt, vocabulary, longest)
    streams = [np.random.default_rng((seed, i)) for i in range(samples)]
    sentences = [list(opening) for _ in range(samples)]
    unfinished = list(range(samples)) if len(opening) < longest else []
    device = next(model.parameters()).device
    with eval_mode(model):
        while unfinished:
            ids = torch.tensor([[vocabulary.end_id, *sentences[i]] for i in unfinished], device=device)
            logits = model(ids)[:, -1]
            probabilities = next_symbol_probabilities(logits, temperature, top_k=top_k, top_p=top_p).cpu()
            uniform = torch.tensor([streams[i].random() for i in unfinished], dtype=torch.float64)
            drawn = draw(probabilities, uniform).tolist()
            for i, symbol in zip(unfinished, drawn, strict=True):
                if symbol != vocabulary.end_id:
                    sentences[i].append(symbol)
            unfinished = [
                i
                for i, symbol in zip(unfinished, drawn, strict=True)
                if symbol != vocabulary.end_id and len(sentences[i]) < longest
            ]
    return [vocabulary.decode(ids) for ids in sentences]


def next_symbol_probabilities(
    logits: Float[Tensor, "B V"], temperature: float = 1.0, *, top_k: int | None = None, top_p: float | None = None
) -> Float[Tensor, "B V"]:
    r"""Return the distribution that the next symbol is drawn from, in float64.

    .. math:: p_v \propto e^{l_v / T} \text{ for the symbols that are kept, and } 0 \text{ for the others}

    The order is temperature, `keep_top_k`, `keep_top_p`; each works on the renormalised distribution of the one
    before.

    Args:
        logits: l, of any floating type.
        temperature: T; 0 is the limit, all mass on the likeliest symbol (of equals the one with the least id).
        top_k: keep so many of the likeliest symbols; None keeps all.
        top_p: then keep the likeliest that hold this share; None keeps all.

    Raises:
        UsageError: a logit is nan or infinite.
        ValueError: a negative temperature, or see `keep_top_k` and `keep_top_p`.
    """
    if not temperature >= 0:
        raise ValueError(f"temperature={temperature}: it must be zero or more")
    if not torch.isfinite(logits).all():
        raise UsageError("the model's predictions are not finite, so there is nothing to draw: its training diverged")
    logits = logits.double()
    # Relative to the largest, which then stays 0 however small the temperature is.
    logits = logits - logits.amax(-1, keepdim=True)
    if temperature == 0:
        probabilities = nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    else:
        probabilities = (logits / temperature).softmax(-1)
    if top_k is not None:
        probabilities = keep_top_k(probabilities, top_k)
    if top_p is not None:
        probabilities = keep_top_p(probabilities, top_p)
    return probabilities


def keep_top_k(probabilities: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """Keep the k likeliest symbols, of equals those with the least ids, and renormalise.

    Raises:
        ValueError: k is less than 1.
    """
    if k < 1:
        raise ValueError(f"top_k={k}: it must be at least 1")
    order = probabilities.argsort(dim=-1, descending=True, stable=True)
    return _keep(probabilities, order, torch.arange(probabilities.shape[-1], device=order.device) < k)


def keep_top_p(probabilities: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Keep the smallest set of symbols whose mass reaches p, at least one, and renormalise.

    Raises:
        ValueError: p is not above 0 and at most 1.

    References: Holtzman et al. 2020, "The curious case of neural text degeneration", eq. 2-3, arXiv 1904.09751.
    """
    if not 0 < p <= 1:
        raise ValueError(f"top_p={p}: it must be above 0 and at most 1")
    if p == 1:
        return probabilities  # a sum rounded up to 1 would cut the least likely symbols off
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    likelier = nn.functional.pad(ordered.cumsum(-1)[..., :-1], (1, 0))
    return _keep(probabilities, order, likelier < p)


def draw(probabilities: Float[Tensor, "B V"], uniform: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Draw a symbol from each row by inverting its cumulative distribution.

    Args:
        probabilities: rows that sum to one up to rounding.
        uniform: a number in [0, 1) for each row.
    """
    cumulative = probabilities.cumsum(-1)
    # Scaled by the computed total rather than 1, so that a symbol of probability 0 is never drawn.
    return torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]


def _keep(probabilities: Tensor, order: Tensor, kept: Tensor) -> Tensor:
    """Zero the symbols whose place in `order` is not `kept`, and renormalise."""
    mask = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, kept.expand_as(order))
    probabilities = probabilities * mask
    return probabilities / probabilities.sum(-1, keepdim=True)


def _longest_sentence(model: nn.Module, max_chars: int | None) -> int:
    """Return the longest sentence to draw, in characters."""
    limit = contracts.longest_input(model)
    if max_chars is None:
        longest = limit or contracts.context(model)
        if not isinstance(longest, int):
            raise UsageError(f"max_chars=null: {type(model).__name__} states no context to end at; give a number")
        return longest - 1
    if limit is not None and max_chars > limit - 1:
        raise UsageError(
            f"max_chars={max_chars}: the model reads at most {limit} tokens, the end symbol and {limit - 1} "
            f"characters; use max_chars={limit - 1} or less"
        )
    return max_chars


def _encode_prompt(prompt: str, vocabulary: Vocabulary, longest: int) -> list[int]:
    """Return the ids of the prompt's characters."""
    for place, character in enumerate(prompt, start=1):
        if character not in vocabulary.characters:
            raise UsageError(
                f"prompt={prompt!r}: character {place}, {character!r} (U+{ord(character):04X}), does not occur in "
                f"the training text; use {''.join(vocabulary.characters)!r} only"
            )
    if len(prompt) > longest:
        raise UsageError(f"the prompt has {len(prompt)} characters, more than the {longest} of a sentence: shorten it")
    return vocabulary.encode(prompt)
