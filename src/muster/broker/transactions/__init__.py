"""The transaction coordinator on the event loop: its shards, the markers that it sends, the verification of records."""
