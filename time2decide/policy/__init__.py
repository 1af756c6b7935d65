"""How to decide: the policy, the public model, its decisions; and the paper's own model."""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "model": "Time2Decide",
        "paper_model": "PaperModel PaperModelConfig PaperModelStrategy",
        "paper_training": "PaperModelTraining train_paper_model",
    },
)
