# SPDX-License-Identifier: MIT
"""Methods that Tokens and a cache's entries share: the functions of engines.py for one result."""


def damage_of(n, is_image):
    """Returns what is damaged, as the command prints it; "" if nothing is."""
    if n and is_image:
        return "the image is damaged: what could not be decoded is a guess"
    return f"{n} damaged frame{' was' if n == 1 else 's were'} replaced by the one before" if n else ""


class Adapters:
    damage = property(lambda self: damage_of(self.damaged_frames, self.is_image), doc='Words; "" for none.')
    picture = property(lambda self: self.is_image, doc="The name that is_image had in 0.2.")

    def to_vllm(self, **about):
        """Returns engines.to_vllm() of this result."""
        from .engines import to_vllm

        return to_vllm(self, **about)

    def to_sglang(self, **about):
        """Returns engines.to_sglang() of this result."""
        from .engines import to_sglang

        return to_sglang(self, **about)

    def to_transformers(self, **about):
        """Returns engines.to_transformers() of this result."""
        from .engines import to_transformers

        return to_transformers(self, **about)

    def save_ec(self, path, hash):
        """Calls engines.save_ec(): writes PATH/hash/encoder_cache.safetensors for vLLM's EC
        connector."""
        from .engines import save_ec

        return save_ec(self, path, hash)
