"""Names that a user may know from other toolkits or from papers, and those of fusetk."""

# Foreign names and the keys of fusetk. `=` and a value follow a key if the foreign name implies
# the value.
FOREIGN_KEYS = {
    # training
    "accum_count": "training.stages.0.batch.accumulate",
    "adam_betas": "training.stages.0.optimizer.betas",
    "after_batches": "training.stages.0.end.updates",
    "after_epochs": "training.stages.0.end.epochs",
    "arch": "model.kind",
    "batch_size": "training.stages.0.batch.size",
    "best_checkpoint_metric": "training.validation.metric",
    "bf16": "training.precision=bf16",
    "checkpoint_interval": "training.save_every",
    "clip_norm": "training.stages.0.clip",
    "disp_freq": "training.log_every",
    "dropout": "model.dropout",
    "early_stopping": "training.stages.0.end.patience",
    "ema_decay": "training.ema",
    "epochs": "training.stages.0.end.epochs",
    "exponential_smoothing": "training.ema",
    "finetune_from_model": "training.start_from",
    "fp16": "training.precision=fp16",
    "initial_learning_rate": "training.stages.0.schedule.peak",
    "keep_best_checkpoints": "training.keep_best",
    "keep_checkpoint": "training.keep_last",
    "keep_interval_updates": "training.keep_last",
    "keep_last_epochs": "training.keep_last",
    "label_smoothing": "training.label_smoothing",
    "learning_rate": "training.stages.0.schedule.peak",
    "log_interval": "training.log_every",
    "lr": "training.stages.0.schedule.peak",
    "lr_warmup": "training.stages.0.schedule.warmup",
    "max_checkpoints": "training.keep_last",
    "max_epoch": "training.stages.0.end.epochs",
    "max_epochs": "training.stages.0.end.epochs",
    "max_num_checkpoint_not_improved": "training.stages.0.end.patience",
    "max_num_epochs": "training.stages.0.end.epochs",
    "max_tokens": "training.stages.0.batch.size",
    "max_update": "training.stages.0.end.updates",
    "max_updates": "training.stages.0.end.updates",
    "mini_batch": "training.stages.0.batch.size",
    "optimizer": "training.stages.0.optimizer.kind",
    "optimizer_delay": "training.stages.0.batch.accumulate",
    "patience": "training.stages.0.end.patience",
    "params": "training.start_from",
    "pretrained_model": "training.start_from",
    "report_every": "training.log_every",
    "restore_file": "training.start_from",
    "save_checkpoint_steps": "training.save_every",
    "save_freq": "training.save_every",
    "save_interval_updates": "training.save_every",
    "seed": "training.seed",
    "share_all_embeddings": "model.tie=all",
    "share_decoder_input_output_embed": "model.tie=target",
    "tied_embeddings": "model.tie=target",
    "tied_embeddings_all": "model.tie=all",
    "train_from": "training.start_from",
    "train_steps": "training.stages.0.end.updates",
    "transformer_dropout": "model.dropout",
    "update_freq": "training.stages.0.batch.accumulate",
    "valid_freq": "training.validation.every_updates",
    "valid_metrics": "training.validation.metric",
    "valid_steps": "training.validation.every_updates",
    "validate_interval": "training.validation.every_epochs",
    "validate_interval_updates": "training.validation.every_updates",
    "validate_every": "training.validation.every_updates",
    "warmup": "training.stages.0.schedule.warmup",
    "warmup_steps": "training.stages.0.schedule.warmup",
    "warmup_updates": "training.stages.0.schedule.warmup",
    # data
    "bpe_codes": "data.bpe.codes",
    "bpe_dropout": "data.bpe.dropout",
    "destdir": "data.folder",
    "joined_dictionary": "data.vocabulary.joint=true",
    "nwordssrc": "data.vocabulary.size",
    "nwordstgt": "data.vocabulary.size",
    "share_vocab": "data.vocabulary.joint=true",
    "shared_vocab": "data.vocabulary.joint=true",
    "source_lang": "data.source",
    "src_vocab": "data.vocabulary.source",
    "srcdict": "data.vocabulary.source",
    "target_lang": "data.target",
    "testpref": "data.test",
    "tgt_vocab": "data.vocabulary.target",
    "tgtdict": "data.vocabulary.target",
    "thresholdsrc": "data.vocabulary.threshold",
    "thresholdtgt": "data.vocabulary.threshold",
    "train_sets": "data.train",
    "trainpref": "data.train",
    "valid_sets": "data.valid",
    "validpref": "data.valid",
    # model
    "dec_depth": "model.decoder.layers",
    "decoder_layers": "model.decoder.layers",
    "dim_emb": "model.width",
    "decoder_ffn_embed_dim": "model.ffn",
    "enc_depth": "model.encoder.layers",
    "encoder_attention_heads": "model.heads",
    "encoder_embed_dim": "model.width",
    "encoder_ffn_embed_dim": "model.ffn",
    "encoder_layers": "model.encoder.layers",
    "heads": "model.heads",
    "hidden_size": "model.width",
    "rnn_size": "model.width",
    "transformer_dim_ffn": "model.ffn",
    "transformer_ff": "model.ffn",
    "transformer_heads": "model.heads",
    "weight_tying_type": "model.tie",
    "word_vec_size": "model.width",
    # search
    "beam": "decoding.beam",
    "beam_size": "decoding.beam",
    "length_penalty": "decoding.normalize",
    "lenpen": "decoding.normalize",
    "max_len_a": "decoding.max_length_factor",
    "max_len_b": "decoding.max_length_extra",
    "nbest": "decoding.n_best",
}

# Systems of papers, and the kinds of their fusions.
SYSTEM_KINDS = {"gtrans": "groups", "mlrf": "attention", "rtal": "tree"}
# Foreign names whose values differ from those of the key, and how to compute the value of the key.
FOREIGN_VALUES = {"exponential_smoothing": "one minus Marian's number"}


def fusetk_key(name: str) -> str | None:
    """Return the key for what another toolkit calls ``name`` (a key or an option), or None."""
    return FOREIGN_KEYS.get(option_as_key(name))


def value_advice(name: str) -> str:
    """Return the addition to the advice about a name whose values differ from those of the key.

    The text is empty for other names.
    """
    value = FOREIGN_VALUES.get(option_as_key(name))
    return f"; its value is {value}" if value else ""


def option_as_key(name: str) -> str:
    """Return the name of an option as a key: ``--batch-size`` becomes ``batch_size``."""
    return name.lstrip("-").replace("-", "_")
