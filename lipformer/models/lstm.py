"""A recurrent model of characters, to compare Transformers with: embedding, LSTM layers, a linear unembedding."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.dropout import Dropout
from lipformer.options.model import LSTMOptions

GATES = 4
"""The gates in the order in which torch stacks their rows: input, forget, cell, output."""


class CharLSTM(nn.Module):
    r"""Long short-term memory over characters.

    .. math:: c_t = \sigma(f_t) \odot c_{t-1} + \sigma(i_t) \odot \tanh(g_t), \qquad
              h_t = \sigma(o_t) \odot \tanh(c_t)

    with i, f, g, o affine in x_t and h_{t-1}; a layer's h are the next one's x. States are zero before the first token.

    Initial weights: each gate's recurrent matrix is orthogonal; those of the inputs and the unembedding are Xavier
    uniform; embeddings are normal with deviation 1, as the Transformer's; biases are zero, except the forget gates'.

    Args:
        vocabulary_size: symbols that can be read and predicted, V.
        width: features of a token and of a layer's state, D.
        depth: layers.
        context: longest sequence trained on, N; it reads longer ones too.
        dropout: probability of dropping a feature of a layer's output.
        forget_bias: initial bias of the forget gates.

    Raises:
        ValueError: ``dropout`` is outside [0, 1), or `forget_bias` is not a number.

    References: Hochreiter, Schmidhuber 1997; Gers, Schmidhuber, Cummins 2000 (forget gate); Jozefowicz, Zaremba,
    Sutskever 2015, sec. 4 (its bias of 1); Saxe, McClelland, Ganguli 2014, arXiv 1312.6120 (orthogonal weights).
    """

    caveat = "no theorem here: gates multiply states"

    def __init__(
        self,
        vocabulary_size: int,
        *,
        width: int,
        depth: int,
        context: int,
        dropout: float = 0.0,
        forget_bias: float = LSTMOptions.forget_bias,
    ):
        super().__init__()
        LSTMOptions.check(forget_bias=forget_bias)
        self.context = context
        self.width = width
        self.embedding = nn.Embedding(vocabulary_size, width)
        # torch's own dropout is between layers; the dropout after the last layer is separate.
        self.lstm = nn.LSTM(width, width, depth, batch_first=True, dropout=dropout if depth > 1 else 0.0)
        self.dropout = Dropout(dropout)
        self.unembedding = nn.Linear(width, vocabulary_size)
        self._initialise(forget_bias)

    def _initialise(self, forget_bias: float) -> None:
        nn.init.normal_(self.embedding.weight)
        nn.init.xavier_uniform_(self.unembedding.weight)
        nn.init.zeros_(self.unembedding.bias)
        with torch.no_grad():
            for name, parameter in self.lstm.named_parameters():
                gates = parameter.view(GATES, self.width, -1)
                if name.startswith("weight_hh"):
                    for gate in gates:
                        nn.init.orthogonal_(gate)
                elif name.startswith("weight_ih"):
                    for gate in gates:
                        nn.init.xavier_uniform_(gate)
                else:
                    nn.init.zeros_(parameter)
                    if name.startswith("bias_ih"):  # torch adds two biases; one of them is enough
                        gates[1].fill_(forget_bias)

    def embed(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        """Return the embedded tokens."""
        return self.embedding(ids)

    def trunk(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Map embedded tokens to the states of the last layer."""
        return self.dropout(self.lstm(x)[0])

    def encode(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        """Return the states of the last layer."""
        return self.trunk(self.embed(ids))

    def forward(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N V"]:
        """Return the logits of the next symbol at each position."""
        return self.unembedding(self.encode(ids))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Infinite: there is no theorem here for a product of gates and states.

        Args:
            p: 2, ``math.inf`` or "mixed".
            length: has no effect.
        """
        parse_norm(p)
        return torch.tensor(math.inf, dtype=torch.float64)
