"""SegFormer-B0 (Xie et al., 2021) with the all-MLP head for the 150 classes of ADE20K.

The architecture is the one of Hugging Face `transformers`, built from a configuration (nothing is
downloaded).  The output is the logits at a quarter of the input's resolution.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import SegformerConfig, SegformerForSemanticSegmentation

SIZE = 512
"""Side of the square input image."""

PARAMETERS = 3_752_694
"""Published number of parameters (3.75 M)."""

CLASSES = 150


class SegformerB0(nn.Module):
    """The segmenter: image in, [N, 150, H / 4, W / 4] logits out."""

    def __init__(self) -> None:
        super().__init__()
        config = SegformerConfig(
            depths=[2, 2, 2, 2],
            sr_ratios=[8, 4, 2, 1],
            hidden_sizes=[32, 64, 160, 256],
            num_attention_heads=[1, 2, 5, 8],
            mlp_ratios=[4, 4, 4, 4],
            decoder_hidden_size=256,
            num_labels=CLASSES,
            attn_implementation="eager",
        )
        self.model = SegformerForSemanticSegmentation(config)

    def forward(self, x: Tensor) -> Tensor:
        """Segment a batch of images."""
        return self.model(x, return_dict=False)[0]


def network() -> nn.Module:
    """The network with the library's initial weights."""
    return SegformerB0()
