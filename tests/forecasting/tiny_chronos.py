"""Small Chronos-Bolt and Chronos-2 models with random weights."""

from importlib import import_module

import torch

from time2decide.forecasting.chronos import ChronosBackbone

_DECILES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
_SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
_PATCHES = {"context_length": 96, "input_patch_size": 8, "input_patch_stride": 8, "quantiles": _DECILES}
_PATCHES["use_reg_token"] = True


def tiny_chronos(kind):
    """A small Chronos-Bolt ("bolt") or Chronos-2 ("2"); ``backbone.model.save_pretrained(folder)`` keeps it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ChronosBackbone({"bolt": _bolt, "2": _two}[kind](), name=f"tiny-chronos-{kind}").eval()


def _bolt():
    settings = import_module("transformers").T5Config(
        **_SIZES,
        num_decoder_layers=1,
        feed_forward_proj="relu",
        decoder_start_token_id=0,
        pad_token_id=0,
        initializer_factor=0.05,
        architectures=["ChronosBoltModelForForecasting"],
        chronos_pipeline_class="ChronosBoltPipeline",
        chronos_config={**_PATCHES, "prediction_length": 16},
    )
    return import_module("chronos.chronos_bolt").ChronosBoltModelForForecasting(settings)


def _two():
    settings = import_module("chronos.chronos2.config").Chronos2CoreConfig(
        **_SIZES,
        architectures=["Chronos2Model"],
        chronos_pipeline_class="Chronos2Pipeline",
        chronos_config={**_PATCHES, "output_patch_size": 8, "use_arcsinh": True, "max_output_patches": 1},
    )
    return import_module("chronos.chronos2").Chronos2Model(settings)
