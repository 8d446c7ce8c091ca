"""The gradients of a model in the order in which backward makes them, and when."""

import math
from typing import Any, NamedTuple


class Gradient(NamedTuple):
    """One gradient.

    Attributes:
      name: path of its variable.
      elements: how many numbers it has.
      ready: the share of backward after which it is there, 0 to 1.
    """

    name: str
    elements: int
    ready: float


def gradients(model: Any) -> list[Gradient]:
    """All gradients of a built Keras model of known image size, the last layer's first.

    When one is ready is reckoned from multiplications: those of convolutions and dense
    layers, which backward does once for the kernel and once for the input (but not for
    the images). What else it does has no weights to speak of and takes no time here.
    """
    ends: list[tuple[list[Any], int]] = []
    done = 0
    layers = [layer for layer in model.layers if layer.trainable_variables]
    for layer in reversed(layers):
        kernel = getattr(layer, "kernel", None)
        if kernel is not None:
            places = math.prod(layer.output.shape[1:-1])
            once = places * math.prod(kernel.shape)
            done += once if layer is layers[0] else 2 * once
        ends.append((layer.trainable_variables[::-1], done))
    return [
        Gradient(variable.path, math.prod(variable.shape), end / done)
        for variables, end in ends
        for variable in variables
    ]
