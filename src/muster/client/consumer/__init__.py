"""The consumers, blocking and for asyncio."""
