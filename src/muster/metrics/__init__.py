"""Numbers for operators: families of samples, their encoding for Prometheus, and the port that serves them."""
