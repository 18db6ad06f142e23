"""A session with ZooKeeper: the only package of zookeeper/ that does I/O itself."""
