"""Bills orders: each order of a topic is charged once, and its invoice goes to another topic."""
