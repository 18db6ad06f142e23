"""Where the records come from: a running cluster, or a folder of segment files."""
