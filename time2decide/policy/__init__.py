"""Decision networks: network, episodes, losses, training, fine-tuning, the public model and its explanation.

The paper's own model stands beside ours (`paper_model`, `paper_training`).
"""

from time2decide.core import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "model": "Decision Time2Decide",
        "paper_model": "PaperModel PaperModelConfig PaperModelStrategy",
        "paper_training": "PaperModelTraining train_paper_model",
    },
)
