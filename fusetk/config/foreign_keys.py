"""Keys and options of other toolkits, and the keys of fusetk that do the same."""

# Foreign names and the keys of fusetk. `=` and a value follow a key if the foreign name implies
# the value.
FOREIGN_KEYS = {
    # training
    "after_batches": "training.stages.0.end.updates",
    "after_epochs": "training.stages.0.end.epochs",
    "arch": "model.kind",
    "batch_size": "training.stages.0.batch.size",
    "best_checkpoint_metric": "training.validation.metric",
    "bf16": "training.precision=bf16",
    "clip_norm": "training.stages.0.clip",
    "disp_freq": "training.log_every",
    "dropout": "model.dropout",
    "early_stopping": "training.stages.0.end.patience",
    "ema_decay": "training.ema",
    "epochs": "training.stages.0.end.epochs",
    "exponential_smoothing": "training.ema",
    "fp16": "training.precision=fp16",
    "label_smoothing": "training.label_smoothing",
    "learning_rate": "training.stages.0.schedule.peak",
    "log_interval": "training.log_every",
    "lr": "training.stages.0.schedule.peak",
    "lr_warmup": "training.stages.0.schedule.warmup",
    "max_epoch": "training.stages.0.end.epochs",
    "max_epochs": "training.stages.0.end.epochs",
    "max_tokens": "training.stages.0.batch.size",
    "max_update": "training.stages.0.end.updates",
    "max_updates": "training.stages.0.end.updates",
    "mini_batch": "training.stages.0.batch.size",
    "optimizer": "training.stages.0.optimizer.kind",
    "optimizer_delay": "training.stages.0.batch.accumulate",
    "patience": "training.stages.0.end.patience",
    "save_freq": "training.save_every",
    "save_interval_updates": "training.save_every",
    "seed": "training.seed",
    "share_all_embeddings": "model.tie=all",
    "share_decoder_input_output_embed": "model.tie=target",
    "tied_embeddings": "model.tie=target",
    "tied_embeddings_all": "model.tie=all",
    "train_steps": "training.stages.0.end.updates",
    "transformer_dropout": "model.dropout",
    "update_freq": "training.stages.0.batch.accumulate",
    "valid_freq": "training.validation.every_updates",
    "valid_metrics": "training.validation.metric",
    "valid_steps": "training.validation.every_updates",
    "validate_interval": "training.validation.every_epochs",
    "validate_interval_updates": "training.validation.every_updates",
    "warmup": "training.stages.0.schedule.warmup",
    "warmup_updates": "training.stages.0.schedule.warmup",
    # data
    "destdir": "data.folder",
    "source_lang": "data.source",
    "target_lang": "data.target",
    "testpref": "data.test",
    "train_sets": "data.train",
    "trainpref": "data.train",
    "valid_sets": "data.valid",
    "validpref": "data.valid",
    # model
    "dec_depth": "model.decoder.layers",
    "decoder_layers": "model.decoder.layers",
    "dim_emb": "model.width",
    "enc_depth": "model.encoder.layers",
    "encoder_embed_dim": "model.width",
    "encoder_layers": "model.encoder.layers",
    # search
    "beam": "decoding.beam",
    "beam_size": "decoding.beam",
    "length_penalty": "decoding.normalize",
    "lenpen": "decoding.normalize",
    "max_len_a": "decoding.max_length_factor",
    "max_len_b": "decoding.max_length_extra",
    "nbest": "decoding.n_best",
}


def fusetk_key(name: str) -> str | None:
    """Return the key for what another toolkit calls ``name`` (a key or an option), or None."""
    return FOREIGN_KEYS.get(option_as_key(name))


def option_as_key(name: str) -> str:
    """Return the name of an option as a key: ``--batch-size`` becomes ``batch_size``."""
    return name.lstrip("-").replace("-", "_")
