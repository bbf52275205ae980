"""Errors about options and configs: one style, without words of the libraries, with advice."""

import contextlib
import errno
import os
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from fusetk.__main__ import run
from fusetk.cli.foreign import option_advice
from fusetk.cli.main import COMMANDS, _system_error, main
from fusetk.config.foreign_keys import SYSTEM_KINDS
from fusetk.errors import ConfigError
from fusetk.fusion import FUSIONS
from fusetk.models import MODELS
from fusetk.models.attend import ATTENDS
from fusetk.models.connect import CONNECTIONS
from fusetk.models.residual import RESIDUALS
from fusetk.recipe import load
from tests.helpers.refusals import refused
from tools.manual import commands


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("decode -m a -b 0", "--beam: must be at least 1 and at most 1000000, but it is 0"),
        ("decode -m a -b x", "--beam: must be a whole number, but it is 'x'"),
        (
            "decode -m a --stop frist",
            "--stop: unknown value 'frist'; did you mean 'first'? known: exact, beam, first",
        ),
        (
            "decode -m a --top-p 1.5",
            "--top-p: must be greater than 0 and at most 1, but it is 1.5",
        ),
        ("decode -m a --bem 3", "unknown option --bem; did you mean --beam?"),
        ("decode -m a -y", "unknown option -y; fusetk decode --help lists the options"),
        ("decode -m a --n-best", "--n-best needs a value: --n-best N"),
        ("decode", "give --model RUN; fusetk decode --help lists the options"),
        ("decode -m a x -i y", "the input is given twice, as x and with -i: give it once"),
        ("decode -m a x y", "unexpected argument y; fusetk decode --help lists the options"),
        ("train", "give CONFIG: fusetk train CONFIG; fusetk train --help lists the options"),
        (f"train a.yaml -r {__file__}", f"--run: '{__file__}' is a file; give a folder"),
        ("score a -r b --metric bleu", "--metric: unknown value 'bleu'; did you mean 'sacrebleu'?"),
        ("text tokenise", "unknown command 'text tokenise'; did you mean tokenize?"),
        (
            "train a --dry-run",
            "unknown option --dry-run; fusetk describe CONFIG --config prints ",
        ),
        ("mbr -m a", "unknown command 'mbr'; did you mean `fusetk decode --mbr`?"),
        ("export -m a", "give --output DIR; fusetk export --help lists the options"),
        ("export -m a b", "b is given as an argument, and a with -m: give all runs in the same w"),
        ("ablate a b -i c -r d", "2 runs are given (a, b): give one run"),
        ("explore a b c", "3 runs are given (a, b, c): give one run or two runs"),
        ("explore", "give RUN [RUN2]: fusetk explore RUN [RUN2]; fusetk explore --help lists"),
        ("compare -m a -i b", "give RUN RUN2: fusetk compare RUN RUN2; fusetk compare --help"),
        ("plot-curves --run a", "unknown option --run; use --model"),
        ("train a -m b", "unknown option -m; use --run"),
        ("report -m a b", "unknown option -m; use --runs"),
        (
            "describe -m a",
            "unknown option -m; give the config of the run without an option: fusetk describe RUN/",
        ),
        ("average a", "give exactly one of --last, --best and --update"),
    ],
)
def test_usage_errors_have_the_style_of_the_others(words: str, said: str) -> None:
    assert refused(*words.split()).startswith(said)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.width=ten"], "model.width: must be a whole number, but it is 'ten'"),
        (["model.ffn=true"], "model.ffn: must be a whole number, but it is 'true'"),
        (["model.width="], "model.width: must be a whole number, but it is null"),
        (["training.ema=x"], "training.ema: must be a number or null, but it is 'x'"),
        (["training.label_smoothing=1.5"], "must be less than 1.0, but it is 1.5"),
        (["model.encoder.layers=0"], "model.encoder.layers: must be at least 1, but it is 0"),
        (["data.train=raw"], "data.train: must be a list, but it is 'raw': write [raw]"),
        (["data.steps=nfc"], "data.steps: must be a list, but it is 'nfc': write [{step: nfc}]"),
        (
            ["data.steps=[nfc]"],
            "must be a mapping of keys to values, but it is 'nfc': write {",
        ),
        (["data.test=raw"], "it is 'raw': write {NAME: [raw]} with any name"),
        (
            ["training.stages.0.weights=aux"],
            "training.stages.0.weights: must be a mapping of keys to values or null, but it is "
            "'aux'  [--set",
        ),
        (["training.stages=adam"], "training.stages: must be a list, but it is 'adam'  [--set"),
        (
            ["training.stages.0.optimizer.betas='0.9 0.98'"],
            "must be a list, but it is '0.9 0.98': write [0.9, 0.98]",
        ),
        (["model.encoder.fuse={kind:linear}"], "write a space after the colon: kind: linear"),
        (["model.encoder.fuse={kind:RTAL}"], "write a space after the colon: kind: RTAL"),
        (["data.steps=[outs:Step]"], "but it is 'outs:Step': write {step: outs:Step}"),
        (["model.encoder=outs:Plain"], "mapping of keys to values, but it is 'outs:Plain'  [--set"),
        (["model.encoder=outs.parts:plain"], "but it is 'outs.parts:plain'  [--set"),
        (
            ["model.encoder.fuse={outs:Plain, norm: false}"],
            "the key 'outs:Plain' has no value; write kind: outs:Plain",
        ),
        (["data.source=no"], "YAML reads no, off or false without quotes as false"),
        (["data.test={2016: [a]}"], 'must be text, but it is 2016: write it in quotes, "2016"'),
        (["training.stages=[]"], "training.stages: must have at least 1 item, but it has 0"),
        (["training.stages.3.batch=1"], "a list of 1 item; write the index 0 instead of '3'"),
        (
            ["training.stages.batch.size=100"],
            "write an index before 'batch', such as training.stages.0.batch.size=100",
        ),
        (
            ["data.valid=[a]", "data.valid.every=23"],
            "data.valid is a list of 1 item; replace the complete value: "
            "--set 'data.valid={every: 23}'",
        ),
        (["data.valid=[]", "data.valid.a.b=1"], "items; set all of it: --set 'data.valid=[...]'"),
        (["data.steps=[]", "data.steps.step=nfc"], "set all of it: --set 'data.steps=[...]'"),
        (["data.train.x=a"], "item; set all of it: --set 'data.train=[...]'"),
        (["model.norm=prenorm"], "unknown value 'prenorm'; did you mean 'pre'? known: post, pre"),
        (["data.steps=[tokenize]"], "it is 'tokenize': write {step: tokenize}"),
        (["data.steps=[{}]"], "data.steps.0: the key step must be given"),
        (["data.valid=3"], "must be a list or a mapping of keys to values with the key every or s"),
        (["data.valid={every: 1}"], "data.valid.every: must be at least 2, but it is 1"),
        (["data.valid={sampel: 1}"], "data.valid.sampel: unknown key; did you mean 'sample'?"),
        (["data.valid=[3]"], "data.valid.0: must be text, but it is 3"),
        (["data=x"], "data: must be a mapping of keys to values, but it is 'x'"),
        (["data.metric=x"], "data.metric: unknown key; known keys: source, target, "),
        (["model.layers=3"], "did you mean model.encoder.layers or model.decoder.layers?"),
        (["model.fuse=ffn"], "did you mean model.encoder.fuse or model.decoder.fuse?"),
        (["model.attend=top"], "model.attend: unknown key; did you mean model.decoder.attend?"),
        (["model.encoder.fuse={kind: last, hops: 3}"], "hops: unknown key; known keys: kind  ["),
        (
            ["model.decoder.fuse=mudd"],
            "model.decoder.fuse: 'mudd' is a kind of `connect`: write model.decoder.connect: mudd",
        ),
        (["model.decoder.connect.kind=transparent"], "write model.decoder.attend: transparent"),
        (["model.encoder.connect=transparent"], "write model.decoder.attend: transparent"),
        (["model.encoder.fuse=hyper"], "write model.encoder.residual: hyper"),
        (
            ["model.decoder.fuse=[mudd]"],
            "a fusion has one kind and cannot be a list: write one of last, ",
        ),
        (
            ["model.decoder.fuse=mlrf"],
            "'mlrf' is called 'attention', a kind of `fuse`: write model.decoder.fuse: attention",
        ),
        (["model.decoder.fuse=RTAL"], "write model.decoder.fuse: tree"),
        (["model.decoder.fuse={kind: rtal, leaves: 2}"], "write model.decoder.fuse.kind: tree"),
        (["model.encoder.fuse=DenseNMT"], "write model.encoder.connect: dense"),
        (
            ["model.kind=DTMT"],
            "model: 'DTMT' is called 'recurrent', a kind of `model`: write model.kind: recurrent",
        ),
        (["model.encoder.connect=none"], "unknown kind 'none'; did you mean 'last'?"),
        (["model.decoder.fuse={kind: none}"], "unknown kind 'none'; did you mean 'last'?"),
        (["model.decoder.attend=none"], "unknown kind 'none'; known kinds: top, "),
        (
            ["model.decoder.attend=dense"],
            "write model.decoder.attend: dense-concat or dense-sum",
        ),
        (["model.decoder.attend=DenseNMT"], "model.decoder.attend: dense-concat or dense-sum"),
        (["model.decoder.attend={kind: same_layer}"], "write model.decoder.attend.kind: layerwise"),
        (["model.decoder.fuse=FFN"], "unknown kind 'FFN'; did you mean 'ffn'?"),
        (["model.decoder.fuse=MUDDFormer"], "write model.decoder.connect: mudd"),
        (["model.encoder.layers=99999999999"], "layers: must be at most 10000, but it is 99999"),
        (["decoding.length_penalty=x"], "length_penalty: must be a number, but it is 'x'  [--set "),
        (["data.valid={every: 5, seed: 3}"], "data.valid: `every` excludes `seed`: write `every` "),
        (["data.valid={sample: 5, every: 3}"], "data.valid: `every` excludes `sample`: write "),
        (["model.encoder.attend=top"], "unknown key; did you mean model.decoder.attend?"),
        (["model.kind=conv"], "model.heads: unknown key; kind: conv has no such key; known keys: "),
        (
            ["model={kind: recurrent, encoder: {connect: dense}}"],
            "model.encoder.connect: unknown key; kind: recurrent has no such key; known keys: cell",
        ),
        (
            ["training.stages.0.schedule.kind=constant", "training.stages.0.schedule.rate=1"],
            "schedule.warmup: unknown key; kind: constant has no such key; known keys: kind, rate",
        ),
    ],
)
def test_config_errors_use_our_words(toy: Path, settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(toy, settings)
    text = str(caught.value)
    assert said in text
    assert not any(word in text for word in ("Input should", "Every:", "Sample:", "after valid"))


def test_names_of_systems_have_a_kind() -> None:
    kinds = {*MODELS, *FUSIONS, *CONNECTIONS, *RESIDUALS, *ATTENDS}
    assert kinds.issuperset(SYSTEM_KINDS.values()) and kinds.isdisjoint(SYSTEM_KINDS)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "NAME"),
        ("train", "a.yaml", "--run=NAME"),
        ("prep", "a.yaml", "--set", "data.folder=NAME"),
        ("plot-attention", "-m", "a", "-s", "NAME", "-o", "a.json"),
    ],
)
def test_words_that_are_not_utf8_are_refused(words: tuple[str, ...]) -> None:
    said = refused(*(word.replace("NAME", os.fsdecode(b"caf\xe9")) for word in words))
    assert said.endswith("caf\\xe9 is not UTF-8: rename the file, or convert the text")


def test_utf8_in_another_locale_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads the bytes of ü as two surrogates in a locale of ASCII."""
    said = refused("train", "m\udcc3\udcbcll.yaml")
    assert said.endswith("müll.yaml cannot be read in this locale: set PYTHONUTF8=1")


@pytest.mark.parametrize("command", ["train", "prep"])
def test_folders_that_are_not_utf8_are_refused(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.mkdir()
    monkeypatch.chdir(place)
    said = refused(command, str(toy), "--set", "data.folder=out")
    assert "caf\\xe9/" in said and said.endswith(" is not UTF-8: rename the folder")
    assert not list(place.iterdir())


def test_none_and_null_are_one_word(toy: Path) -> None:
    for word in ("none", "null", "None", "~"):
        recipe = load(toy, [f"data.bpe={word}", f"training.ema={word}", f"model.tie={word}"])
        assert recipe.data.bpe is None and recipe.training.ema is None
        assert recipe.model.tie == "none"


def test_a_config_that_is_not_text(tmp_path: Path) -> None:
    for content, said in (
        (b"data:\n\tsource: de\n", "line 2: not valid YAML: a line begins with a tab"),
        (b"\x1f\x8b\x08", "it is a gzip file; unpack it first"),
        (b"data: 1\nmodel: \xe4", "line 2 has a byte that is not UTF-8"),
    ):
        (tmp_path / "a.yaml").write_bytes(content)
        assert said in refused("prep", str(tmp_path / "a.yaml"))
    assert f"did you mean {tmp_path / 'a.yaml'}?" in refused("prep", str(tmp_path / "a.yml"))


# Options of fairseq, Marian, OpenNMT and Sockeye, with the command that a user would give them to.
FOREIGN = """
train --accum-count --adam-betas --after-epochs --arch --batch-size --checkpoint-interval
train --clip-norm --decoder-layers --dim-emb --early-stopping --encoder-embed-dim
train --encoder_layers --epochs --exponential-smoothing --fp16 --gpu_ranks --initial-learning-rate
train --keep-last-epochs --label-smoothing --log-interval --lr --max-num-checkpoint-not-improved
train --max-tokens --max-update --mini-batch --mini-batch-fit --optimizer --patience
train --pretrained-model --restore-file --save-freq --save_model --seed --task --tied-embeddings-all
train --train_from --train_steps --update-freq --valid-freq --warmup-steps --weight-tying-type
train --word_vec_size --workspace --world_size --overwrite --prepared-data --devices --sync-sgd
train --distributed-world-size --multi-node --shuffle-in-ram
prep --bpe-codes --destdir --joined-dictionary --nwordssrc --share_vocab --source-lang --srcdict
prep --thresholdsrc --trainpref --validpref --workers --testpref --src_vocab
decode --batch_size --beam_size --bpe --cpu-threads --devices --device-ids --diverse-beam-groups
decode --fp16 --gen-subset --gpu --length-penalty --length-penalty-alpha --lenpen --max-len-b
decode --max_length --maxi-batch --mini-batch --nbest --no-repeat-ngram-size --output-type --path
decode --print-alignment --random_sampling_topk --remove-bpe --replace_unk --sampling
decode --sampling-topp --source-lang --src --tokenizer --vocabs --quiet-translation
"""
NAMES = [
    (line.split()[0], option) for line in FOREIGN.split("\n") if line for option in line.split()[1:]
]


@pytest.mark.parametrize(("name", "option"), NAMES)
def test_the_advice_about_another_toolkits_option_can_be_followed(
    toy: Path, name: str, option: str
) -> None:
    command = commands()[name]
    context = click.Context(command, info_name=name)
    advice = option_advice(option, context)
    assert advice is not None, f"{name} {option}"
    own = {known for parameter in command.params for known in parameter.opts}
    if advice.startswith("use -"):
        assert advice.split()[1] in own
    elif advice.startswith("it is a key of the config: use --set "):
        assert "--set" in own
        setting = advice.partition(";")[0].rpartition(" ")[2]
        key, _, value = setting.partition("=")
        try:
            load(toy, [f"{key}={'[]' if value == 'VALUE' else value}"])
        except ConfigError as error:
            assert "unknown key" not in str(error)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("decode -m a -output out.en", "unknown option -output; use --output"),
        ("decode -m a -n_best 5", "unknown option -n_best; use --n-best"),
        ("decode -m a -n-best 5", "unknown option -n-best; use --n-best"),
        ("train a.yaml -report_every=50", "use --set training.log_every=VALUE"),
        ("train a.yaml -batch_size 64", "batch.size=VALUE; its value is a number of target tokens"),
    ],
)
def test_a_long_name_after_one_dash_is_refused(words: str, said: str) -> None:
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 2 and said in result.stderr


def test_a_shell_completes_after_too_many_threads(capsys: pytest.CaptureFixture[str]) -> None:
    completion = ShellComplete(main, {}, "fusetk", "_FUSETK_COMPLETE")
    items = completion.get_completions(["doctor", "--threads", "99999"], "--js")
    assert [item.value for item in items] == ["--json"]
    assert capsys.readouterr().err == "", "a warning would appear in the command line"


def test_a_shell_completes_after_a_long_name_after_one_dash() -> None:
    completion = ShellComplete(main, {}, "fusetk", "_FUSETK_COMPLETE")
    assert "--beam" in {
        item.value for item in completion.get_completions(["decode", "-output"], "--b")
    }


@pytest.mark.parametrize("words", ["-b5 -n0.5 -i a -oout", "-- -output"])
def test_values_may_follow_a_short_option_without_a_space(words: str) -> None:
    assert refused("decode", *words.split()).startswith("give --model RUN")


def test_a_run_in_place_of_the_text_is_recognised(tmp_path: Path) -> None:
    run_folder = tmp_path / "my run"
    run_folder.mkdir()
    (run_folder / "config.yaml").touch()
    for command in ("decode", "rescore"):
        advice = f"{run_folder} is a run: give it with -m: fusetk {command} -m '{run_folder}'"
        assert refused(command, str(run_folder)) == advice
        assert refused(command, __file__).startswith("give --model RUN")


@pytest.mark.parametrize(
    ("words", "rest", "expected"),
    [
        ("average", "--last 1", "a/x is not a run folder"),
        ("ablate", "-i b -r c", "a/x is not a run folder"),
        ("compare", "-i b", "a/x is neither a run folder nor a file"),
        ("explore", "--port 0", "a/x is not a run folder"),
        ("export", "-o b", "a/x is not a run folder"),
        ("plot-attention", "-s x -o b.json", "a/x is not a run folder"),
        ("plot-curves", "-o b.json", "a/x is not a run folder"),
        ("serve", "--port 0", "a/x is not a run folder"),
    ],
)
def test_every_command_reads_runs_as_arguments_and_with_m(
    words: str, rest: str, expected: str
) -> None:
    runs = ["a/x", "a/y"] if words == "compare" else ["a/x"]
    options = [word for run in runs for word in ("-m", run)]
    assert expected in refused(words, *runs, *rest.split())
    assert expected in refused(words, *options, *rest.split())


def test_an_unknown_device_of_an_estimate_is_refused_with_the_known_ones(toy: Path) -> None:
    options = ["--device", "h200", "--src-vocab-size", "9", "--pairs", "9"]
    result = CliRunner().invoke(main, ["estimate", str(toy), *options])
    assert result.exit_code == 2 and "there is no device 'h200'" in result.stderr
    assert "h100" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_quiet_and_print_a_traceback(name: str) -> None:
    command = commands()[name]
    for member in getattr(command, "commands", {"": command}).values():
        options = [known for parameter in member.params for known in parameter.opts]
        assert options.count("-q") == options.count("--debug") == 1, member.name


def test_debug_prints_the_traceback(tmp_path: Path) -> None:
    words = ["prep", str(tmp_path / "a.yaml")]
    assert "Traceback" not in CliRunner().invoke(main, words).stderr
    result = CliRunner().invoke(main, [*words, "--debug"])
    assert result.exit_code == 2 and "Traceback" in result.stderr and "fusetk: " in result.stderr


def test_quiet_prep_prints_nothing(toy: Path) -> None:
    assert CliRunner().invoke(main, ["prep", str(toy)]).stderr
    assert CliRunner().invoke(main, ["prep", str(toy), "-q"]).output == ""


def test_input_is_an_argument_or_an_option(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ja, ja.\n", encoding="utf-8")
    file = str(tmp_path / "a.txt")
    given = [["text", "tokenize", file], ["text", "tokenize", "-i", file]]
    assert [CliRunner().invoke(main, words).stdout for words in given] == ["Ja , ja .\n"] * 2
    piped = CliRunner().invoke(main, ["text", "tokenize"], input="Ja, ja.\n")
    assert piped.stdout == "Ja , ja .\n"
    scored = CliRunner().invoke(main, ["score", "-r", file], input="Ja, ja.\n")
    assert scored.exit_code == 0 and "100.00" in scored.stdout


@pytest.mark.parametrize(
    ("words", "incomplete", "kinds"),
    [
        (["decode", "-m"], "ru", ["file"]),
        (["decode", "-m", "a"], "x", ["file"]),
        (["decode", "-d"], "cu", ["plain"]),
        (["score"], "out", ["file"]),
        (["score", "a", "-r"], "te", ["file"]),
        (["rescore", "-m", "a"], "te", ["file"]),
        (["train"], "my", ["file"]),
        (["decode", "--st"], "", None),
    ],
)
def test_shells_complete_files(words: list[str], incomplete: str, kinds: list[str] | None) -> None:
    items = ShellComplete(main, {}, "fusetk", "_FUSETK_COMPLETE").get_completions(words, incomplete)
    assert kinds is None or [item.type for item in items] == kinds


def test_folders_of_other_things_are_kept(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for words in (["prep", str(toy), "--set"], ["train", str(toy), "-d", "cpu", "-r"]):
        setting = f"data.folder={tmp_path}" if words[0] == "prep" else str(tmp_path)
        assert "mine.txt" in refused(*words, setting)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "machine.json", "text/vocab.de"])
def test_a_training_overwrites_no_file_of_the_user(toy: Path, tmp_path: Path, name: str) -> None:
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_text(toy.read_text())
    config = own if name == "config.yaml" else toy
    words = ["train", str(config), "-d", "cpu", "-r", str(tmp_path)]
    if config == own:
        words += ["--set", f"data.folder={load(toy).data.folder}"]
    said = f"files that no training wrote, such as {name.partition('/')[0]}: choose an empty"
    assert said in refused(*words)
    assert own.read_text() == toy.read_text()


@pytest.mark.parametrize("command", ["describe", "train", "estimate"])
def test_a_run_folder_instead_of_a_config(command: str, tmp_path: Path) -> None:
    run_folder = tmp_path / "it's"
    run_folder.mkdir()
    assert refused(command, str(run_folder)).endswith("is a folder; give a file")
    (run_folder / "config.yaml").touch()
    advice = f"is a folder; give its config, {run_folder / 'config.yaml'}"
    assert refused(command, str(run_folder)).endswith(advice)


def test_a_run_folder_that_is_near(tmp_path: Path) -> None:
    (tmp_path / "runs" / "my_run").mkdir(parents=True)
    (tmp_path / "runs" / "my_run" / "config.yaml").touch()
    for name in ("runs", "runs/my_rum", "runs/my_run/checkpoints/x"):
        assert f"did you mean {tmp_path / 'runs/my_run'}?" in refused(
            "average", str(tmp_path / name), "--last", "1"
        )


def test_ctrl_c_during_the_imports_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, *rest: object) -> None:
            if name == "fusetk.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "fusetk.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 130


def test_ctrl_c_that_a_library_catches_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_import() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise AttributeError("half imported")

    monkeypatch.setattr("fusetk.cli.main.main", failing_import)
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 130


def test_a_prefix_with_the_suffix_of_its_file(toy: Path, tmp_path: Path) -> None:
    prefix = toy.parent / "train"
    settings = ["--set", f"data.train=[{prefix}.de]", "--set", f"data.folder={tmp_path / 'a'}"]
    advice = f"{prefix}.de is a file: give the prefix without the suffix, {prefix}"
    assert refused("prep", str(toy), *settings).endswith(advice)


def test_a_folder_or_a_file_without_suffix_is_no_prefix(toy: Path, tmp_path: Path) -> None:
    file = tmp_path / "plain"
    file.touch()
    for prefix, advice in (
        (tmp_path, f"{tmp_path} is a folder: give the prefix of text "),
        (file, ""),
    ):
        settings = ["--set", f"data.train=[{prefix}]", "--set", f"data.folder={tmp_path / 'a'}"]
        said = refused("prep", str(toy), *settings)
        assert said.startswith(f"neither {prefix}.de nor ") and advice in said
        assert "without the suffix" not in said


@pytest.mark.parametrize("words", [["decode", "-m"], ["average", "--last", "2"]])
def test_a_run_without_a_checkpoint(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    advice = "has no checkpoints/best or checkpoints/last: wait for its first validation, or"
    assert advice in refused(*words, str(tmp_path))


def test_a_run_in_place_of_a_recipe(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(toy.read_text())
    advice = f"{tmp_path} is a run: give the recipe first, fusetk report RECIPE --runs {tmp_path}"
    assert refused("report", str(tmp_path)) == advice


def test_the_prepared_folder_is_a_file(toy: Path, tmp_path: Path) -> None:
    settings = ["--set", f"data.folder={toy}", "-r", str(tmp_path / "run")]
    advice = f"{toy} is not a folder: name the folder of fusetk prep in data.folder"
    assert refused("train", str(toy), *settings) == advice


def test_the_error_of_a_missing_start_names_the_key(toy: Path, tmp_path: Path) -> None:
    settings = ["--set", f"training.start_from={tmp_path / 'no'}", "-r", str(tmp_path / "run")]
    said = refused("train", str(toy), *settings)
    assert said.startswith(f"training.start_from: {tmp_path / 'no'} is not a run folder: ")
    assert said.endswith("give the folder of a training (fusetk train --run)")


def test_a_long_text_in_place_of_a_config_is_shortened(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("word " * 1000)
    said = refused("prep", str(tmp_path / "a.yaml"))
    assert "must be a mapping of sections" in said and said.endswith("word...") and len(said) < 400


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "toy.yaml", "--price", "nan"),
        ("estimate", "toy.yaml", "--src-length", "inf"),
        ("text", "filter", "a", "b", "--max-ratio", "nan"),
        ("text", "apply-bpe", "-c", "codes", "--dropout", "nan"),
    ],
)
def test_numbers_are_finite(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and "is not a finite number" in result.output


def test_a_deleted_current_folder_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getcwd", Mock(side_effect=FileNotFoundError))
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 2
    assert "the current folder was deleted: change to another folder\n" in capsys.readouterr().err


def test_missing_permissions_say_which_access_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(path: Path) -> str:
        return _system_error(PermissionError(errno.EACCES, "Permission denied", str(path)))[0]

    advice = "(Permission denied): change its permissions, or choose another path"
    assert said(tmp_path) == f"{tmp_path} cannot be written {advice}"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert said(tmp_path) == f"{tmp_path} cannot be read {advice}"
    assert said(tmp_path / "a") == f"{tmp_path}/a cannot be read or written {advice}"
    (tmp_path / "a.yaml").touch()
    refusal = refused("describe", str(tmp_path / "a.yaml"))
    assert f"'{tmp_path}/a.yaml' cannot be read {advice}" in refusal
