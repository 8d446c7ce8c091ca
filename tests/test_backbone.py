"""A network under the Model Garden's names (X3): against what that made of it."""

import numpy as np
import pytest
import tensorflow as tf
import tool_runs

from tf_goyal import backbone, export_formats, resnet

parity = tool_runs.load("garden_parity")


@pytest.fixture(scope="module")
def stored():
    """The Model Garden's features, by tools/garden_parity.py."""
    return dict(np.load(parity.FEATURES, allow_pickle=False))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A ResNet-50 with weights from a seed, and the folder of its export."""
    folder = tmp_path_factory.mktemp("backbone")
    model = parity.network("resnet50", "same")
    backbone.write(model, folder, '{"model": "resnet50"}')
    return model, folder


def names_in(folder):
    path = tf.train.latest_checkpoint(str(folder / "backbone"))
    return tf.train.load_checkpoint(path).get_variable_to_shape_map()


@pytest.mark.parametrize("padding", resnet.PADDINGS)
def test_features_are_the_model_gardens(stored, padding):
    """X3: stages 2 to 5 of a photograph, to 1e-4, from 8 x 8 down to 1 x 1."""
    model = parity.network("resnet50", padding)
    found = export_formats.features(model, stored["images"])
    assert {name: f.shape[1:] for name, f in found.items()} == {
        "stage2": (8, 8, 256),
        "stage3": (4, 4, 512),
        "stage4": (2, 2, 1024),
        "stage5": (1, 1, 2048),
    }
    for name, features in found.items():
        expected = stored[f"{padding} {name}"]
        assert np.ptp(expected) > 1.0  # images matter
        np.testing.assert_allclose(features, expected, rtol=0, atol=1e-4)


def test_paddings_differ(stored):
    """The wrong one is no rounding error."""
    for stage in ("stage2", "stage5"):
        difference = stored[f"same {stage}"] - stored[f"symmetric {stage}"]
        assert np.abs(difference).max() > 0.1


def test_the_names_are_those_that_the_model_garden_matched(written, stored):
    """All 265, and nothing else but the object graph."""
    names = names_in(written[1])
    assert sorted(names) == stored["names"].tolist()
    assert len([name for name in names if name.endswith("VARIABLE_VALUE")]) == 265
    assert (written[1] / "backbone" / "metadata.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "count", "last"),
    [("resnet50", 265, 17), ("resnet101", 520, 34), ("resnet152", 775, 51)],
)
def test_every_variable_but_the_heads_has_a_name_of_its_own(name, count, last):
    """53, 104 and 155 convolutions, each with a BatchNorm; 16, 33 and 50 blocks."""
    model = resnet.build(name, classes=2, image_size=32)
    names = backbone.names(model.variables)
    assert len(names) == len(set(names.values())) == count
    assert len(model.variables) - count == 2
    final = f"backbone/layer_with_weights-{last}/_norm3/beta"
    assert names["stage5_block3_bn3/beta"] == final


def zeros(name="resnet50"):
    model = resnet.build(name, classes=3, image_size=32)
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    return model


def test_it_reads_back_what_it_wrote(written):
    """All but the head, which a detector does not have."""
    model, other = written[0], zeros()
    backbone.read_into(other, written[1])
    for ours, theirs in zip(model.variables, other.variables, strict=True):
        if ours.path.startswith("head"):
            assert not np.any(theirs)
        else:
            np.testing.assert_array_equal(ours, theirs)


def test_what_is_unmatched_is_named(written, tmp_path):
    """X3: a missing variable, one of another shape, one too many; nothing is read."""
    with pytest.raises(ValueError, match="does not fit resnet101") as refused:
        backbone.read_into(zeros("resnet101"), written[1])
    # Block 14 of one is the first of stage 5, of the other still stage 4.
    text, block = str(refused.value), "backbone/layer_with_weights"
    assert f"{block}-15/_shortcut/kernel is not the network's" in text
    assert f"{block}-34/_norm3/beta (stage5_block3_bn3/beta) is missing" in text
    assert f"{block}-15/_conv1/kernel (stage4_block7_conv1/kernel) must be of" in text
    with pytest.raises(ValueError, match="must hold a checkpoint"):
        backbone.read_into(zeros(), tmp_path)
