"""Options and commands of other toolkits, and their names in fusetk."""

import difflib
from collections.abc import Mapping

import click

from fusetk.config import fusetk_key, option_as_key, value_advice

# Names of options in other toolkits, and the options of fusetk that do the same. The advice names
# the first of these options that the command has.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "batch_size": ("--batch-tokens",),
    "beam": ("--beam",),
    "beam_size": ("--beam",),
    "cpu_threads": ("--threads", "--jobs"),
    "cuda": ("--device",),
    "device_id": ("--device",),
    "device_ids": ("--device",),
    "devices": ("--device",),
    "diverse_beam_groups": ("--groups",),
    "diverse_beam_strength": ("--diversity",),
    "fp16": ("--precision bf16",),
    "gpu": ("--device",),
    "gpu_ranks": ("--device",),
    "gpus": ("--device",),
    "input": ("--input",),
    "lang": ("--language",),
    "length_penalty": ("-n",),
    "length_penalty_alpha": ("-n",),
    "lenpen": ("-n",),
    "m": ("--run", "--model"),
    "max_len_a": ("--max-length-factor",),
    "max_len_b": ("--max-length-extra",),
    "max_length": ("--max-length-extra",),
    "max_output_length": ("--max-length-extra",),
    "max_tokens": ("--batch-tokens",),
    "mini_batch": ("--batch-tokens",),
    "model": ("--run", "--model"),
    "model_dir": ("--run", "--model"),
    "models": ("--model",),
    "n_best_list": ("--n-best",),
    "nbest": ("--n-best",),
    "no_progress_bar": ("--quiet",),
    "nbest_size": ("--n-best",),
    "no_repeat_ngram_size": ("--no-repeat-ngram",),
    "num_workers": ("--jobs", "--threads"),
    "output_type": ("--json",),
    "path": ("--model",),
    "print_alignment": ("--alignment",),
    "quiet_translation": ("--quiet",),
    "random_sampling_temp": ("--temperature",),
    "random_sampling_topk": ("--top-k",),
    "random_sampling_topp": ("--top-p",),
    "ref": ("--reference",),
    "replace_unk": ("--replace-unknown",),
    "sampling": ("--sample",),
    "sampling_topk": ("--top-k",),
    "sampling_topp": ("--top-p",),
    "save_dir": ("--run",),
    "save_model": ("--run",),
    "src": ("--input",),
    "workers": ("--jobs", "--threads"),
}

TORCHRUN = "torchrun --nproc-per-node N starts N processes"
# Options that these commands of fusetk do not need, and the reason.
NEEDLESS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "c": (
        ("train", "prep", "describe", "run", "estimate"),
        "give the config without an option: fusetk {command} CONFIG",
    ),
    "config": (
        ("train", "prep", "run", "estimate"),
        "give the config without an option: fusetk {command} CONFIG",
    ),
    "log_file": (("train",), "the log is always written to log.txt in the run folder"),
    "no_shuffle": (("train",), "training.seed and the epoch always determine the order of batches"),
    "task": (("train", "decode"), "the key model.kind of the config chooses the model"),
    "bpe": (("decode",), "the run folder keeps the BPE codes, and decode applies them"),
    "tokenizer": (
        ("decode",),
        "the run folder keeps the text steps, and decode applies them",
    ),
    "source_lang": (("decode", "rescore"), "the run folder knows its languages"),
    "target_lang": (("decode", "rescore"), "the run folder knows its languages"),
    "gen_subset": (("decode",), "give the text to translate: fusetk decode -m RUN FILE"),
    "prepared_data": (("train",), "the key data.folder of the config names the prepared data"),
    "overwrite": (("train",), "training resumes; to start again, choose another --run"),
    "world_size": (("train", "decode"), TORCHRUN),
    "distributed_world_size": (("train", "decode"), TORCHRUN),
    "num_gpus": (("train", "decode"), TORCHRUN),
    "multi_node": (("train",), "torchrun starts the processes on each host: see --help"),
    "sync_sgd": (("train",), "all devices always make one update together"),
    "shuffle_in_ram": (("train",), "only the order of the pairs is in memory"),
    "mini_batch_fit": (("train",), "the key training.stages.0.batch.size of the config is exact"),
    "workspace": (("train", "decode"), "memory is allocated as needed"),
    "maxi_batch": (("train", "decode"), "decode sorts --chunk lines, and train the complete epoch"),
    "remove_bpe": (("decode",), "subwords are always joined"),
    "post_process": (("decode",), "subwords are always joined"),
    "verbose": (("train", "decode", "rescore", "prep"), "progress is printed by default"),
    "v": (("train", "decode", "rescore", "prep"), "progress is printed by default"),
    "vocab": (
        ("train", "decode", "rescore"),
        "fusetk prep makes the vocabularies, and a run folder keeps them",
    ),
    "vocabs": (
        ("train", "decode", "rescore"),
        "fusetk prep makes the vocabularies, and a run folder keeps them",
    ),
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
            return f"use {option}"
    commands, reason = NEEDLESS.get(option_as_key(name), ((), ""))
    if command.name in commands:
        return reason.format(command=command.name)
    if key is None:
        return None
    setting = f"--set {key}" if "=" in key else f"--set {key}=VALUE"
    setting += value_advice(name)
    if "--set" in known:
        return f"it is a key of the config: use {setting}"
    if key.startswith("decoding."):
        return "it is an option of fusetk decode"
    config_command = "prep" if key.startswith("data.") else "train"
    return f"it is a key of the config: use fusetk {config_command} CONFIG {setting}"


def similar_command(name: str, known: Mapping[str, str]) -> str | None:
    """Return the command of fusetk that ``name`` probably means; None if no name is similar."""
    near = difflib.get_close_matches(name, [*known, *COMMANDS], 1)
    return COMMANDS.get(near[0], near[0]) if near else None
