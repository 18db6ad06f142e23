"""What a query reports: progress, finished batches, Prometheus."""
