"""Chronos-Bolt and Chronos-2 as backbones (`pip install time2decide[chronos]`).

Both cut every channel into patches, standardise it themselves and forecast quantiles. Chronos-Bolt encodes channels
one by one; Chronos-2 lets the channels of a window attend to each other, as one group. Weights are those of
`chronos-forecasting`: a folder made by ``save_pretrained`` or a name on the hub. `tiny_chronos` makes small models with
random weights, for tests and for training from scratch.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from time2decide.core.checkpoints import save_foreign
from time2decide.core.files import write_text
from time2decide.core.training import STATE, LoopConfig, Report, fit_model
from time2decide.core.validation import InputError, expect, validate_choice, validate_fields
from time2decide.forecasting.backbones import DECILES, BackboneOutput, backbone_outputs, load_backbone_weights
from time2decide.forecasting.pretraining import Pool, PretrainingConfig
from time2decide.forecasting.timepfn import TimePFNConfig
from time2decide.markets.oracle import WINDOW


class ChronosBackbone(nn.Module):
    """A Chronos model; `window` is what it will be shown, at most its context length."""

    def __init__(self, model: Any, window: int = WINDOW, name: str = "chronos") -> None:
        super().__init__()
        self.model, self.window, self.name = model, window, name
        settings = model.chronos_config
        self.grouped = hasattr(settings, "output_patch_size")  # Chronos-2
        self.horizon = int(settings.output_patch_size if self.grouped else settings.prediction_length)
        self.levels = tuple(float(level) for level in settings.quantiles)
        self.width = int(model.config.d_model)
        expect(window <= settings.context_length, "window", f"at most {settings.context_length} steps", window)
        with torch.inference_mode():
            self.tokens = self.encode(torch.arange(float(window))[None, :, None]).tokens.shape[2]

    def encode(self, window: Tensor) -> BackboneOutput:
        """Tokens of the context (and of the future, for Chronos-2), median and quantiles."""
        batch, _, count = window.shape
        with backbone_outputs(self.model.encoder) as seen:
            predicted = self._run(window).quantile_preds
        hidden = seen[0][0]  # (batch · N, tokens, width)
        quantiles = predicted.reshape(batch, count, len(self.levels), self.horizon).permute(0, 2, 3, 1)
        middle = min(range(len(self.levels)), key=lambda k: abs(self.levels[k] - 0.5))
        return BackboneOutput(hidden.reshape(batch, count, *hidden.shape[1:]), quantiles[:, middle], quantiles)

    def loss(self, window: Tensor, target: Tensor) -> Tensor:
        """The model's own quantile loss on windows (batch, window, N) with what follows, (batch, horizon, N)."""
        future = target[:, : self.horizon].mT.flatten(0, 1)  # (batch · N, horizon)
        loss: Tensor = self._run(window, **{"future_target" if self.grouped else "target": future}).loss
        return loss

    def _run(self, window: Tensor, **options: Tensor) -> Any:
        """The model on every channel; with Chronos-2 the channels of one window form a group."""
        if self.grouped:
            batch, _, count = window.shape
            options["group_ids"] = torch.arange(batch, device=window.device).repeat_interleave(count)
        return self.model(window.mT.flatten(0, 1), **options)  # of (batch · N, time)


def load_chronos(place: str) -> ChronosBackbone:
    """The backbone of a folder or of a name on the hub, in evaluation mode."""
    load = _package().BaseChronosPipeline.from_pretrained
    pipeline = load_backbone_weights(place, "a Chronos model", "a name such as amazon/chronos-2", load)
    known = hasattr(pipeline.model, "chronos_config")
    expect(known, "backbone", "Chronos-Bolt or Chronos-2", f"{type(pipeline).__name__} at {place}")
    return ChronosBackbone(pipeline.model.float(), name=f"chronos:{place}").eval()


@dataclass(frozen=True)
class TinyChronos:
    """Sizes of a model with random weights."""

    kind: str = "bolt"  # or "2"
    width: int = 64
    layers: int = 2
    heads: int = 4
    feedforward: int = 128
    patch: int = 8
    horizon: int = 16  # a multiple of patch; Chronos-2 forecasts one patch at a time
    window: int = WINDOW
    seed: int = 0

    def __post_init__(self) -> None:
        validate_choice("kind", self.kind, ("bolt", "2"))


def tiny_chronos(config: TinyChronos | None = None) -> ChronosBackbone:
    """A small Chronos-Bolt or Chronos-2 with random weights; ``backbone.model.save_pretrained(folder)`` keeps it."""
    config = config or TinyChronos()
    sizes = {
        "d_model": config.width,
        "d_kv": config.width // config.heads,
        "d_ff": config.feedforward,
        "num_layers": config.layers,
        "num_heads": config.heads,
        "dropout_rate": 0.0,
    }
    patches = {
        "context_length": config.window,
        "input_patch_size": config.patch,
        "input_patch_stride": config.patch,
        "quantiles": list(DECILES),
        "use_reg_token": True,
    }
    make = {"bolt": _tiny_bolt, "2": _tiny_two}[config.kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = make(config, sizes, patches)
    return ChronosBackbone(model, config.window, name=f"tiny-chronos-{config.kind}").eval()


@dataclass(frozen=True)
class ChronosTraining:
    """Recipe: a Chronos model trained on LMC windows by its own quantile loss."""

    steps: int = 1_500
    lr: float = 2e-3  # highest rate of OneCycle
    batch: int = 8  # windows of 16 channels
    pool: int = 128  # LMC series kept
    seed: int = 0

    def __post_init__(self) -> None:
        validate_fields(self, count="steps batch pool", positive="lr")


def train_chronos(
    backbone: ChronosBackbone, config: ChronosTraining, out_dir: str | Path, *, report: Report | None = None
) -> ChronosBackbone:
    """Train or fine-tune `backbone` in place on LMC windows, clean and noisy, and write it as its package does.

    Resumable; ``chronos:OUT_DIR`` then names it.
    """
    folder = Path(out_dir)
    shares: dict[str, Any] = {"multiplicative_share": 0.0, "rescaled_share": 0.0, "noisy_share": 0.5}
    sizes = TimePFNConfig(window=backbone.window, horizon=backbone.horizon)
    pool = Pool(
        PretrainingConfig(
            batch=config.batch, channels=16, positions=16, pool=config.pool, seed=config.seed, model=sizes, **shares
        )
    )

    def loss(step: int) -> Tensor:
        batch = pool.batch(step)
        return backbone.loss(batch.window, batch.target)

    loop = LoopConfig.of(config, optimiser="adam", schedule="one_cycle", clip_norm=1.0)
    settings = {"training": asdict(config), "model": backbone.name}
    done = fit_model(backbone, loss, loop, report, state=folder / STATE, settings=settings)
    save_foreign(folder, backbone.model.save_pretrained)
    notes = {"training": asdict(config), "start": backbone.name, "seconds": round(done.seconds)}
    write_text(folder / "training.json", json.dumps(notes, indent=2) + "\n")
    return backbone.eval()


def _tiny_bolt(config: TinyChronos, sizes: dict[str, Any], patches: dict[str, Any]) -> Any:
    _package()
    bolt, transformers = import_module("chronos.chronos_bolt"), import_module("transformers")
    settings = transformers.T5Config(
        **sizes,
        num_decoder_layers=config.layers,
        feed_forward_proj="relu",
        decoder_start_token_id=0,
        pad_token_id=0,
        initializer_factor=0.05,
        architectures=["ChronosBoltModelForForecasting"],
        chronos_pipeline_class="ChronosBoltPipeline",
        chronos_config={**patches, "prediction_length": config.horizon},
    )
    return bolt.ChronosBoltModelForForecasting(settings)


def _tiny_two(config: TinyChronos, sizes: dict[str, Any], patches: dict[str, Any]) -> Any:
    _package()
    two = import_module("chronos.chronos2")
    core = import_module("chronos.chronos2.config").Chronos2CoreConfig
    settings = core(
        **sizes,
        architectures=["Chronos2Model"],
        chronos_pipeline_class="Chronos2Pipeline",
        chronos_config={**patches, "output_patch_size": config.patch, "use_arcsinh": True, "max_output_patches": 1},
    )
    return two.Chronos2Model(settings)


def _package() -> Any:
    try:
        logging.getLogger("transformers").setLevel(logging.ERROR)
        return import_module("chronos")
    except ImportError:
        raise InputError(
            "backbone: expected the package chronos-forecasting (pip install time2decide[chronos]), found none"
        ) from None
