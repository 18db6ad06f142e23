"""One segment's files and its indexes, and what is looked up across segments: offsets, leader epochs."""
