"""Options and commands of other toolkits, and their names in fusetk."""

import difflib
from collections.abc import Mapping

import click

from fusetk.cli.config_options import search_fields
from fusetk.config import fusetk_key, option_as_key, value_advice

# Names of options in other toolkits, and the options of fusetk that do the same. The advice names
# the first of these options that the command has.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "alpha": ("-n",),
    "ban_unk_token": ("--forbid-unknown",),
    "batch_size": ("--batch-tokens",),
    "beam": ("--beam",),
    "beam_search_stop": ("--stop",),
    "beam_size": ("--beam",),
    "beta": ("--coverage-penalty",),
    "block_ngram_repeat": ("--no-repeat-ngram",),
    "buffer_size": ("--chunk",),
    "chunk_size": ("--chunk",),
    "coverage_penalty": ("--coverage-penalty",),
    "cpu": ("--device cpu",),
    "cpu_threads": ("--threads", "--jobs"),
    "cuda": ("--device",),
    "device_id": ("--device",),
    "device_ids": ("--device",),
    "devices": ("--device",),
    "diverse_beam_groups": ("--groups",),
    "diverse_beam_strength": ("--diversity",),
    "dtype": ("--precision",),
    "ensemble_mode": ("--ensemble",),
    "force_decode": ("--prefix",),
    "fp16": ("--precision bf16",),
    "gemm_type": ("--precision int8",),
    "gpu": ("--device",),
    "gpu_ranks": ("--device",),
    "gpus": ("--device",),
    "greedy": ("--beam 1",),
    "input": ("--input",),
    "int8shiftAlphaAll": ("--precision int8",),
    "lang": ("--language",),
    "length_penalty": ("-n",),
    "length_penalty_alpha": ("-n",),
    "lenpen": ("-n",),
    "m": ("--run", "--runs"),
    "max_len_a": ("--max-length-factor",),
    "max_len_b": ("--max-length-extra",),
    "max_length": ("--max-length-factor 0 --max-length-extra",),
    "max_length_ratio": ("--max-length-factor",),
    "max_output_length": ("--max-length-factor 0 --max-length-extra",),
    "max_tokens": ("--batch-tokens",),
    "min_len": ("--min-length",),
    "min_length": ("--min-length",),
    "mini_batch": ("--batch-tokens",),
    "model": ("--run", "--model", "--runs"),
    "model_dir": ("--run", "--model"),
    "models": ("--model",),
    "n_best": ("--n-best",),
    "n_best_list": ("--n-best",),
    "nbest": ("--n-best",),
    "nbest_size": ("--n-best",),
    "no_progress_bar": ("--quiet",),
    "no_repeat_ngram_size": ("--no-repeat-ngram",),
    "num_shards": ("--shard",),
    "num_workers": ("--jobs", "--threads"),
    "output": ("--output", "--run"),
    "output_sampling": ("--sample",),
    "output_type": ("--json",),
    "path": ("--model",),
    "phrase_table": ("--replace-unknown",),
    "precision": ("--precision",),
    "prefix_size": ("--prefix",),
    "prevent_unk": ("--forbid-unknown",),
    "print_alignment": ("--alignment",),
    "quiet_translation": ("--quiet",),
    "random_sampling_temp": ("--temperature",),
    "random_sampling_topk": ("--top-k",),
    "random_sampling_topp": ("--top-p",),
    "ref": ("--reference",),
    "replace_unk": ("--replace-unknown",),
    "report_align": ("--alignment",),
    "run": ("--model", "--runs"),
    "runs": ("--model",),
    "sampling": ("--sample",),
    "sampling_topk": ("--top-k",),
    "sampling_topp": ("--top-p",),
    "save_dir": ("--run",),
    "save_model": ("--run",),
    "shard_id": ("--shard",),
    "source": ("--input",),
    "src": ("--input",),
    "tgt_file_prefix": ("--prefix",),
    "unnormalized": ("-n 0",),
    "use_cpu": ("--device cpu",),
    "vocabulary_threshold": ("--threshold",),
    "weights": ("--ensemble-weights",),
    "workers": ("--jobs", "--threads"),
}

# Options of other toolkits that count sentences. The options of fusetk count tokens.
COUNTS_SENTENCES = ("batch_size", "mini_batch")

CHECKPOINT = "use --set model.encoder.checkpoint=true and --set model.decoder.checkpoint=true"
LAYERS = "use --set model.encoder.layers=N and --set model.decoder.layers=N"
MAX_LENGTH = "the step filter in data.steps drops long pairs: {{step: filter, max_length: N}}"
HYPOTHESIS = "give the translations without an option: fusetk score HYP -r REF"
PREFIXES = "data.train lists prefixes; data.source and data.target are the suffixes of the files"
TORCHRUN = "torchrun --nproc-per-node N starts N processes"
CONFIG = "give the config without an option: fusetk {command} CONFIG"
CONFIG_OF_RUN = "give the config of the run without an option: fusetk {command} RUN/config.yaml"
CONFIG_COMMANDS = ("describe", "estimate", "prep", "run")
VOCABULARIES = "fusetk prep makes the vocabularies, and a run folder keeps them"
# Options without an equivalent in these commands, and the advice for each.
OTHER_ADVICE: Mapping[str, tuple[tuple[str, ...], str]] = {
    "after": (("train",), "training.stages.0.end has the keys epochs and updates"),
    "allow_unk": (("decode",), "it is the default; --forbid-unknown is the opposite"),
    "attn_debug": (("decode",), "fusetk plot-attention draws attention weights"),
    "bpe": (("decode",), "the run folder keeps the BPE codes, and decode applies them"),
    "c": (("train", "prep", "describe", "run", "estimate"), CONFIG),
    "checkpoints": (("average",), "--last N, --best N and --update U choose checkpoints of RUN"),
    "checkpoint_activations": (("train",), CHECKPOINT),
    "config": (("train", "prep", "run", "estimate"), CONFIG),
    "data_weighting": (("train",), "fusetk has no weights of sentences or words"),
    "dist": (("train",), TORCHRUN),
    "distributed_world_size": (("train", "decode"), TORCHRUN),
    "dry_run": (
        ("train",),
        "fusetk describe CONFIG --config prints all settings, fusetk estimate CONFIG the cost; "
        "fusetk run CONFIG --dry-run the steps; fusetk run CONFIG --smoke tests all steps",
    ),
    "dropout_src": (("train",), "fusetk has no dropout of source words"),
    "dropout_steps": (("train",), "give training.stages several stages, each with a dropout"),
    "dropout_trg": (("train",), "fusetk has no dropout of target words"),
    "gen_subset": (("decode",), "give the text to translate: fusetk decode -m RUN FILE"),
    "gradient_checkpointing": (("train",), CHECKPOINT),
    "guided_alignment": (("train",), "fusetk has no guided alignment"),
    "i": (("score",), HYPOTHESIS),
    "input": (("score",), HYPOTHESIS),
    "json_input": (("decode",), "the input is plain text; --constraints FILE has its constraints"),
    "layers": (("train",), LAYERS),
    "learning_rate_reduce_num_not_improved": (
        ("train",),
        "schedule: plateau lowers the rate after each worse validation",
    ),
    "lm_path": (("decode",), "fusetk has no language models"),
    "log_file": (("train",), "the log is always written to log.txt in the run folder"),
    "m": (CONFIG_COMMANDS, CONFIG_OF_RUN),
    "max_length": (("train", "prep"), MAX_LENGTH),
    "max_length_crop": (("train", "prep"), MAX_LENGTH),
    "maxi_batch": (("train", "decode"), "decode sorts --chunk lines, and train the complete epoch"),
    "mini_batch_fit": (("train",), "the key training.stages.0.batch.size of the config is exact"),
    "model": (CONFIG_COMMANDS, CONFIG_OF_RUN),
    "multi_node": (("train",), "torchrun starts the processes on each host: see --help"),
    "no_shuffle": (("train",), "training.seed and the epoch always determine the order of batches"),
    "normalize": (("train",), "it is a key of the config: use --set decoding.normalize=VALUE"),
    "num_gpus": (("train", "decode"), TORCHRUN),
    "num_layers": (("train",), LAYERS),
    "optimizer_params": (("train",), "training.stages.0.optimizer has these numbers as keys"),
    "output": (("prep",), "it is a key of the config: use --set data.folder=VALUE"),
    "overwrite": (("train",), "training resumes; to start again, choose another --run"),
    "post_process": (("decode",), "subwords are always joined"),
    "prepared_data": (("train",), "the key data.folder of the config names the prepared data"),
    "ratio": (("decode",), "fusetk has no such stop condition; see --stop"),
    "remove_bpe": (("decode",), "subwords are always joined"),
    "reset_optimizer": (
        ("train",),
        "training.start_from=RUN starts a new training with the weights of another run",
    ),
    "restrict_lexicon": (("decode",), "fusetk has no lexical shortlists"),
    "run": (CONFIG_COMMANDS, CONFIG_OF_RUN),
    "score_reference": (("decode",), "use fusetk rescore"),
    "share_embeddings": (
        ("train",),
        "model.tie=all, with data.vocabulary.joint=true, shares them with the output projection",
    ),
    "shortlist": (("decode",), "fusetk has no lexical shortlists"),
    "shuffle_in_ram": (("train",), "only the order of the pairs is in memory"),
    "source": (("train", "prep"), PREFIXES),
    "source_factors": (("train", "prep"), "fusetk has no source factors"),
    "source_lang": (("decode", "rescore"), "the run folder knows its languages"),
    "stepwise_penalty": (("decode",), "fusetk applies penalties to complete hypotheses"),
    "sync_sgd": (("train",), "all devices always make one update together"),
    "sys": (("score",), HYPOTHESIS),
    "target": (("train", "prep"), PREFIXES),
    "target_lang": (("decode", "rescore"), "the run folder knows its languages"),
    "task": (("train", "decode"), "the key model.kind of the config chooses the model"),
    "tgt": (("decode",), "use --prefix FILE for given beginnings, or fusetk rescore for scores"),
    "tied_embeddings_src": (("train",), "model.tie is none, target or all"),
    "tokenizer": (("decode",), "the run folder keeps the text steps, and decode applies them"),
    "type": (("train",), "it is a key of the config: use --set model.kind=VALUE"),
    "unkpen": (
        ("decode",),
        "there is no penalty for unknown words; --forbid-unknown excludes them",
    ),
    "v": (("train", "decode", "rescore", "prep"), "progress is printed by default"),
    "verbose": (("train", "decode", "rescore", "prep"), "progress is printed by default"),
    "vocab": (("train", "decode", "rescore"), VOCABULARIES),
    "vocabs": (("train", "decode", "rescore"), VOCABULARIES),
    "workspace": (("train", "decode"), "memory is allocated as needed"),
    "world_size": (("train", "decode"), TORCHRUN),
}

COMMANDS: Mapping[str, str] = {
    "apply-bpe": "text apply-bpe",
    "detokenize": "text detokenize",
    "eval": "score",
    "evaluate": "score",
    "generate": "decode",
    "help": "--help",
    "interactive": "decode",
    "learn-bpe": "text learn-bpe",
    "mbr": "decode --mbr",
    "plot": "plot-attention",
    "prepare": "prep",
    "preprocess": "prep",
    "sacrebleu": "score",
    "tokenize": "text tokenize",
    "translate": "decode",
}


def option_advice(name: str, context: click.Context) -> str | None:
    """Return advice about an option of another toolkit; None if the option is unknown."""
    command = context.command
    key = fusetk_key(name)
    known = {option for parameter in command.params for option in parameter.opts}
    for option in OPTIONS.get(option_as_key(name), ()):
        if option.partition(" ")[0] in known:
            counts_sentences = option_as_key(name) in COUNTS_SENTENCES
            return f"use {option}{' (it counts tokens)' if counts_sentences else ''}"
    commands, advice = OTHER_ADVICE.get(option_as_key(name), ((), ""))
    if command.name in commands:
        return advice.format(command=command.name)
    if key is None and option_as_key(name) in search_fields():
        key = f"decoding.{option_as_key(name)}"
    if key is None:
        return None
    setting = f"--set {key}" if "=" in key else f"--set {key}=VALUE"
    setting += value_advice(name)
    if "--set" in known:
        return f"it is a key of the config: use {setting}"
    if key.startswith("decoding."):
        # `max_source_length` is an option of no command.
        is_option = command.name != "decode" and key.partition(".")[2] in search_fields()
        other = "fusetk decode has this option; for other commands, " if is_option else ""
        return f"{other}set the key {key} in the config.yaml of the run"
    config_command = "prep" if key.startswith("data.") else "train"
    return f"it is a key of the config: use fusetk {config_command} CONFIG {setting}"


def similar_command(name: str, known: Mapping[str, str]) -> str | None:
    """Return the command of fusetk that ``name`` probably means; None if no name is similar."""
    near = difflib.get_close_matches(name, [*known, *COMMANDS], 1)
    return COMMANDS.get(near[0], near[0]) if near else None
