# SPDX-License-Identifier: MIT
"""Makes whole models with random weights around a tower's config, as small as possible, for scripts
that need the language model too."""
import torch
import transformers

# model_type: transformers' class, and what its text config needs besides the sizes
MOE = {"head_dim": 10, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
       "mlp_only_layers": [], "decoder_sparse_step": 1}
HYBRID = {"head_dim": 20, "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
          "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"] * 2,
          "num_experts": 4,
          "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 20, "indexer_budget": 64,
           "indexer_compress_ratio": 4}
WHOLE = {
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", {}),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", {}),
    "qwen2_5_omni": ("Qwen2_5OmniThinkerForConditionalGeneration", {}),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", {"head_dim": 10}),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", MOE),
    "qwen3_omni_moe": ("Qwen3OmniMoeThinkerForConditionalGeneration", MOE),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", HYBRID),
    "glm4v": ("Glm4vForConditionalGeneration", {}),
    "qwen4_exp": ("Qwen4ExpForConditionalGeneration", {**HYBRID, **INDEXER}),
}


def make_config(config, vocab_size, ids):
    """Returns transformers' config (4.57 or 5.x) of a whole model around the tower of a
    config.json. ids: image_token_id, video_token_id, vision_start_token_id, vision_end_token_id."""
    name, extra = WHOLE[config["model_type"]]
    config = config.get("thinker_config", config)
    vision = {k: v for k, v in config["vision_config"].items() if k != "dtype"}
    hidden = vision.get("out_hidden_size") or vision["hidden_size"]
    text = {"hidden_size": hidden, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 48, "vocab_size": vocab_size, "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 0, "max_position_embeddings": 32768, **extra}
    partial = 0.5 if "layer_types" in extra else 1
    angles = int(partial * text.get("head_dim", hidden // 2)) // 2
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": partial,
            "mrope_section": [angles - 2 * (angles // 3), angles // 3, angles // 3]}
    if transformers.__version__ >= "5":
        text["rope_parameters"] = rope
    else:
        text.update(rope_scaling=rope, rope_theta=rope["rope_theta"])
    # the names of the Omni models
    ids = {**ids, **{k.replace("_id", "_index"): v for k, v in ids.items()}}
    if "Omni" in name:  # the tower for sound is as small as possible
        ids["audio_config"] = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2,
                               "encoder_ffn_dim": 16, "output_dim": hidden}
    config_class = getattr(transformers, name).config_class
    return config_class(text_config=text, vision_config=vision, architectures=[name], **ids)


def make_model(config):
    """Returns the model of such a config."""
    torch.manual_seed(3)
    return getattr(transformers, config.architectures[0])(config).eval()
