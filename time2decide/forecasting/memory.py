"""Outlooks that are asked for more than once: several networks walk over the same windows."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np

from time2decide.forecasting.outlook import Outlook, outlook


class RememberedOutlooks:
    """`outlook` that keeps its latest answers, by the content of the windows."""

    def __init__(self, most: int = 4096) -> None:
        self.most = most
        self._seen: OrderedDict[bytes, Outlook] = OrderedDict()

    def __call__(self, windows: np.ndarray) -> Outlook:
        content = hashlib.blake2b(np.ascontiguousarray(windows).tobytes(), digest_size=16)
        content.update(repr(windows.shape).encode())
        key = content.digest()
        if key in self._seen:
            self._seen.move_to_end(key)
        else:
            self._seen[key] = outlook(windows)
            if len(self._seen) > self.most:
                self._seen.popitem(last=False)
        return self._seen[key]
