"""The models: sizes, initialisation, padding, names and numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_goyal import resnet
from tf_goyal.batch_norm import BatchNormalization

# Counted by hand from the papers' tables; 1000 classes, 10 for the small models, whose
# shortcuts are projections where the shape changes. Without the moving statistics.
TRAINABLE = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnet20": 272_474,
    "resnet32": 466_906,
    "resnet56": 855_770,
}
SMALL = {"resnet20", "resnet32", "resnet56"}


def _pixels(batch, size, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (batch, size, size, 3))
    return values.astype(np.uint8)


@pytest.fixture
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


def test_models_are_those_counted_here():
    assert set(resnet.MODELS) == set(TRAINABLE)


@pytest.mark.parametrize("name", TRAINABLE)
def test_trainable_parameters(name):
    classes = 10 if name in SMALL else 1000
    model = resnet.build(name, classes=classes, image_size=None)
    count = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert count == TRAINABLE[name]
    # Moving mean and variance: as many as gamma and beta, and nothing else.
    norms = [v for v in model.trainable_variables if v.name in ("gamma", "beta")]
    assert len(model.non_trainable_variables) == len(norms)


@pytest.mark.parametrize("classes", [1, 2])
def test_logits_are_float32(classes):
    model = resnet.build("resnet20", classes=classes, image_size=8)
    assert model.input.dtype == "uint8"
    logits = model(_pixels(3, 8))
    assert logits.shape == (3, classes)
    assert logits.dtype == tf.float32


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"], indirect=True)
def test_mixed_precision(policy):
    model = resnet.build("resnet20", classes=4, image_size=8)
    assert {v.dtype for v in model.variables} == {"float32"}
    assert model.get_layer("stage3_block1_conv1").compute_dtype == policy[6:]
    logits = model(_pixels(2, 8))
    assert logits.dtype == tf.float32
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(_pixels(2, 8), training=True) ** 2)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    assert all(g.dtype == tf.float32 for g in gradients)
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("policy", ["mixed_bfloat16"], indirect=True)
def test_mixed_precision_is_close_to_float32(policy):
    mixed = resnet.build("resnet20", classes=4, image_size=16)
    keras.config.set_dtype_policy("float32")
    full = resnet.build("resnet20", classes=4, image_size=16)
    for a, b in zip(mixed.variables, full.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    images = _pixels(8, 16)
    a, b = mixed(images, training=True), full(images, training=True)
    np.testing.assert_allclose(a, b, atol=0.05 * np.abs(b).max())


@pytest.mark.parametrize(
    "name, channels",
    [("resnet18", [64, 128, 256, 512]), ("resnet50", [256, 512, 1024, 2048])],
)
@pytest.mark.parametrize("padding", resnet.PADDINGS)
def test_stage_outputs(name, channels, padding):
    """X3: the four stages that a detection backbone takes, 1/4 ... 1/32."""
    model = resnet.build(name, classes=2, image_size=64, padding=padding)
    shapes = [model.get_layer(f"stage{s}").output.shape for s in range(2, 6)]
    assert shapes == [
        (None, 64 // d, 64 // d, c) for d, c in zip((4, 8, 16, 32), channels)
    ]


def test_stages_of_small_models():
    model = resnet.build("resnet20", classes=2, image_size=32)
    shapes = [model.get_layer(f"stage{s}").output.shape for s in range(2, 5)]
    assert shapes == [(None, 32, 32, 16), (None, 16, 16, 32), (None, 8, 8, 64)]


def test_image_size_may_stay_open():
    model = resnet.build("resnet18", classes=2, image_size=None)
    backbone = keras.Model(model.input, model.get_layer("stage5").output)
    # 33 -> 17 -> 9 -> 5 -> 3 -> 2; 64 -> 32 -> 16 -> 8 -> 4 -> 2.
    assert backbone(_pixels(1, 33)).shape == (1, 2, 2, 512)
    assert backbone(np.zeros((1, 64, 96, 3), np.uint8)).shape == (1, 2, 3, 512)


def test_layer_names():
    names = {
        layer.name
        for layer in resnet.build("resnet50", classes=2, image_size=None).layers
    }
    assert {
        "normalize",
        "stem_conv",
        "stem_bn",
        "stem_pool",
        "stage2_block1_conv1",
        "stage2_block1_bn3",
        "stage2_block1_shortcut_conv",
        "stage2_block1_shortcut_bn",
        "stage5_block3_conv3",
        "stage5",
        "pool",
        "head",
    } <= names
    # One projection a stage, in its first block.
    assert sum(name.endswith("shortcut_conv") for name in names) == 4


def test_pixels_are_normalised():
    model = resnet.build("resnet20", classes=2, image_size=8)
    pixels = _pixels(2, 8)
    want = (pixels - np.array(resnet.MEAN)) / np.array(resnet.STD)
    np.testing.assert_allclose(model.get_layer("normalize")(pixels), want, atol=1e-6)


def test_bottleneck_strides_on_its_3x3():
    """§5.1."""
    model = resnet.build("resnet50", classes=2, image_size=None)
    for stage in (2, 3, 4, 5):
        stride = 1 if stage == 2 else 2
        strides = [
            model.get_layer(f"stage{stage}_block1_{conv}").strides[0]
            for conv in ("conv1", "conv2", "conv3", "shortcut_conv")
        ]
        assert strides == [1, stride, 1, stride]
    convs = [x for x in model.layers if isinstance(x, keras.layers.Conv2D)]
    assert not any(conv.use_bias for conv in convs)


def test_initial_weights():
    model = resnet.build("resnet50", classes=1000, image_size=None)
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D):
            height, width, _, filters = layer.kernel.shape
            std = np.sqrt(2.0 / (height * width * filters))
            kernel = layer.kernel.numpy()
            # Six standard errors of a mean and of a standard deviation.
            error = 6.0 / np.sqrt(kernel.size)
            assert abs(kernel.mean()) < error * std
            assert abs(kernel.std() / std - 1.0) < error
    head = model.get_layer("head")
    assert abs(head.kernel.numpy().std() / 0.01 - 1.0) < 6.0 / np.sqrt(2048 * 1000)
    assert not head.bias.numpy().any()


@pytest.mark.parametrize("name, last", [("resnet18", 2), ("resnet50", 3)])
@pytest.mark.parametrize("zero_gamma", [True, False])
def test_zero_gamma(name, last, zero_gamma):
    """§5.1: in each block's last BatchNorm, never in the shortcut's."""
    model = resnet.build(name, classes=2, image_size=None, zero_gamma=zero_gamma)
    for layer in model.layers:
        if isinstance(layer, BatchNormalization):
            ends_block = layer.name.startswith("stage") and layer.name.endswith(
                f"bn{last}"
            )
            want = 0.0 if zero_gamma and ends_block else 1.0
            assert (layer.gamma.numpy() == want).all(), layer.name
            assert not layer.beta.numpy().any()


def test_blocks_begin_as_the_identity():
    model = resnet.build("resnet18", classes=2, image_size=32)
    ends = [model.get_layer(name).output for name in ("stem_pool", "stage2")]
    before, after = keras.Model(model.input, ends)(_pixels(2, 32), training=True)
    np.testing.assert_array_equal(before, after)


def test_statistics_reach_every_batch_norm():
    model = resnet.build("resnet20", classes=2, image_size=None, bn_statistics="global")
    norms = [x for x in model.layers if isinstance(x, BatchNormalization)]
    assert {norm.statistics for norm in norms} == {"global"}
    assert {(norm.momentum, norm.epsilon) for norm in norms} == {(0.9, 1e-5)}


def _strided_conv(x, kernel, pads, stride=2):
    """NumPy: correlation of one [H, W, C] image, padded by (before, after)."""
    x = np.pad(x.astype(np.float64), [pads, pads, (0, 0)])
    size = kernel.shape[0]
    out = (x.shape[0] - size) // stride + 1
    y = np.zeros((out, out, kernel.shape[-1]))
    for i in range(out):
        for j in range(out):
            window = x[i * stride :, j * stride :][:size, :size]
            y[i, j] = np.tensordot(window, kernel, 3)
    return y


@pytest.mark.parametrize(
    "padding, stem, three", [("symmetric", (3, 3), (1, 1)), ("same", (2, 3), (0, 1))]
)
def test_padding_equals_numpy(padding, stem, three):
    model = resnet.build("resnet18", classes=2, image_size=32, padding=padding)
    names = ["normalize", "stem_conv", "stem_relu", "stem_pool"]
    names += ["stage2", "stage3_block1_conv1"]
    outputs = keras.Model(model.input, [model.get_layer(n).output for n in names])
    image, conv, relu, pool, stage2, conv3 = (
        np.asarray(y)[0] for y in outputs(_pixels(1, 32))
    )
    kernel = model.get_layer("stem_conv").kernel.numpy()
    np.testing.assert_allclose(conv, _strided_conv(image, kernel, stem), atol=1e-4)
    kernel = model.get_layer("stage3_block1_conv1").kernel.numpy()
    np.testing.assert_allclose(conv3, _strided_conv(stage2, kernel, three), atol=1e-4)
    # Max pool: padding that never wins, as no value is below -inf.
    padded = np.pad(relu, [three, three, (0, 0)], constant_values=-np.inf)
    want = np.max(
        [padded[i : i + 15 : 2, j : j + 15 : 2] for i in range(3) for j in range(3)], 0
    )
    np.testing.assert_array_equal(pool, want)


def test_paddings_agree_on_odd_sizes():
    """65 -> 33 -> 17 -> 9 -> 5 -> 3: "same" pads odd sizes symmetrically too."""
    models = [
        resnet.build("resnet18", classes=2, image_size=None, padding=padding)
        for padding in resnet.PADDINGS
    ]
    odd = [model(_pixels(1, 65)) for model in models]
    np.testing.assert_allclose(*odd, rtol=1e-5)
    even = [model(_pixels(1, 64)) for model in models]
    assert np.abs(even[0] - even[1]).max() > 1e-3 * np.abs(even[0]).max()


def test_seed_decides_the_weights():
    def kernels(seed):
        model = resnet.build("resnet20", classes=2, image_size=None, seed=seed)
        return [v.numpy() for v in model.trainable_variables if "kernel" in v.name]

    keras.utils.set_random_seed(1)
    first = kernels(7)
    keras.utils.set_random_seed(2)
    again, other = kernels(7), kernels(8)
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != c).any()
    # Layers of one shape do not share their weights.
    equal = [a.shape == (3, 3, 16, 16) for a in first]
    same_shape = [a for a, e in zip(first, equal) if e]
    assert len({a.tobytes() for a in same_shape}) == len(same_shape) > 1


def test_saving(tmp_path):
    model = resnet.build("resnet20", classes=3, image_size=8)
    model(_pixels(4, 8), training=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    images = _pixels(2, 8)
    np.testing.assert_array_equal(loaded(images), model(images))


def test_it_learns_in_fit():
    """An ordinary Keras model: 16 images by heart, labelled by brightness."""
    images = _pixels(16, 8) // 2
    images[8:] += 128
    labels = np.repeat([0, 1], 8)
    model = resnet.build("resnet20", classes=2, image_size=8)
    model.compile(
        keras.optimizers.SGD(0.02, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(images, labels, batch_size=16, epochs=12, verbose=0).history
    assert history["loss"][-1] < 0.1 < history["loss"][0]
    assert history["accuracy"][-1] == 1.0


@pytest.mark.parametrize(
    "kwargs, named",
    [
        ({"name": "resnet51"}, "resnet50.*resnet51"),
        ({"padding": "valid"}, "symmetric, same.*valid"),
        ({"classes": 0}, "classes=0"),
        ({"bn_statistics": "none"}, "worker, global.*none"),
    ],
)
def test_bad_arguments_are_named(kwargs, named):
    arguments = {"name": "resnet20", "classes": 2, "image_size": 8} | kwargs
    with pytest.raises(ValueError, match=named):
        resnet.build(arguments.pop("name"), **arguments)
