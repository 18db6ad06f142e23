"""Commands that change: topics, groups, configs, records, replicas."""
