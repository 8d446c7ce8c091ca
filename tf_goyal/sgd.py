"""SGD with momentum correction and coupled weight decay (§3)."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf


class _Rates(NamedTuple):
    """What a step's learning rate means for the velocity; float32 scalars."""

    eta: tf.Tensor  # the learning rate; 0: the weights stay
    unit: tf.Tensor  # r, the rate the velocity is a multiple of after this step
    ratio: tf.Tensor  # r / r_old


@keras.saving.register_keras_serializable(package="tf_goyal")
class SGD(keras.optimizers.SGD):
    """Momentum SGD as the paper states it, stored as Keras does.

    With g the gradient of the loss over all kn images, w a weight and m the
    momentum, a step is form A (§3, eq. 9):

        g <- g + weight_decay w        (kernels only)
        u <- m u + g
        w <- w - eta u                 (Nesterov: w <- w - eta (g + m u))

    Keras keeps form B (eq. 10), the velocity v = -eta u, and forgets that eta is in
    it: after a change of eta the old velocity has the wrong size. Momentum
    correction (§3) rescales what is stored whenever the rate changes,

        v <- m (eta / eta_old) v - eta g
        w <- w + v                     (Nesterov: w <- w + m v - eta g)

    which is form A for every sequence of rates. Only the stored velocity is
    rescaled; the m of Nesterov's look-ahead stays as it is. A rate of 0 keeps the
    weights and goes on collecting gradients, as form A does: the velocity is then
    held in units of the last rate that was not 0 (of 1 before there was one).
    That unit is the optimizer variable `previous_learning_rate`.

    Weight decay is the paper's (§3): weight_decay w joins the summed gradient once
    per step, before momentum, and only on convolution and fully connected kernels
    (variables whose name ends in "kernel"), not on biases, gamma and beta. Two
    rivals differ: `weight_decay` of `keras.optimizers.SGD` is decoupled
    (w <- w - eta weight_decay w beside the momentum), and
    `keras.regularizers.L2(x)` adds the gradient 2 x w.

    Args:
        learning_rate: eta: a float, a schedule, or a callable without arguments.
        momentum: m, between 0 and 1. With 0 there is no velocity.
        nesterov: Whether to use Nesterov momentum, as the paper does (§5.1).
        weight_decay: lambda, the factor of w in the gradient.
        momentum_correction: False keeps the fault (what `keras.optimizers.SGD`
            does), for comparison.
        **kwargs: The other arguments of `keras.optimizers.SGD`. Clipping acts on
            the gradient before weight decay joins it.

    Under a `tf.distribute` strategy, `apply_gradients` may be called inside
    `strategy.run`, where Keras sums the gradients over the devices (§3, remark 3),
    or outside of it with gradients that are summed already.

    Raises:
        ValueError: If `weight_decay` is negative or `momentum` not in 0 ... 1.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.1,
        momentum: float = 0.9,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        momentum_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        if weight_decay < 0:
            raise ValueError(
                f"weight_decay must not be negative. Received: {weight_decay}."
            )
        # Keras is told of no weight decay: its own is decoupled.
        super().__init__(learning_rate, momentum, nesterov, weight_decay=None, **kwargs)
        self.coupled_weight_decay = weight_decay
        self.momentum_correction = momentum_correction

    def build(self, variables: list[keras.Variable]) -> None:
        """Makes the velocities and `previous_learning_rate`.

        Args:
            variables: The trainable variables, in the order of the gradients.
        """
        if self.built:
            return
        super().build(variables)
        if self._corrects:
            self.previous_learning_rate = self.add_variable(
                shape=(),
                dtype="float32",
                aggregation="only_first_replica",
                name="previous_learning_rate",
            )
        self._decayed_indices = frozenset(
            i
            for i, variable in enumerate(variables)
            if self.coupled_weight_decay
            and variable.name.split(":")[0].endswith("kernel")
            and self._use_weight_decay(variable)  # Keras' exclude_from_weight_decay
        )

    @property
    def decayed_variables(self) -> list[keras.Variable]:
        """The variables that weight decay acts on; empty until built."""
        variables = self._trainable_variables
        return [v for i, v in enumerate(variables) if i in self._decayed_indices]

    @property
    def _corrects(self) -> bool:
        return self.momentum_correction and self.momentum != 0

    def _backend_update_step(
        self,
        grads: list[tf.Tensor],
        trainable_variables: list[keras.Variable],
        learning_rate: tf.Tensor,
    ) -> None:
        # Keras comes here once per update of the weights, with the step's rate, and
        # from here to update_step once per variable and device. So this is where
        # the ratio is made and the old rate replaced.
        if self._corrects:
            eta = tf.cast(learning_rate, tf.float32)
            old = tf.convert_to_tensor(self.previous_learning_rate)
            unit = tf.where(eta != 0, eta, tf.where(old != 0, old, 1.0))
            ratio = tf.where(old != 0, unit / old, 1.0)
            learning_rate = _Rates(eta, unit, ratio)

        if tf.distribute.has_strategy() and tf.distribute.get_replica_context():
            super()._backend_update_step(grads, trainable_variables, learning_rate)
        else:
            # Not inside strategy.run: the gradients are the sums over the devices,
            # plain tensors or one equal copy per device, and each device takes its
            # own. Keras would try to reduce the copies once more, and fail.
            for gradient, variable in zip(grads, trainable_variables):
                if isinstance(variable, keras.Variable):
                    variable = variable.value
                self._distribution_strategy.extended.update(
                    variable,
                    lambda v, g, r: self.update_step(g, v, r),
                    args=(gradient, learning_rate),
                    group=False,
                )

        if self._corrects:
            self.previous_learning_rate.assign(unit)

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor | _Rates,
    ) -> None:
        """Updates one variable and its velocity; see the class for the rule."""
        index = self._get_variable_index(variable)
        gradient = tf.convert_to_tensor(tf.cast(gradient, variable.dtype))
        # §3, remark 1: not part of the loss, so that it is scaled by eta alone.
        if index in self._decayed_indices:
            gradient += self.coupled_weight_decay * variable

        if not self._corrects:
            super().update_step(gradient, variable, learning_rate)
            return

        # §3, remark 2, momentum correction.
        eta, unit, ratio = (tf.cast(r, variable.dtype) for r in learning_rate)
        momentum = tf.constant(self.momentum, variable.dtype)
        velocity = self.momentums[index].value

        def move() -> None:
            # v <- m v - eta g and w <- w + v (or m v - eta g) in one kernel.
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=variable.handle,
                accum=velocity.handle,
                lr=unit,
                grad=gradient,
                momentum=momentum,
                use_nesterov=self.nesterov,
            )

        def rescale_and_move() -> None:
            velocity.assign(velocity * ratio)
            move()

        def collect() -> None:
            # The unit is the old one, so there is nothing to rescale.
            velocity.assign(velocity * momentum - unit * gradient)

        tf.cond(
            eta != 0,
            lambda: tf.cond(ratio != 1, rescale_and_move, move),
            collect,
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return super().get_config() | {
            "weight_decay": self.coupled_weight_decay,
            "momentum_correction": self.momentum_correction,
        }
