"""Speed and accuracy against peers, in one run on one machine.

Each module has ``rows(quick)``, which returns JSON-able rows. Peers are timed interleaved and the median of many
rounds is taken, because machines are noisy; a ratio is only ever formed from times of the same run.
"""
