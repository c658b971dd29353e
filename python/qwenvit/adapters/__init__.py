# SPDX-License-Identifier: MIT
"""What hands tokens to other packages. Each module here says who uses it; nothing in the rest of
qwenvit needs one. Tokens and a cache's entries have the methods of Adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._check import Path


class Adapters:
    """The functions of engines.py as methods of one result."""

    @property
    def damage(self: Any) -> str:
        """What is damaged, as the command prints it; "" for nothing."""
        n: int = self.damaged_frames
        if n and self.is_image:
            return "the image is damaged: what could not be decoded is a guess"
        return f"{n} damaged frame{' was' if n == 1 else 's were'} replaced by the one before" if n else ""

    def to_vllm(self, **about: Any) -> dict[str, Any]:
        """Returns engines.to_vllm() of this result."""
        from .engines import to_vllm

        return to_vllm(self, **about)

    def to_sglang(self, **about: Any) -> dict[str, Any]:
        """Returns engines.to_sglang() of this result."""
        from .engines import to_sglang

        return to_sglang(self, **about)

    def to_transformers(self, **about: Any) -> dict[str, Any]:
        """Returns engines.to_transformers() of this result."""
        from .engines import to_transformers

        return to_transformers(self, **about)

    def save_ec(self, path: Path, hash: str) -> str:
        """Calls engines.save_ec(): writes PATH/hash/encoder_cache.safetensors for vLLM's EC
        connector."""
        from .engines import save_ec

        return save_ec(self, path, hash)
