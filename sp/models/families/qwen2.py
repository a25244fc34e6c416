"""qwen2: the dense Qwen2 and Qwen2.5 architecture: biases on q, k and v, no norms of heads, RoPE over halves.

Source: Qwen Team, "Qwen2 Technical Report", 2024, and "Qwen2.5 Technical Report", 2024.
"""

from __future__ import annotations

from sp.models.families.base import Architecture, register_architecture
from sp.models.layer.spec import LayerSpec

register_architecture(
    Architecture(
        "qwen2",
        LayerSpec(qk_norm=False, bias=True),
        ("qwen2", "deepseek-r1-qwen"),
        about="the dense Qwen2 and Qwen2.5 architecture",
    )
)
