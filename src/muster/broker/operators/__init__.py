"""What operators look at: metrics, health, garbage collection."""
