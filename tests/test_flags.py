"""Flags and recipes: parsing, who wins, errors, help, and the paper's numbers."""

import dataclasses
import math
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from absl import flags as absl_flags

from tf_goyal import flags
from tf_goyal.config import MODELS, Config, validate

ROOT = Path(__file__).resolve().parent.parent
IMAGENET = {
    "train_images": 1_281_167,
    "eval_images": 50_000,
    "classes": 1000,
    "processes": 1,
}


def config(*line: str) -> Config:
    assert flags.parse(["train", *line]) == []
    return flags.config_from_flags()


def exit_of(capsys, *line: str, main=lambda rest: None, **keywords) -> tuple:
    """Exit code, stdout and stderr of `run`."""
    with pytest.raises(SystemExit) as caught:
        flags.run(main, ["train.py", *line], **keywords)
    return caught.value.code, *capsys.readouterr()


# Flags


def test_the_defaults_are_those_of_config():
    assert config() == Config()


def test_one_flag_of_each_type():
    parsed = config(
        "--model_dir=/tmp/a b",
        "--global_batch=256",
        "--base_lr=1e-2",
        "--nonesterov",
        "--zero_gamma=false",
        "--model=resnet101",
        "--lr_boundaries=1,2.5",
        "--seed=-1",
    )
    assert parsed == Config(
        model_dir="/tmp/a b",
        global_batch=256,
        base_lr=0.01,
        nesterov=False,
        zero_gamma=False,
        model="resnet101",
        lr_boundaries=(1.0, 2.5),
        seed=-1,
    )


def test_every_field_can_be_set():
    for field in dataclasses.fields(Config):
        if field.metadata["choices"]:
            value = field.metadata["choices"][-1]
            text = f"--{field.name}={value}"
        elif field.type is bool:
            value = not field.default
            text = f"--{'' if value else 'no'}{field.name}"
        else:
            value = {str: "x", int: 7, float: 0.5}.get(field.type, (0.5,))
            text = f"--{field.name}={'0.5' if value == (0.5,) else value}"
        assert getattr(config(text), field.name) == value


def test_no_boundaries():
    assert config("--lr_boundaries=").lr_boundaries == ()


def test_parsing_again_starts_from_the_defaults():
    assert config("--seed=3").seed == 3
    assert config().seed == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--gobal_batch=1"], ["gobal_batch", "Did you mean: global_batch"]),
        (["--global_batch=8k"], ["--global_batch=8k", "must be a whole number"]),
        (["--global_batch=8192.0"], ["--global_batch", "whole number"]),
        (["--global_batch="], ["--global_batch=", "whole number"]),
        (["--base_lr=fast"], ["--base_lr=fast", "must be a number"]),
        (["--nesterov=maybe"], ["--nesterov=maybe", "true or false"]),
        (["--lr_boundaries=30;60"], ["30;60", "separated by commas"]),
        (["--lr_boundaries=30,,60"], ["30,,60", "separated by commas"]),
        (["--model=resnet51"], ["--model=resnet51", *MODELS]),
        (["--warmup=linear"], ["--warmup=linear", "gradual, constant, none"]),
        (["--seed"], ["--seed"]),
        (["--nesterov", "False"], ["--name=value", "'False'"]),
        (["run"], ["--name=value", "'run'"]),
        (["--", "--seed=1"], ["--name=value", "--seed=1"]),
        (["--recipe=goyal_8000"], ["--recipe", "goyal_8000", "goyal_8k", "digits"]),
        (["--recipe=goyal_8k_nowarmup"], ["did you mean goyal_8k_no_warmup?"]),
        (["--recipe=../flags/digits"], ["--recipe", "'../flags/digits'"]),
        (["--flagfile=/nowhere/flags"], ["/nowhere/flags"]),
        (["--flagfile"], ["--flagfile"]),
    ],
)
def test_a_wrong_line_exits_with_2(capsys, line, said):
    code, out, err = exit_of(capsys, *line)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("train: ")
    for part in said:
        assert part in err


def test_a_refusal_of_main_exits_with_2(capsys):
    def main(rest):
        raise ValueError("--a must be b,\n  got c")

    assert exit_of(capsys, main=main) == (2, "", "train: --a must be b, got c\n")


@pytest.mark.parametrize("code", [None, 0, 3, 143])
def test_the_code_of_main_is_the_exit_code(capsys, code):
    assert exit_of(capsys, main=lambda rest: code) == (code, "", "")


def test_other_errors_are_not_hidden(capsys):
    def main(rest):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        flags.run(main, ["train.py"])


# A command's own flags


def define(values: absl_flags.FlagValues) -> None:
    absl_flags.DEFINE_integer(
        "processes", None, "How many.", flag_values=values, required=True
    )


def test_own_flags_beside_those_of_config(capsys):
    def main(rest):
        assert flags.FLAGS.processes == 2
        return flags.config_from_flags().seed

    line = ["--processes=2", "--seed=5"]
    assert exit_of(capsys, *line, main=main, define=define)[0] == 5
    code, _, err = exit_of(capsys, "--seed=5", main=main, define=define)
    assert code == 2
    assert "processes" in err


def test_own_flags_alone_with_arguments(capsys):
    seen = []

    def main(rest):
        seen.extend(rest)

    keywords = {"define": define, "with_config": False, "arguments": "-- FLAGS"}
    line = ["--processes=2", "--", "--seed=5", "--help"]
    assert exit_of(capsys, *line, main=main, **keywords)[0] is None
    assert seen == ["--seed=5", "--help"]
    assert exit_of(capsys, "--processes=2", "--seed=5", **keywords)[0] == 2


# Help


@pytest.mark.parametrize("ask", ["--help", "-h", "-help", "--helpfull"])
def test_help_is_complete(capsys, ask):
    code, out, err = exit_of(capsys, "--gobal_batch=1", ask, define=define)
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    for field in dataclasses.fields(Config):
        assert re.search(rf"^  --(no)?{field.name}(=|$)", out, re.MULTILINE)
        assert field.metadata["help"] in words
        assert field.metadata["section"] + ":" in words
    assert "--processes=" in out
    assert "  --lr_boundaries=30,60,80\n" in out
    assert ", ".join(flags.recipes()) in words
    assert max(map(len, out.splitlines())) <= 80


def test_help_says_how_a_module_is_started():
    script = (
        '"""Trains a model."""\n'
        "from tf_goyal import flags\n"
        "def main(rest): pass\n"
        "flags.run(main, ['tool.py', '--help'])"
    )
    out = run_python("-c", script)
    assert "Usage: python tool.py [--name=value ...]\n" in out


def test_neither_tensorflow_nor_keras_is_imported():
    script = (
        "import sys; from tf_goyal import flags; flags.parse(['t', '--recipe=digits']);"
        "print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
    )
    assert run_python("-c", script) == "[]\n"


def run_python(*line: str, cwd: Path = ROOT, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *line],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Recipes


def test_the_command_line_wins_wherever_the_recipe_stands():
    first = config("--recipe=goyal_256", "--global_batch=512")
    last = config("--global_batch=512", "--recipe", "goyal_256")
    assert first == last == Config(global_batch=512)


def test_a_flagfile(tmp_path):
    """absl's own --flagfile counts as written on the command line."""
    path = tmp_path / "mine"
    path.write_text("# mine\n\n--recipe=goyal_256_resnet101\n--global_batch=512\n")
    parsed = config(f"--flagfile={path}", "--seed=1")
    assert parsed == Config(model="resnet101", global_batch=512, seed=1)
    assert config(f"--flagfile={path}", "--global_batch=1024").global_batch == 1024


def test_one_length_replaces_the_other():
    """Also one that a recipe gave, or the default."""
    assert (config("--steps=3").steps, config("--steps=3").epochs) == (3, 0.0)
    assert (config("--epochs=2").steps, config("--epochs=2").epochs) == (0, 2.0)
    assert config("--recipe=digits").epochs > 0
    shorter = config("--recipe=digits", "--steps=3")
    assert (shorter.steps, shorter.epochs) == (3, 0.0)
    assert config("--recipe=digits", "--epochs=2").epochs == 2.0
    both = config("--recipe=digits", "--steps=3", "--epochs=2")
    assert (both.steps, both.epochs) == (3, 2.0)  # validate refuses


# name: kn, k, eta-hat, warmup, model, error and its deviation (PAPER.md, results)
RECIPES = {
    "goyal_128": (128, 4, 0.05, False, "resnet50", "23.49 +- 0.12"),
    "goyal_256": (256, 8, 0.1, False, "resnet50", "23.60 +- 0.12"),
    "goyal_512": (512, 16, 0.2, True, "resnet50", "23.48 +- 0.09"),
    "goyal_1k": (1024, 32, 0.4, True, "resnet50", "23.53 +- 0.08"),
    "goyal_2k": (2048, 64, 0.8, True, "resnet50", "23.49 +- 0.11"),
    "goyal_4k": (4096, 128, 1.6, True, "resnet50", "23.56 +- 0.12"),
    "goyal_8k": (8192, 256, 3.2, True, "resnet50", "23.74 +- 0.09"),
    "goyal_16k": (16384, 512, 6.4, True, "resnet50", "24.79 +- 0.27"),
    "goyal_32k": (32768, 1024, 12.8, True, "resnet50", "27.55 +- 0.28"),
    "goyal_64k": (65536, 2048, 25.6, True, "resnet50", "33.96 +- 0.80"),
    "goyal_8k_no_warmup": (8192, 256, 3.2, False, "resnet50", "24.84 +- 0.37"),
    "goyal_8k_constant_warmup": (8192, 256, 3.2, True, "resnet50", "25.88 +- 0.56"),
    "goyal_8k_unscaled": (8192, 256, 0.1, True, "resnet50", "41.67 +- 0.10"),
    "goyal_8k_sqrt": (
        8192,
        256,
        0.1 * math.sqrt(32),
        True,
        "resnet50",
        "26.22 +- 0.03",
    ),
    "goyal_256_gamma1": (256, 8, 0.1, False, "resnet50", "23.84 +- 0.18"),
    "goyal_8k_gamma1": (8192, 256, 3.2, True, "resnet50", "24.11 +- 0.07"),
    "goyal_256_resnet101": (256, 8, 0.1, False, "resnet101", "22.08 +- 0.06"),
    "goyal_8k_resnet101": (8192, 256, 3.2, True, "resnet101", "22.36 +- 0.09"),
}
# What a recipe changes beside kn and the model.
CHANGES = {
    "goyal_8k_no_warmup": {"warmup": "none"},
    "goyal_8k_constant_warmup": {"warmup": "constant"},
    "goyal_8k_unscaled": {"lr_scaling": "none"},
    "goyal_8k_sqrt": {"lr_scaling": "sqrt"},
    "goyal_256_gamma1": {"zero_gamma": False},
    "goyal_8k_gamma1": {"zero_gamma": False},
}


def test_there_is_a_recipe_for_every_row_of_the_paper():
    assert set(flags.recipes()) == {*RECIPES, "digits", "digits_resnet50"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_numbers_of_the_paper(name):
    kn, k, rate, warms_up, model, error = RECIPES[name]
    recipe = config(f"--recipe={name}")
    assert recipe == Config(global_batch=kn, model=model, **CHANGES.get(name, {}))
    assert recipe.virtual_workers == k
    assert recipe.scaled_lr == pytest.approx(rate, rel=1e-15)
    assert recipe.warms_up is warms_up
    validate(dataclasses.replace(recipe, model_dir="m", data_dir="d"), **IMAGENET)
    header = flags.recipes()[name].read_text(encoding="ascii")
    assert f"top-1 error {error} % (eta-hat = " in header
    assert f"minibatch {kn}" in header
    assert f"k = {k} workers of n = 32" in header


def test_the_digits_recipe():
    recipe = config("--recipe=digits", "--model_dir=m")
    assert (recipe.dataset, recipe.data_dir) == ("digits", "")
    validate(recipe, train_images=1400, eval_images=397, classes=10, processes=2)


@pytest.mark.parametrize("name", flags.recipes())
def test_a_recipe_says_only_what_differs(name):
    """Headed by the command, the hardware and the expected error."""
    lines = flags.recipes()[name].read_text(encoding="ascii").splitlines()
    comments = [line for line in lines if line.startswith("# ")]
    written = lines[len(comments) :]
    assert lines[: len(comments)] == comments
    assert f"# python -m tf_goyal.train --recipe={name} " in comments[1]
    assert comments[2].startswith("# Hardware: ")
    assert comments[3].startswith("# Expected: top-1 error ")
    default = dataclasses.asdict(Config())
    for line in written:
        changed = dataclasses.asdict(config(line))
        assert len([name for name in default if changed[name] != default[name]]) == 1


# Installation


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of a copy of the sources, so that the build leaves nothing behind."""
    source = tmp_path_factory.mktemp("source")
    out = tmp_path_factory.mktemp("wheel")
    names = ["setup.py", "pyproject.toml", "LICENSE", "README.md", "tf_goyal", "flags"]
    for name in names:
        if (ROOT / name).exists():
            (source / name).symlink_to(ROOT / name)
    run_python(
        "setup.py",
        "-q",
        "egg_info",
        f"--egg-base={out}",
        "build",
        f"--build-base={out / 'build'}",
        "bdist_wheel",
        f"--dist-dir={out}",
        cwd=source,
    )
    [path] = out.glob("*.whl")
    return path


def test_a_wheel_has_the_recipes_and_the_data(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path)
    package = ROOT / "tf_goyal"
    sources = [*package.glob("*.py"), *(package / "data").rglob("*")]
    expected = {
        f"tf_goyal/{path.relative_to(package).as_posix()}"
        for path in sources
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
    for name in flags.recipes():
        assert f"tf_goyal/recipes/{name}" in names

    script = "from tf_goyal import flags; print(flags.__file__, *flags.recipes())"
    path, *found = run_python(
        "-c", script, cwd=tmp_path, PYTHONPATH=str(tmp_path)
    ).split()
    assert Path(path).is_relative_to(tmp_path)
    assert found == list(flags.recipes())
