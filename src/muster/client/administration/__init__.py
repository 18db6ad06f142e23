"""The parts of `AsyncAdmin`, by what they administer."""
