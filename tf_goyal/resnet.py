"""The paper's residual networks (§3, §5.1), as functional Keras models.

Against other ResNet-50s: a bottleneck's stride is on its 3x3 convolution, no
convolution has a bias, BatchNorm takes its statistics per worker, and gamma starts
at 0 in the last BatchNorm of each residual block.
"""

import zlib
from typing import NamedTuple

import keras

from tf_goyal.batch_norm import BatchNormalization

# Per channel (red, green, blue) in units of a pixel's 0..255 (§5.1).
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)

PADDINGS = ("symmetric", "same")


class _Architecture(NamedTuple):
    blocks: tuple[int, ...]  # residual blocks of each stage
    width: int  # filters of the first stage; each later stage doubles them
    bottleneck: bool  # 1x1, 3x3, 1x1 with four times the filters, else 3x3, 3x3
    small_images: bool  # 3x3 stem without stride and pooling (He et al., §4.2)


_ARCHITECTURES = {
    "resnet18": _Architecture((2, 2, 2, 2), 64, False, False),
    "resnet34": _Architecture((3, 4, 6, 3), 64, False, False),
    "resnet50": _Architecture((3, 4, 6, 3), 64, True, False),
    "resnet101": _Architecture((3, 4, 23, 3), 64, True, False),
    "resnet152": _Architecture((3, 8, 36, 3), 64, True, False),
    "resnet20": _Architecture((3, 3, 3), 16, False, True),
    "resnet32": _Architecture((5, 5, 5), 16, False, True),
    "resnet56": _Architecture((9, 9, 9), 16, False, True),
}
MODELS = tuple(_ARCHITECTURES)


def build(
    name: str,
    *,
    classes: int,
    image_size: int | None,
    padding: str = "symmetric",
    zero_gamma: bool = True,
    bn_statistics: str = "worker",
    seed: int = 0,
) -> keras.Model:
    """A new model of one of `MODELS`, computing in Keras' global dtype policy.

    The model takes uint8 pixels [B, image_size, image_size, 3], 0..255, RGB, and
    returns float32 logits [B, classes]; the first layer subtracts `MEAN` and
    divides by `STD`.  The last layer of each stage is named "stage2", "stage3" ...
    as in He et al.'s conv2 ... conv5 (the stem is the first stage), so
    `model.get_layer("stage5").output` is [B, image_size / 32, image_size / 32, C].

    Args:
      name: one of `MODELS`.  resnet20, resnet32 and resnet56 are for small images:
        they divide the image's size by 4 instead of by 32.
      classes: number of logits.
      image_size: height and width in pixels; None leaves both open.
      padding: "symmetric" pads (k - 1) / 2 pixels on every side, as the paper's
        implementation does; "same" is TensorFlow's, which pads a strided layer less
        on the top and left.  Weights fit both, accuracy does not.
      zero_gamma: start gamma at 0 in the last BatchNorm of each residual block, so
        that blocks begin as the identity (§5.1); else at 1.
      bn_statistics: "worker" or "global", see `BatchNormalization`.
      seed: initial weights are a pure function of it and of the layers' names, the
        same bits in each process, whatever else drew random numbers.

    Raises:
      ValueError: for an unknown name or padding, or fewer than 1 class.
    """
    if name not in _ARCHITECTURES:
        raise ValueError(
            f"the model must be one of {', '.join(MODELS)}. Received: {name!r}"
        )
    if padding not in PADDINGS:
        raise ValueError(
            f"padding must be one of {', '.join(PADDINGS)}. Received: {padding!r}"
        )
    if classes < 1:
        raise ValueError(f"a model needs 1 class or more. Received: classes={classes}")
    architecture = _ARCHITECTURES[name]
    layers = _Layers(padding, bn_statistics, seed)
    gamma = "zeros" if zero_gamma else "ones"

    images = keras.Input((image_size, image_size, 3), dtype="uint8", name="images")
    # In float32 under every policy: bfloat16 would round a pixel to 8 bits twice.
    x = keras.layers.Rescaling(
        scale=[1.0 / s for s in STD],
        offset=[-m / s for m, s in zip(MEAN, STD)],
        dtype="float32",
        name="normalize",
    )(images)

    if architecture.small_images:
        x = layers.conv(x, architecture.width, 3, 1, "stem")
        x = layers.relu(layers.bn(x, "stem"), "stem_relu")
    else:
        x = layers.conv(x, architecture.width, 7, 2, "stem")
        x = layers.relu(layers.bn(x, "stem"), "stem_relu")
        x = layers.max_pool(x, 3, 2, "stem")

    for stage, blocks in enumerate(architecture.blocks, start=2):
        width = architecture.width * 2 ** (stage - 2)
        for block in range(1, blocks + 1):
            x = _residual_block(
                layers,
                x,
                width,
                stride=2 if stage > 2 and block == 1 else 1,
                bottleneck=architecture.bottleneck,
                last_gamma=gamma,
                name=f"stage{stage}_block{block}",
                output_name=f"stage{stage}" if block == blocks else None,
            )

    # The head is small and its numbers matter: float32 under every policy.
    x = keras.layers.GlobalAveragePooling2D(dtype="float32", name="pool")(x)
    logits = keras.layers.Dense(
        classes,
        kernel_initializer=keras.initializers.RandomNormal(
            stddev=0.01, seed=layers.seed("head")
        ),  # §5.1
        dtype="float32",
        name="head",
    )(x)
    return keras.Model(images, logits, name=name)


def stages(model: keras.Model) -> dict[str, keras.KerasTensor]:
    """The output of each stage of one of `MODELS`: "stage2" and on -> [B, h, w, C]."""
    names = (f"stage{number}" for number in range(2, 6))
    layers = {layer.name: layer for layer in model.layers}
    return {name: layers[name].output for name in names if name in layers}


def _residual_block(
    layers, x, width, *, stride, bottleneck, last_gamma, name, output_name
):
    """relu(F(x) + shortcut(x)); the shortcut is x where the shapes allow it."""
    shortcut = x
    filters = 4 * width if bottleneck else width
    if stride != 1 or x.shape[-1] != filters:
        shortcut = layers.conv(x, filters, 1, stride, f"{name}_shortcut")
        shortcut = layers.bn(shortcut, f"{name}_shortcut", relu_follows=False)
    # Kernel size and stride of each convolution; §5.1: the bottleneck's stride is on
    # the 3x3, not on the first 1x1.
    if bottleneck:
        convs = [(width, 1, 1), (width, 3, stride), (filters, 1, 1)]
    else:
        convs = [(width, 3, stride), (filters, 3, 1)]
    for i, (conv_filters, kernel, conv_stride) in enumerate(convs, start=1):
        last = i == len(convs)
        x = layers.conv(x, conv_filters, kernel, conv_stride, f"{name}_{i}")
        if last:
            x = layers.bn(x, f"{name}_{i}", gamma=last_gamma, relu_follows=False)
        else:
            x = layers.bn(x, f"{name}_{i}")
            x = layers.relu(x, f"{name}_relu{i}")
    x = keras.layers.Add(name=f"{name}_add")([x, shortcut])
    return layers.relu(x, output_name or f"{name}_relu{len(convs)}")


class _Layers:
    """Makes the layers that every model consists of, with one set of choices."""

    def __init__(self, padding, bn_statistics, seed):
        self._padding = padding
        self._bn_statistics = bn_statistics
        self._seed = seed

    def seed(self, name):
        """A seed of its own for each layer, from its name and not from a counter."""
        return zlib.crc32(f"{self._seed}/{name}".encode())

    def conv(self, x, filters, kernel, stride, prefix):
        name = _name(prefix, "conv")
        return keras.layers.Conv2D(
            filters,
            kernel,
            strides=stride,
            use_bias=False,
            # He et al. (2015): normal with variance 2 / fan_out.
            kernel_initializer=keras.initializers.VarianceScaling(
                scale=2.0,
                mode="fan_out",
                distribution="untruncated_normal",
                seed=self.seed(name),
            ),
            padding=self._pad(stride),
            name=name,
        )(self._padded(x, kernel, stride, name))

    def bn(self, x, prefix, *, gamma="ones", relu_follows=True):
        return BatchNormalization(
            statistics=self._bn_statistics,
            gamma_initializer=gamma,
            rows=not relu_follows,
            name=_name(prefix, "bn"),
        )(x)

    def relu(self, x, name):
        return keras.layers.ReLU(name=name)(x)

    def max_pool(self, x, kernel, stride, prefix):
        name = f"{prefix}_pool"
        # x comes out of a ReLU, so zeros lose against any element of a window just
        # as the -inf of a pool with padding would.
        return keras.layers.MaxPooling2D(
            kernel, stride, padding=self._pad(stride), name=name
        )(self._padded(x, kernel, stride, name))

    def _pad(self, stride):
        # With stride 1 "same" is symmetric and needs no layer of its own.
        return "valid" if stride > 1 and self._padding == "symmetric" else "same"

    def _padded(self, x, kernel, stride, name):
        # A layer of its own, as tf.nn.conv2d's explicit padding has no oneDNN kernel:
        # 30 times slower in bfloat16.
        if self._pad(stride) == "same" or kernel == 1:
            return x
        return keras.layers.ZeroPadding2D((kernel - 1) // 2, name=f"{name}_pad")(x)


def _name(prefix, kind):
    """Gives "stem_conv" for "stem", "stage2_block1_conv3" for "stage2_block1_3"."""
    head, _, tail = prefix.rpartition("_")
    return f"{head}_{kind}{tail}" if tail.isdigit() else f"{prefix}_{kind}"
