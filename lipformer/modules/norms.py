"""Normalisation over the features of each token."""

from torch import nn


class LayerNorm(nn.LayerNorm):
    r"""Zero mean and unit variance over the features of a token, then a learned scale and shift.

    .. math:: y = \gamma \odot \frac{x - \mu(x)}{\sqrt{\sigma^2(x) + \epsilon}} + \beta

    Shape: ``(B, N, D) -> (B, N, D)``.

    References: Ba, Kiros, Hinton 2016, arXiv 1607.06450, eq. 4.
    """


class RMSNorm(nn.RMSNorm):
    r"""Unit root mean square over the features of a token, then a learned scale.

    .. math:: y = \gamma \odot \frac{x}{\sqrt{\tfrac1D \lVert x \rVert_2^2 + \epsilon}}

    Shape: ``(B, N, D) -> (B, N, D)``.

    References: Zhang, Sennrich 2019, arXiv 1910.07467, eq. 4.
    """


class NoNorm(nn.Identity):
    """The identity: a block without normalisation.

    Shape: ``(B, N, D) -> (B, N, D)``.
    """
