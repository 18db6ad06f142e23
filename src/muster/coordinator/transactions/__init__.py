"""The rules of transactions: producer ids and epochs, the state of each transactional id, and what its records say."""
