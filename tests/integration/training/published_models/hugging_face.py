"""Small models of Hugging Face's transformers with random weights, and the rows that they are trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from tests.integration.training.models.zoo import declare_torchvision
from tests.integration.training.published_models import rows
from tests.integration.training.published_models.published import Published
from tests.integration.training.published_models.rows import CLASSES, DTYPE, WORDS

_TEXT = {"vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
_ENCODER = {
    **_TEXT, "intermediate_size": 12, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "pad_token_id": 0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_DECODER = {**_TEXT, "intermediate_size": 12, "max_position_embeddings": 16, "pad_token_id": 0}
_GROUPED = {**_DECODER, "num_key_value_heads": 1, "head_dim": 4, "attention_dropout": 0.0}
_PICTURE = {
    "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 12, "image_size": 16,
    "patch_size": 8, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_CLIP_PART = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
_CLASSIFIER = "ForSequenceClassification"
_LABELS = {"num_labels": CLASSES}


def _made(family: str, head: str, settings: dict[str, Any], *, again: bool = False) -> Callable[[], nn.Module]:
    """`again`: with activation checkpointing by the library's own switch."""

    def make() -> nn.Module:
        declare_torchvision()
        import transformers

        transformers.logging.set_verbosity_error()
        config = getattr(transformers, f"{family}Config")(**settings)
        config._experts_implementation = "eager"  # torch's matrix products of groups take no double precision
        model = getattr(transformers, family + head)(config).to(DTYPE)
        if again:
            model.gradient_checkpointing_enable()
        return model

    return make


def _entry(family: str, head: str, data: Any, settings: dict[str, Any], **more: Any) -> Published:
    return Published(_made(family, head, settings), rows.parts_of(data), loss="model", **more)


def _classifier(family: str, **settings: Any) -> Published:
    return _entry(family, _CLASSIFIER, rows.classified_words, {**_ENCODER, **_LABELS, **settings})


def _language(family: str, head: str = "ForCausalLM", **settings: Any) -> Published:
    return _entry(family, head, rows.continued_words, {**_GROUPED, **settings}, counts="shifted labels")


def _of_pictures(family: str, head: str = "ForImageClassification", **settings: Any) -> Published:
    return _entry(family, head, rows.pictures(16, named=True), {**_PICTURE, **_LABELS, **settings})


HUGGING_FACE = {
    "bert": _classifier("Bert"),
    "bert_again": Published(
        _made("Bert", _CLASSIFIER, {**_ENCODER, **_LABELS}, again=True), rows.parts_of(rows.classified_words), "model"
    ),
    "xlm_roberta": Published(
        _made("XLMRoberta", _CLASSIFIER, {**_ENCODER, **_LABELS}),
        rows.parts_of(rows.with_targets(rows.classified_words)),
        "cross_entropy",
    ),
    "camembert": Published(
        _made("Camembert", "ForTokenClassification", {**_ENCODER, **_LABELS}),
        rows.parts_of(rows.with_targets(rows.tagged_words)),
        "cross_entropy",
        counts="targets",
    ),
    "roberta": _entry(
        "Roberta", "ForTokenClassification", rows.tagged_words, {**_ENCODER, **_LABELS}, counts="labels"
    ),
    "albert": _entry(
        "Albert", "ForMaskedLM", rows.masked_words, {**_ENCODER, "embedding_size": 6, "classifier_dropout_prob": 0.0},
        counts="labels",
    ),
    "distilbert": _entry(
        "DistilBert", "ForQuestionAnswering", rows.answered_words,
        {
            "vocab_size": WORDS, "dim": 8, "hidden_dim": 12, "n_layers": 3, "n_heads": 2, "dropout": 0.0,
            "attention_dropout": 0.0, "qa_dropout": 0.0, "max_position_embeddings": 16,
        },
    ),
    "electra": _entry(
        "Electra", "ForMaskedLM", rows.masked_words, {**_ENCODER, "embedding_size": 6}, counts="labels"
    ),
    "deberta_v2": _classifier(
        "DebertaV2", relative_attention=True, position_buckets=4, norm_rel_ebd="layer_norm", share_att_key=True,
        pos_att_type=["p2c", "c2p"], pooler_hidden_size=8, pooler_dropout=0.0,
    ),
    "deberta_v3": Published(
        _made("DebertaV2", _CLASSIFIER, {
            **_ENCODER, **_LABELS, "relative_attention": True, "position_buckets": 4, "pooler_hidden_size": 8,
            "pos_att_type": ["p2c", "c2p"], "pooler_dropout": 0.0,
        }),
        rows.parts_of(rows.with_targets(rows.classified_words)),
        "cross_entropy",
    ),
    "mpnet": _classifier("MPNet"),
    "xlnet": _entry(
        "XLNet", _CLASSIFIER, rows.classified_words,
        {
            "vocab_size": WORDS, "d_model": 8, "n_layer": 3, "n_head": 2, "d_inner": 12, "dropout": 0.0,
            "summary_last_dropout": 0.0, **_LABELS,
        },
    ),
    "modernbert": _entry(
        "ModernBert", "ForMaskedLM", rows.masked_words,
        {**_DECODER, "local_attention": 4, "global_attn_every_n_layers": 2, "bos_token_id": 1, "eos_token_id": 2,
         "cls_token_id": 1, "sep_token_id": 2},
        counts="labels",
    ),
    "gpt2": _entry(
        "GPT2", "LMHeadModel", rows.continued_words,
        {
            "vocab_size": WORDS, "n_embd": 8, "n_layer": 3, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.0,
            "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        },
        counts="shifted labels",
    ),
    "gpt_neox": _language("GPTNeoX", hidden_dropout=0.0, rotary_pct=0.5),
    "opt": _language(
        "OPT", ffn_dim=12, dropout=0.0, word_embed_proj_dim=6, bos_token_id=1, eos_token_id=2
    ),
    "bloom": _entry(
        "Bloom", "ForCausalLM", rows.continued_words,
        {"vocab_size": WORDS, "hidden_size": 8, "n_layer": 3, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2},
        counts="shifted labels",
    ),
    "llama": _language("Llama"),
    "llama_again": Published(
        _made("Llama", "ForCausalLM", _GROUPED, again=True), rows.parts_of(rows.continued_words), "model",
        counts="shifted labels",
    ),
    "mistral": _language("Mistral", sliding_window=4),
    "qwen2": _language("Qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "gemma2": _entry(
        "Gemma2", "ForCausalLM", rows.unpadded_words, {**_GROUPED, "sliding_window": 4, "query_pre_attn_scalar": 4},
        counts="shifted labels",
    ),
    "phi": _language("Phi", resid_pdrop=0.0, embd_pdrop=0.0, partial_rotary_factor=0.5),
    "falcon": _entry(
        "Falcon", "ForCausalLM", rows.continued_words,
        {**_DECODER, "num_kv_heads": 1, "hidden_dropout": 0.0, "alibi": False, "bos_token_id": 1, "eos_token_id": 2},
        counts="shifted labels",
    ),
    "mixtral": _language(
        "Mixtral", num_hidden_layers=6, num_local_experts=3, num_experts_per_tok=2, sliding_window=None
    ),
    "qwen2_moe": _entry(
        "Qwen2Moe", "ForCausalLM", rows.unpadded_words,
        {
            **_GROUPED, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6,
            "shared_expert_intermediate_size": 6, "output_router_logits": True,
        },
        counts="shifted labels", divided=False,
    ),
    "mamba": _entry(
        "Mamba", "ForCausalLM", rows.unpadded_words,
        {"vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 3, "state_size": 4, "time_step_rank": 2},
        counts="shifted labels",
    ),
    "rwkv": _entry(
        "Rwkv", "ForCausalLM", rows.unpadded_words,
        {
            "vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 3, "attention_hidden_size": 8,
            "intermediate_size": 12, "context_length": 16, "bos_token_id": 1, "eos_token_id": 2,
        },
        counts="shifted labels",
    ),
    "t5": _entry(
        "T5", "ForConditionalGeneration", rows.continued_words,
        {
            "vocab_size": WORDS, "d_model": 8, "d_ff": 12, "d_kv": 4, "num_layers": 2, "num_heads": 2,
            "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0,
        },
        counts="labels",
    ),
    "bart": _entry(
        "Bart", "ForConditionalGeneration", rows.continued_words,
        {
            "vocab_size": WORDS, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 12,
            "decoder_ffn_dim": 12, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0,
            "max_position_embeddings": 16, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
            "decoder_start_token_id": 2, "forced_eos_token_id": None,
        },
        counts="labels",
    ),
    "hf_vit": _of_pictures("ViT"),
    "deit": _of_pictures("DeiT"),
    "beit": _of_pictures("Beit", drop_path_rate=0.0, use_relative_position_bias=True),
    "dinov2": _of_pictures("Dinov2", drop_path_rate=0.0, mlp_ratio=2),
    "vit_mae": _entry("ViTMAE", "ForPreTraining", rows.restored_pictures, {
        **_PICTURE, "decoder_hidden_size": 8, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 12, "mask_ratio": 0.5,
    }),
    "hf_swin": _entry(
        "Swin", "ForImageClassification", rows.pictures(16, named=True),
        {
            "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 2], "num_heads": [1, 2], "window_size": 4,
            "drop_path_rate": 0.0, **_LABELS,
        },
    ),
    "convnextv2": _entry(
        "ConvNextV2", "ForImageClassification", rows.pictures(16, named=True),
        {"patch_size": 2, "num_stages": 2, "hidden_sizes": [4, 8], "depths": [1, 2], "image_size": 16, **_LABELS},
    ),
    "segformer": _entry(
        "Segformer", "ForSemanticSegmentation", rows.segmented_pictures(16, named=True),
        {
            "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [4, 8],
            "patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0,
            "drop_path_rate": 0.0, "decoder_hidden_size": 8, **_LABELS,
        },
    ),
    "wav2vec2": _entry(
        "Wav2Vec2", _CLASSIFIER, rows.sounds,
        {
            "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
            "conv_dim": [4, 4], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0,
            "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "layerdrop": 0.0,
            "apply_spec_augment": False, "classifier_proj_size": 6, **_LABELS,
        },
    ),
    "whisper": _entry(
        "Whisper", "ForConditionalGeneration", rows.spoken_words,
        {
            "vocab_size": WORDS, "num_mel_bins": 8, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12,
            "max_source_positions": rows.LENGTH, "max_target_positions": 16, "dropout": 0.0, "attention_dropout": 0.0,
            "activation_dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        counts="labels",
    ),
    "clip": _entry(
        "CLIP", "Model", rows.captioned_pictures,
        {
            "projection_dim": 6,
            "text_config": {
                **_CLIP_PART, "vocab_size": WORDS, "max_position_embeddings": 16, "eos_token_id": WORDS - 1,
                "bos_token_id": 1, "pad_token_id": 0,
            },
            "vision_config": {**_CLIP_PART, "image_size": 16, "patch_size": 8},
        },
        divided=False,
    ),
}  # fmt: skip
