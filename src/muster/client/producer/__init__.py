"""The producers, blocking and for asyncio."""
