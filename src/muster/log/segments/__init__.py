"""One segment's files and its indexes, and lookups across segments: offsets, leader epochs."""
