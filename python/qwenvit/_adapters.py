# SPDX-License-Identifier: MIT
"""What Tokens and entries of a cache share: the methods of engines.py, of one result."""


def damage_of(n, is_image):
    """As the command says it."""
    if n and is_image:
        return "the image is damaged: what could not be decoded is a guess"
    return f"{n} damaged frame{' was' if n == 1 else 's were'} replaced by the one before" if n else ""


class Adapters:
    damage = property(lambda self: damage_of(self.damaged_frames, self.is_image), doc='Words; "" for none.')
    picture = property(lambda self: self.is_image, doc="The name that is_image had in 0.2.")

    def to_vllm(self, **about):
        """engines.to_vllm() of this result alone."""
        from .engines import to_vllm

        return to_vllm(self, **about)

    def to_sglang(self, **about):
        """engines.to_sglang() of this result alone."""
        from .engines import to_sglang

        return to_sglang(self, **about)

    def to_transformers(self, **about):
        """engines.to_transformers() of this result alone."""
        from .engines import to_transformers

        return to_transformers(self, **about)

    def save_ec(self, path, hash):
        """engines.save_ec(): PATH/hash/encoder_cache.safetensors, for vLLM's EC connector."""
        from .engines import save_ec

        return save_ec(self, path, hash)
