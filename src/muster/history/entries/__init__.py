"""Raw records of `__consumer_offsets` as decoded entries, sorted by group. Pure."""
