"""Learned QP solvers.

The paper's system: a problem as a sequence of tokens, transformers with softmax and with linear attention, an MLP and
an LSTM to compare with, data sets with exact answers, their training, and the measures of the paper plus the
optimality conditions. Beyond the paper: one network for every size (`EquivariantSolver`), whose answers the module
`polish` certifies; `solve_neural` is the way to it.
"""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "datasets": "PAPER_SEEDS LabelledQPs feasible_start labelled_qps paper_counts tokenise",
        "equivariant": "EquivariantConfig EquivariantSolver EquivariantTraining train_equivariant",
        "metrics": "evaluate histograms r2_score",
        "models": "ARCHITECTURES LSTM MLP LSTMConfig MLPConfig Transformer TransformerConfig build count_parameters "
        "load_model matched_width save_model",
        "solver": "solve_neural",
        "training": "TrainingConfig predict train",
    },
)
