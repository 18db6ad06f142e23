"""Commands that administer topics, groups, configs, records and replicas."""
