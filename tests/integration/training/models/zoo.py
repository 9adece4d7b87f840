"""Models as libraries give them, small and with random weights, and rows for each: transformers, timm, torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

WORDS, LENGTH, CLASSES, ROWS = 101, 12, 5, 8
DTYPE = torch.float64
Parts = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A model, its data and its loss, as training.yaml names them."""

    model: Callable[[], nn.Module]
    data: Callable[[], Parts]
    loss: str


@cache
def declare_torchvision() -> None:
    """Declare the compiled operators of torchvision, whose wheel for GPUs does not load beside a torch without them.

    timm and transformers import it; none of these models calls its operators.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        import sys

        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")


def _transformers() -> Any:
    declare_torchvision()
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def _tokens(*, mask: bool = True, classes: bool = False) -> Callable[[], Parts]:
    """Padded token rows of different lengths; labels are the tokens, or one class per row."""

    def rows(seed: int) -> Parts:
        maker = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1, WORDS, (ROWS, LENGTH), generator=maker)
        lengths = torch.randint(3, LENGTH + 1, (ROWS, 1), generator=maker)
        valid = torch.arange(LENGTH) < lengths
        labels = torch.randint(0, CLASSES, (ROWS,), generator=maker) if classes else torch.where(valid, tokens, -100)
        given = {"input_ids": tokens, "labels": labels}
        return {**given, "attention_mask": valid.long()} if mask else given

    return lambda: {"train": rows(1), "test": rows(2)}


def _pictures(size: int, name: str | None = None) -> Callable[[], Parts]:
    """Random pictures. `name`: of the argument, beside `labels`; None for (inputs, targets)."""

    def rows(seed: int) -> Any:
        maker = torch.Generator().manual_seed(seed)
        pictures = torch.randn(ROWS, 3, size, size, generator=maker, dtype=DTYPE)
        labels = torch.randint(0, CLASSES, (ROWS,), generator=maker)
        return (pictures, labels) if name is None else {name: pictures, "labels": labels}

    return lambda: {"train": rows(1), "test": rows(2)}


def _words() -> Parts:
    maker = torch.Generator().manual_seed(1)
    words = torch.randint(0, WORDS, (ROWS, LENGTH), generator=maker)
    rows = (words, torch.randint(0, CLASSES, (ROWS,), generator=maker))
    return {"train": rows, "test": rows}


def _gpt2(*, tied: bool) -> nn.Module:
    own = _transformers()
    return own.GPT2LMHeadModel(
        own.GPT2Config(
            n_layer=4, n_embd=16, n_head=2, vocab_size=WORDS, n_positions=32, bos_token_id=0, eos_token_id=0,
            tie_word_embeddings=tied, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


def _llama(layers: int) -> nn.Module:
    own = _transformers()
    return own.LlamaForCausalLM(
        own.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=WORDS, max_position_embeddings=32, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def _bert() -> nn.Module:
    own = _transformers()
    return own.BertForSequenceClassification(
        own.BertConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2, vocab_size=WORDS,
            max_position_embeddings=32, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def _distilbert() -> nn.Module:
    own = _transformers()
    return own.DistilBertForSequenceClassification(
        own.DistilBertConfig(
            dim=16, hidden_dim=32, n_layers=4, n_heads=2, vocab_size=WORDS, max_position_embeddings=32,
            num_labels=CLASSES, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
        )
    )  # fmt: skip


def _vit() -> nn.Module:
    own = _transformers()
    return own.ViTForImageClassification(
        own.ViTConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2, image_size=16,
            patch_size=8, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def _t5() -> nn.Module:
    own = _transformers()
    return own.T5ForConditionalGeneration(
        own.T5Config(
            d_model=16, d_ff=32, d_kv=8, num_layers=2, num_heads=2, vocab_size=WORDS, decoder_start_token_id=0,
            pad_token_id=0, dropout_rate=0.0,
        )
    )  # fmt: skip


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        declare_torchvision()
        import timm

        return timm.create_model(name, num_classes=CLASSES, **options)

    return make


class Recurrent(nn.Module):
    """LSTMs over embedded words; the last output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 12)
        self.lstms = nn.ModuleList(nn.LSTM(12, 12, batch_first=True) for _ in range(4))
        self.hidden = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))
        self.classes = nn.Linear(12, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        outputs = self.words(words)
        for lstm in self.lstms:
            outputs, _ = lstm(outputs)
        last = outputs[:, -1]
        for hidden in self.hidden:
            last = last + torch.relu(hidden(last))
        return self.classes(last)


ZOO = {
    "gpt2": Entry(lambda: _gpt2(tied=True), _tokens(), "model"),
    "gpt2_untied": Entry(lambda: _gpt2(tied=False), _tokens(), "model"),
    "llama": Entry(lambda: _llama(4), _tokens(mask=False), "model"),
    "bert": Entry(_bert, _tokens(classes=True), "model"),
    "distilbert": Entry(_distilbert, _tokens(classes=True), "model"),
    "vit": Entry(_vit, _pictures(16, "pixel_values"), "model"),
    "t5": Entry(_t5, _tokens(), "model"),
    "resnet18": Entry(_timm("resnet18"), _pictures(32), "cross_entropy"),
    "convnext": Entry(_timm("convnext_atto"), _pictures(32), "cross_entropy"),
    "efficientnet_b0": Entry(_timm("efficientnet_b0"), _pictures(64), "cross_entropy"),
    "timm_vit": Entry(_timm("vit_tiny_patch16_224", img_size=32), _pictures(32), "cross_entropy"),
    "swin": Entry(
        _timm("swin_tiny_patch4_window7_224", img_size=56, drop_path_rate=0.0), _pictures(56), "cross_entropy"
    ),
    "densenet121": Entry(_timm("densenet121"), _pictures(64), "cross_entropy"),
    "lstm": Entry(Recurrent, _words, "cross_entropy"),
}
SMALL_LLAMA = Entry(lambda: _llama(2), _tokens(mask=False), "model")


def __getattr__(name: str) -> Callable[[], Any]:
    """`NAME` makes the model of the zoo, `NAME_data` its rows; so training.yaml can name them."""
    if name.removesuffix("_data") not in ZOO:
        raise AttributeError(name)
    entry = ZOO[name.removesuffix("_data")]
    return entry.data if name.endswith("_data") else lambda: entry.model().to(DTYPE)
