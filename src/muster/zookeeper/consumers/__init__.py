"""The consumers of schemes 1 and 2, blocking and for asyncio."""
