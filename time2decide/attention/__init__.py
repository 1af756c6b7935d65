"""Constructions: transformers whose weights are written down, one file per theorem, one loop.

`build` makes the algorithm of a named method on a batch of problems in one of three forms: ``literal`` (token
matrices, scores, feed-forward networks, as in the proofs), ``state`` (the same weights with the state KᵀV of linear
attention cached once per problem) and ``classical`` (the textbook iteration, the reference). `run` is the loop.
"""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(__name__, {"loop": "Algorithm Run run", "methods": "FORMS METHODS build"})
