"""Learned QP solvers.

The paper's system: a problem as a sequence of tokens, transformers with softmax and with linear attention, an MLP
and an LSTM to compare with, data sets with exact answers, one training loop that is deterministic and resumable,
and the measures of the paper plus the optimality conditions. Beyond the paper: one network for every size
(`EquivariantSolver`), whose answers the module `polish` certifies; `solve_neural` is the way to it.
"""

from time2decide.neural.architectures import ARCHITECTURES, build, count_parameters, matched_width
from time2decide.neural.baselines import LSTM, MLP, LSTMConfig, MLPConfig
from time2decide.neural.checkpoints import load_model, save_model
from time2decide.neural.datasets import PAPER_SEEDS, LabelledQPs, cache_dir, labelled_qps, paper_counts
from time2decide.neural.equivariant import EquivariantConfig, EquivariantSolver
from time2decide.neural.equivariant_training import EquivariantTraining, train_equivariant
from time2decide.neural.metrics import evaluate, histograms, r2_score
from time2decide.neural.solver import solve_neural
from time2decide.neural.tokens import feasible_start, tokenise
from time2decide.neural.training import TrainingConfig, TrainingState, predict, train
from time2decide.neural.transformers import Transformer, TransformerConfig

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
    "TrainingState",
    "Transformer",
    "TransformerConfig",
    "build",
    "cache_dir",
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
