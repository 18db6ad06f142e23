"""Rules of a cluster of muster's brokers: controller, leaders, topics, and groups kept in ZooKeeper. Pure."""
