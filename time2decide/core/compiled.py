"""numba, imported here and told: where nothing is stored yet, the first use of a kernel compiles it for seconds."""

from __future__ import annotations

import logging
from typing import Any

import numba as numba
from numba.core import event


class _Notice(event.Listener):
    """One line for each process that compiles something of ours; loading what is stored says nothing."""

    told = False

    def on_start(self, event: Any) -> None:
        module = event.data["dispatcher"].py_func.__module__
        if not self.told and module.startswith("time2decide."):
            self.told = True
            logging.getLogger("time2decide").warning(
                "time2decide compiles %s: up to a minute, once on this machine; later starts load the result", module
            )

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


event.register("numba:compile", _Notice())
