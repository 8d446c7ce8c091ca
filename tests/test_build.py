"""BUILD has one target per module, and its deps are the imports of the module."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tf_goyal"
SOURCES = {
    path.stem: path for path in sorted(PACKAGE.glob("*.py")) if path.stem != "__init__"
}

MAINS = ("train", "launch", "doctor", "evaluate", "export")

# DESIGN, layout: imports go down this list, never up.
LAYERS = (
    set(MAINS),
    {"evaluator"},
    {"checkpoint_evaluation", "export_formats"},
    {"build", "flags"},
    {"reduction_choice"},
    {"network_probe"},
    {"trainer"},
    {"checkpoint_writer"},
    {"step", "evaluation"},
    {"not_finite"},
    {"workers"},
    {"input_pipeline", "resnet"},
    {"samples"},
    {"datasets"},
    {"image_folder", "tfds_folder", "shard_folder", "shards"},
    {"index_cache"},
    {"label_sample"},
    {"allreduce"},
    {"hierarchical"},
    {"halving_doubling"},
    {"pair_messages", "reduction_plan", "gradient_order"},
    {"arrivals", "watchdog"},
    {"cluster"},
    {"cluster_flags", "slurm_step", "tf_config"},
    {"cost_model"},
    {"peers"},
    {"rendezvous"},
    {"membership"},
    {"checkpoint", "owner", "run_log"},
    {"files"},
    {
        "addresses",
        "arrays_file",
        "asked",
        "augment",
        "batch_norm",
        "config",
        "coordination",
        "examples",
        "export_files",
        "fixed_point",
        "frames",
        "host_list",
        "host_port",
        "image_header",
        "image_order",
        "manifest",
        "random_crop",
        "records",
        "schedule",
        "second_tries",
        "sgd",
        "silence",
    },
)

# What these may import of ours, and no more; everything else of the leaves: nothing.
ALLOWED = {
    "records": {"second_tries"},
    "input_pipeline": {"records", "augment", "datasets", "samples"},
    "resnet": {"batch_norm"},
    "flags": {"config"},
}

# Bad input is refused before TensorFlow starts.
NO_TENSORFLOW = (
    "asked",
    "config",
    "flags",
    "cluster",
    "checkpoint",
    "checkpoint_writer",
    "evaluator",
    "files",
    "owner",
    "peers",
    "rendezvous",
    "run_log",
    "records",
    "datasets",
    "samples",
    "image_order",
    "memory_cache",
    "cost_model",
    "gradient_order",
    "reduction_plan",
    "deviations",
    "preflight",
    "resume",
    "storage",
    "trained",
    *MAINS,
)


def imports(source: str) -> set[str]:
    """The modules of the package that a source imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "tf_goyal":
            names = [f"tf_goyal.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        parts = [name.split(".") for name in names]
        found |= {part[1] for part in parts if part[0] == "tf_goyal" and part[1:]}
    return found & set(SOURCES)


IMPORTS = {name: imports(path.read_text("utf-8")) for name, path in SOURCES.items()}


def targets() -> dict[str, tuple[str, dict[str, list[str]]]]:
    """The Python targets of BUILD: name to rule and attributes."""
    found = {}
    for statement in ast.parse((ROOT / "BUILD").read_text("utf-8")).body:
        call = getattr(statement, "value", None)
        if isinstance(call, ast.Call) and call.func.id.startswith("py_"):
            attributes = {
                keyword.arg: ast.literal_eval(keyword.value)
                for keyword in call.keywords
                if not isinstance(keyword.value, ast.Call)  # glob(...)
            }
            name = attributes.pop("name")
            assert name not in found, f"BUILD has two targets {name}"
            found[name] = call.func.id, attributes
    return found


def test_imports_are_found():
    source = (
        "import json, tf_goyal.config\nfrom tf_goyal import sgd as s, __version__\n"
        "def f():\n    from tf_goyal.step import train_step\n    import tf_goyal\n"
    )
    assert imports(source) == {"config", "sgd", "step"}


def test_one_target_per_module():
    assert sorted(targets()) == sorted(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_a_target_is_its_module(name):
    rule, attributes = targets()[name]
    assert rule == ("py_binary" if name in MAINS else "py_library")
    assert attributes["srcs"] == [f"tf_goyal/{name}.py"]
    assert attributes.get("deps", []) == [f":{dep}" for dep in sorted(IMPORTS[name])]
    has_main = '\nif __name__ == "__main__":' in SOURCES[name].read_text("utf-8")
    assert has_main == (name in MAINS)


def test_imports_have_no_cycle():
    left = dict(IMPORTS)
    while left:
        ready = {name for name, deps in left.items() if not deps & set(left)}
        assert ready, f"cycle among {sorted(left)}"
        left = {name: deps for name, deps in left.items() if name not in ready}


@pytest.mark.parametrize("name", sorted(set().union(*LAYERS)))
def test_imports_go_down(name):
    """DESIGN, import direction."""
    here = next(i for i, layer in enumerate(LAYERS) if name in layer)
    above = set().union(*LAYERS[:here])
    assert not IMPORTS[name] & above


@pytest.mark.parametrize("name", sorted(LAYERS[-1] | set(ALLOWED)))
def test_leaves_import_nothing_of_ours(name):
    assert IMPORTS[name] <= ALLOWED.get(name, set())


def test_only_main_functions_read_flags():
    """Everything else gets plain arguments or a Config."""
    readers = {name for name, deps in IMPORTS.items() if "flags" in deps}
    assert readers <= set(MAINS)
    absl = {name for name, path in SOURCES.items() if "from absl" in path.read_text()}
    assert absl <= {*MAINS, "flags"}


@pytest.mark.parametrize("name", NO_TENSORFLOW)
def test_neither_tensorflow_nor_keras_is_imported(name):
    script = (
        f"import sys, tf_goyal.{name}; "
        "print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
