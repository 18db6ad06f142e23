"""Numbers for operators: families of samples, how Prometheus wants them written, the port where they are read."""
