"""Fields of a config that leave the cost unchanged, and may therefore stand in it without being interpreted.

The list is explicit. A field that is in none of these sets and is not read by its family is an error where its name
suggests a size (``SHAPE_WORDS``), and else a note beside the answer.
"""


def names(text: str) -> frozenset[str]:
    """Field names, written as a run of words."""
    return frozenset(text.split())


SHAPE_WORDS = (
    "layer", "head", "expert", "dim", "rank", "size", "window", "latent", "kv", "hidden", "width", "depth", "block",
    "group", "vocab", "embed", "attn", "attention", "mlp", "ffn", "moe", "channel", "kernel",
)  # fmt: skip
"""A field nobody reads is refused when a word of its name starts with one of these: it could change what is counted."""

HARMLESS = names(
    """architectures attention_dropout attention_probs_dropout_prob attn_implementation attn_pdrop auto_map
    bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward classifier_dropout
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample early_stopping embd_pdrop
    embedding_dropout encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_act hidden_activation
    activation_function activation hidden_dropout hidden_dropout_prob id2label initializer_range
    initializer_factor init_std is_decoder label2id layer_norm_eps layer_norm_epsilon layerdrop length_penalty
    max_length max_sequence_length min_length mlp_hidden_act model_max_length model_type name_or_path
    no_repeat_ngram_size norm_eps norm_epsilon num_beam_groups num_beams num_logits_to_keep num_return_sequences
    original_max_position_embeddings output_attentions output_hidden_states output_router_logits output_scores
    pad_token_id partial_rotary_factor prefix pretraining_tp problem_type pruned_heads qkv_dropout
    remove_invalid_values repetition_penalty resid_pdrop residual_dropout return_dict return_dict_in_generate
    rms_norm_eps rope_interleave rope_interleaved rope_local_base_freq rope_parameters rope_scaling rope_theta
    rotary_dim rotary_emb_base rotary_pct router_aux_loss_coef router_jitter_noise router_z_loss_coef
    scale_attn_weights sep_token_id suppress_tokens swiglu_alpha swiglu_limit task_specific_params temperature
    tf_legacy_loss tokenizer_class top_k top_p torchscript transformers_version typical_p unk_token_id
    unsloth_fixed unsloth_version use_bfloat16 use_cache use_mamba_kernels cache_implementation norm_topk_prob
    scoring_func routed_scaling_factor topk_group n_group topk_method ep_size seq_aux aux_loss_alpha
    quantization_config tie_encoder_decoder keys_to_ignore_at_inference use_mrope rotary"""
)  # token ids, rotary settings, dropout, initialisation, sampling defaults, bookkeeping: no weight, byte or FLOP

MTP = names(
    """num_nextn_predict_layers num_mtp_modules mtp_transformer_layers use_mtp mtp_num_hidden_layers
    mtp_use_dedicated_embeddings mtp_loss_scaling_factor mtp_layers_block_type mtp_hybrid_override_pattern"""
)  # draft modules for speculative decoding: an engine that serves without them does not load them

GRANITE_SCALES = names("embedding_multiplier logits_scaling residual_multiplier attention_multiplier")

MAMBA_HARMLESS = names(
    """mamba_expand mamba_chunk_size chunk_size expand time_step_floor time_step_max time_step_min time_step_limit
    time_step_rank residual_in_fp32 rescale_prenorm_residual mamba_hidden_act z_loss_coefficient attn_rotary_emb
    position_embedding_type normalization_function init_method mamba_dt_rank use_mambapy use_associative_scan
    moe_shared_expert_overlap attn_layer_period attn_layer_offset max_seq_len is_mamba2 mamba_dt_min mamba_dt_max
    mamba_dt_init_floor mamba_dt_softplus mamba_rms_norm rope_position_scale"""
)

WRAPPER_HARMLESS = HARMLESS | names(
    """image_token_id image_token_index video_token_id vision_start_token_id vision_end_token_id boi_token_index
    eoi_token_index boi_token_id eoi_token_id mm_tokens_per_image media_placeholder_token_id projector_hidden_act
    multimodal_projector_bias spatial_merge_size vision_feature_layer use_unified_vision_chunk video_placeholder
    ignore_index language_model_only audio_token_id boa_token_id eoa_token_id eoa_token_index
    vision_soft_tokens_per_image image_placeholder vision_token_id video_token_index projector_hidden_size
    image_seq_length process_image_mode img_token_compression_config understand_projector_stride im_end_token
    im_patch_token im_start_token image_token_len patch_token_len"""
)

TOWER_HARMLESS = names(
    """architectures attention_bias attention_dropout dropout dtype head_dim hidden_act image_size initializer_range
    layer_norm_eps model_type multi_modal_projector_bias norm_eps num_attention_heads num_heads pixel_shuffle_ratio
    projector_dropout rope_parameters rope_scaling rope_theta torch_dtype transformers_version vision_feature_layer
    vision_feature_select_strategy is_encoder_decoder default_output_length global_head_dim
    max_position_embeddings num_key_value_heads
    pooling_kernel_size standardize use_clipped_linears attention_chunk_size attention_context_left
    attention_context_right attention_invalid_logits_value attention_logit_cap gradient_clipping residual_weight
    tokens_per_second window_size fullatt_block_indexes in_chans init_pos_emb_time merge_type mm_projector_type
    pos_emb_type pos_emb_interpolation_mode projector_ln_eps projector_hidden_act text_hidden_size video_attn_type
    vt_num_attention_heads activation_func layer_scale_init_value ls_init_value heads use_cls_token use_ln_post
    use_ln_pre use_abs_posemb use_rope2d position_embedding_type img_token_compression_config"""
)
