"""Record batches and message sets: build, read, check, compress."""
