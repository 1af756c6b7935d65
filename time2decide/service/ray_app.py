"""The same application on Ray Serve: replicas on as many machines as the cluster has.

    serve run time2decide.service.ray_app:deployment

or ``ray_application(models, replicas=8)`` in a program of one's own. Needs ``pip install 'time2decide[serve]'
'ray[serve]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from time2decide.core.validation import InputError, validate_count
from time2decide.service.app import Limits, make_app


def ray_application(models: Sequence[str] = ("market",), limits: Limits | None = None, *, replicas: int = 1) -> Any:
    """A Ray Serve application of `replicas` processes with the models each, for `ray.serve.run`."""
    validate_count("replicas", replicas)
    try:
        from ray import serve
    except ImportError:
        raise InputError("ray: expected Ray Serve to be installed, found none; pip install 'ray[serve]'") from None
    chosen = tuple(models)

    class Decisions:
        """A replica; the application is made in it, so that no model is sent."""

    replica: Any = serve.ingress(lambda: make_app(chosen, limits))(Decisions)
    return serve.deployment(num_replicas=replicas)(replica).bind()


def deployment(arguments: dict[str, str]) -> Any:
    """Builder for the command ``serve run``: ``replicas=4 models=market``."""
    models = arguments.get("models", "market").split(",")
    return ray_application(models, replicas=int(arguments.get("replicas", "1")))
