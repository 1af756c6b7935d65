"""Learned QP solvers.

The paper's system: a problem as a sequence of tokens, transformers with softmax and with linear attention, an MLP and
an LSTM to compare with, data sets with exact answers, their training, and the measures of the paper plus the
optimality conditions. Beyond the paper: one network for every size (`EquivariantSolver`), whose answers the module
`polish` certifies; `solve_neural` is the way to it.
"""

from time2decide.neural.datasets import PAPER_SEEDS, LabelledQPs, feasible_start, labelled_qps, paper_counts, tokenise
from time2decide.neural.equivariant import EquivariantConfig, EquivariantSolver
from time2decide.neural.equivariant_training import EquivariantTraining, train_equivariant
from time2decide.neural.metrics import evaluate, histograms, r2_score
from time2decide.neural.models import (
    ARCHITECTURES,
    LSTM,
    MLP,
    LSTMConfig,
    MLPConfig,
    Transformer,
    TransformerConfig,
    build,
    count_parameters,
    load_model,
    matched_width,
    save_model,
)
from time2decide.neural.solver import solve_neural
from time2decide.neural.training import TrainingConfig, predict, train

__all__ = [
    "ARCHITECTURES",
    "LSTM",
    "MLP",
    "PAPER_SEEDS",
    "EquivariantConfig",
    "EquivariantSolver",
    "EquivariantTraining",
    "LSTMConfig",
    "LabelledQPs",
    "MLPConfig",
    "TrainingConfig",
    "Transformer",
    "TransformerConfig",
    "build",
    "count_parameters",
    "evaluate",
    "feasible_start",
    "histograms",
    "labelled_qps",
    "load_model",
    "matched_width",
    "paper_counts",
    "predict",
    "r2_score",
    "save_model",
    "solve_neural",
    "tokenise",
    "train",
    "train_equivariant",
]
