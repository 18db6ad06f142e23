"""Batches on their way into the log: checked, recompressed, given their offsets and times. Nothing here does I/O."""
