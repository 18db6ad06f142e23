"""A session with ZooKeeper: the only room of zookeeper/ that does I/O by itself."""
