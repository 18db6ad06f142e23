"""What happened to a group, and why: folds over its entries. Pure."""
