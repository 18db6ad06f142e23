"""Writing records: batches by partition, sequences, retries, and the outcome of each record."""
