"""What is refused before TensorFlow starts."""

import json

import pytest
from training import recipe

# Run in a process that then looks whether TensorFlow was ever imported.
REFUSED = """
import sys
from tf_goyal import flags, train
try:
    flags.run(train.main, sys.argv)
finally:
    assert "tensorflow" not in sys.modules and "keras" not in sys.modules
"""


def test_labels_that_count_from_one_are_refused(data, tmp_path, python):
    """D7: before TensorFlow starts, with the sentence that helps."""
    done = python("-c", REFUSED, *recipe(data, tmp_path / "run", label_offset=1))
    assert done.returncode == 2, done.stderr
    assert "--label_offset" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"global_batch": 30}, "multiple of --worker_batch=8, got 30"),
        ({"devices": 5}, "4 for 5 devices"),
        ({"model": "resnet51"}, "resnet51"),
        ({"lr_boundaries": "2,1"}, "strictly increasing, got 2"),
        ({"base_lr": -0.1}, "--base_lr must be at least 0"),
        ({"data_dir": "/nowhere/set"}, "/nowhere/set"),
        ({"global_batch": 128}, "at least --global_batch=128 images"),
        ({"resume": "must"}, "--resume=must needs a checkpoint"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_refused_before_tensorflow_starts(data, tmp_path, python, change, named):
    """One sentence on stderr, exit 2, and not a file written."""
    model_dir = tmp_path / "run"
    done = python("-c", REFUSED, *recipe(data, model_dir, **change))
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not model_dir.exists()


def test_a_broken_cluster_is_refused_before_tensorflow_starts(data, tmp_path, python):
    """S3: a task type that the cluster does not have."""
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}}
    text = json.dumps({**cluster, "task": {"type": "chief", "index": 0}})
    arguments = ["-c", REFUSED, *recipe(data, tmp_path / "run")]
    done = python(*arguments, environment={"TF_CONFIG": text})
    assert done.returncode == 2
    assert "task.type" in done.stderr and "worker" in done.stderr
