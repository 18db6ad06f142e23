"""The messages as tables of facts, and the generator that makes classes and codecs from them."""
