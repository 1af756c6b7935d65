"""The same application on Ray Serve: replicas on as many machines as the cluster has.

    serve run time2decide.service.ray_app:ray_deployment

or ``ray_application(models, replicas=8)`` in a program of one's own. Needs ``pip install 'time2decide[serve]'
'ray[serve]'``. Ray gives its workers the lowest priority: where other work shares the machine, set
``RAY_worker_niceness=0`` before it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from time2decide.core.validation import InputError, expect, validate_count
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


def ray_deployment(arguments: dict[str, str]) -> Any:
    """Builder for the command ``serve run``: ``replicas=4 models=market``."""
    unknown = ", ".join(sorted(set(arguments) - {"models", "replicas"}))
    expect(not unknown, "arguments", "models and replicas", unknown)
    replicas = str(arguments.get("replicas", "1"))
    expect(replicas.isdecimal(), "replicas", "a whole number", repr(replicas))
    return ray_application(str(arguments.get("models", "market")).split(","), replicas=int(replicas))
