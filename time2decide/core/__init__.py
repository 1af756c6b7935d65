"""What every other folder uses, once: input validation, atomic files, checkpoints, the cache, provenance, training."""
