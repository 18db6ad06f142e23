"""One workload, what is counted and recorded while it runs, and what the results must satisfy."""
