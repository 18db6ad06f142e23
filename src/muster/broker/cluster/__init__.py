"""What a broker does as one of several on ZooKeeper."""
