"""What is drawn at random and stored or published is the same on every processor and with any number of threads.

The same processor is asked to compute as others do: OpenBLAS and torch choose their code by these variables.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROCESSORS = {
    "Skylake": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "Haswell, two threads": {"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "avx2"},
    "Nehalem": {"OPENBLAS_CORETYPE": "Nehalem", "ATEN_CPU_CAPABILITY": "default"},
    "Zen, two threads": {"OPENBLAS_CORETYPE": "Zen", "OMP_NUM_THREADS": "2"},
}
DRAW = """
import sys
import numpy as np, torch
from time2decide.core.provenance import data_digest
from time2decide.forecasting.kernel_bank import KernelBank
from time2decide.forecasting.timepfn import TimePFN
from time2decide.markets.prior import random_market
from time2decide.markets.synthetic import synthetic_oracle, synthetic_returns
from time2decide.neural.models import build
from time2decide.qp import random_qp

qp = random_qp(20, 20, 16, kappa=(2.0, 5.0), seed=3)
market = random_market(12, 300, np.random.default_rng(5))
noisy = synthetic_returns("noisy", count=8, seed=7, cache=False)
windows = torch.from_numpy(noisy[0, 500:596].T.copy())
windows = (windows - windows.mean(1, keepdim=True)) / windows.std(1, keepdim=True)
torch.manual_seed(0)
weights = [w.detach().ravel() for w in (*build("LinearTransformer", 5, 3, d_model=32).parameters(),
                                        *TimePFN().parameters())]
bank = KernelBank()
np.savez(sys.argv[1], **{
    "LMC series": noisy,
    "training series": synthetic_returns("clean", "train", count=2, seed=1, cache=False),
    "oracle": synthetic_oracle("clean", turnover_l1=[0.5, 2.0], count=1, seed=2, cache=False),
    "prior of markets": np.stack([market.returns, market.mean]),
    "QPs": np.concatenate([part.numpy().ravel() for part in (qp.A, qp.b, qp.C, qp.d)]),
    "digest": np.frombuffer(bytes.fromhex(data_digest(noisy)), np.uint8),
    "float32 weights": torch.cat(weights).numpy(),
    "float32 kernel bank": torch.cat([bank.path_weights[0].ravel(), bank.floor, bank.log_determinant]).numpy(),
    "float32 forecasts of the bank": bank.means(windows, [(0, 1), (0, 4)]).numpy(),
})
"""
#: Of the largest number. Weights and the bank are stored in float32; the bank's forecasts are computed in it.
TOLERANCE = {"float32 weights": 2e-7, "float32 kernel bank": 2e-6, "float32 forecasts of the bank": 2e-5}


@pytest.mark.slow
def test_the_same_on_every_processor(tmp_path: Path) -> None:
    drawn = []
    for number, choice in enumerate(PROCESSORS.values()):
        file = tmp_path / f"{number}.npz"
        threads = {"OMP_NUM_THREADS": "1", "TIME2DECIDE_CACHE": str(tmp_path / f"cache {number}")}
        subprocess.run([sys.executable, "-c", DRAW, str(file)], check=True, env={**os.environ, **threads, **choice})
        drawn.append(dict(np.load(file)))
    for name, first in drawn[0].items():
        for other, processor in zip(drawn[1:], list(PROCESSORS)[1:], strict=True):
            bound = TOLERANCE.get(name, 1e-9) * np.abs(first).max()
            assert np.abs(other[name] - first).max() <= bound, (name, processor)
    assert any((one["LMC series"] != drawn[0]["LMC series"]).any() for one in drawn[1:])  # they did compute differently
