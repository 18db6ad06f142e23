"""Writing records: batches by partition, sequences, retries, and what became of each record."""
