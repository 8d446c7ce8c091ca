"""Batch normalisation over one virtual worker's images, with the fused kernel.

Remark 5 of the paper (§2.3): the loss is a function of n, the number of images that
BatchNorm takes its statistics over, so n stays fixed while the number of workers k
changes.  The layer therefore normalises over exactly the tensor it is called with,
which is one worker's n images, and never looks across workers unless it is told to.
"""

import keras
import tensorflow as tf

STATISTICS = ("worker", "global")
_KERNEL_DTYPES = ("float32", "bfloat16", "float16")


@keras.saving.register_keras_serializable(package="tf_goyal")
class BatchNormalization(keras.layers.Layer):
    """Normalises each channel of an NHWC tensor.

    Training, with mean and variance over the N = B·H·W elements of a channel:

        y = gamma * (x - mean) / sqrt(variance + epsilon) + beta
        moving_mean     <- momentum * moving_mean + (1 - momentum) * mean
        moving_variance <- momentum * moving_variance
                           + (1 - momentum) * variance * N / (N - 1)

    y is normalised by the biased variance, the running average is of the unbiased
    one, which is what the fused kernel returns and what cuDNN and PyTorch keep.
    `keras.layers.BatchNormalization` averages the biased one.

    Inference (and training while `layer.trainable` is False, as in Keras) uses the
    moving statistics.

    Weights: gamma, beta, moving_mean and moving_variance, all [C] and all float32
    under every dtype policy; the kernel takes float16 or bfloat16 x beside float32
    statistics.

    Args:
      statistics: "worker": over the images in the call (§2.3).  "global": over the
        images of all replicas of the `tf.distribute` strategy, which may hold
        different numbers of them, for the paper's comparison.  It costs two small
        all-reduces in forward and two in backward and leaves the fused kernel
        unless there is only one replica.  As the all-reduces stand in the middle of
        the model, each replica must call the model once per step and, under
        MirroredStrategy, not from inside a `tf.while_loop`.
      momentum: how much of the old moving statistics a step keeps, 0.9 in the
        paper (§5.1).
      epsilon: added to the variance.  The paper does not state it.
      gamma_initializer: "ones", or "zeros" in the last BatchNorm of a residual
        block (§5.1).
      rows: give the training kernel [B·H·W, 1, 1, C] where there is no GPU: the same
        statistics, and 1.1 to 1.4 times as fast in oneDNN from about 256 channels
        on, which then walks along memory.  Not where a ReLU follows directly, as
        TensorFlow computes the two in one kernel only if nothing stands between.
      **kwargs: those of `keras.layers.Layer`.

    Raises:
      ValueError: for unknown statistics, a momentum outside [0, 1], a negative
        epsilon, an input that is not [B, H, W, C] with known C, or a policy that
        computes in another type than float32, bfloat16 or float16.
    """

    def __init__(
        self,
        statistics: str = "worker",
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        gamma_initializer="ones",
        rows: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if statistics not in STATISTICS:
            raise ValueError(
                f"statistics must be one of {', '.join(STATISTICS)}. "
                f"Received: statistics={statistics!r}"
            )
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(
                "momentum is the share of the old moving statistics that a step "
                f"keeps and must lie in [0, 1]. Received: momentum={momentum}"
            )
        if not epsilon >= 0.0:
            raise ValueError(
                "epsilon is added to the variance and must not be negative. "
                f"Received: epsilon={epsilon}"
            )
        if self.compute_dtype not in _KERNEL_DTYPES:
            raise ValueError(
                "the fused kernel computes in float32, bfloat16 or float16; give "
                "the layer such a dtype policy. "
                f"Received: dtype={self.dtype_policy.name}"
            )
        self.statistics = statistics
        self.momentum = float(momentum)
        self.epsilon = float(epsilon)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)
        self.rows = bool(rows)

    def build(self, input_shape):
        if len(input_shape) != 4 or input_shape[-1] is None:
            raise ValueError(
                "BatchNormalization takes images [B, H, W, C], channels last, with "
                "a known number of channels C; use keras.layers.BatchNormalization "
                f"for other ranks and layouts. Received: shape={tuple(input_shape)}"
            )
        channels = input_shape[-1]

        def add(name, initializer, trainable):
            # Neither autocast nor the policy may touch the statistics' float32.
            # Replicas that assign different moving statistics get their mean: a
            # moving average is linear, so that is the average of the means.
            return self.add_weight(
                name=name,
                shape=(channels,),
                initializer=initializer,
                trainable=trainable,
                dtype="float32",
                autocast=False,
                aggregation="none" if trainable else "mean",
            )

        self.gamma = add("gamma", self.gamma_initializer, True)
        self.beta = add("beta", "zeros", True)
        self.moving_mean = add("moving_mean", "zeros", False)
        self.moving_variance = add("moving_variance", "ones", False)
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def call(self, inputs, training=None):
        """[B, H, W, C] of the compute dtype -> the same."""
        training = bool(training) and self.trainable
        if training and self.statistics == "global" and _replicas() > 1:
            outputs, mean, variance = self._normalise_over_replicas(inputs)
        else:
            rows = self.rows and training and not tf.config.list_logical_devices("GPU")
            # In training the kernel blends its moving averages itself: it returns
            # (1 - factor) * moving + factor * batch.
            outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
                x=tf.reshape(inputs, [-1, 1, 1, inputs.shape[-1]]) if rows else inputs,
                scale=self.gamma,
                offset=self.beta,
                mean=self.moving_mean,
                variance=self.moving_variance,
                epsilon=self.epsilon,
                exponential_avg_factor=1.0 - self.momentum,
                is_training=training,
            )
            if rows:
                outputs = tf.reshape(outputs, tf.shape(inputs))
        if training:
            # Plain assigns, so that a StatelessScope (`model.stateless_call`) gets
            # the new values as data and the layer's own stay as they were.
            self.moving_mean.assign(mean)
            self.moving_variance.assign(variance)
        return outputs

    def _normalise_over_replicas(self, inputs):
        """Outputs and new moving statistics; differentiable through the sums."""
        context = tf.distribute.get_replica_context()

        def over_replicas(value):
            return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

        x = tf.cast(inputs, tf.float32)  # [B, H, W, C]
        elements = tf.cast(tf.size(x) / tf.shape(x)[-1], tf.float32)  # N here
        sums = tf.concat([tf.reduce_sum(x, [0, 1, 2]), elements[None]], 0)
        sums = over_replicas(sums)  # [C + 1]
        elements = sums[-1]
        mean = sums[:-1] / elements
        # The second all-reduce is worth it: mean(x²) - mean² cancels in float32.
        squares = over_replicas(
            tf.reduce_sum(tf.math.squared_difference(x, mean), [0, 1, 2])
        )
        variance = squares / elements
        outputs = tf.nn.batch_normalization(
            x, mean, variance, self.beta, self.gamma, self.epsilon
        )
        unbiased = squares / tf.maximum(elements - 1.0, 1.0)

        def blend(moving, batch):
            return self.momentum * moving + (1.0 - self.momentum) * batch

        return (
            tf.cast(outputs, inputs.dtype),
            blend(self.moving_mean, mean),
            blend(self.moving_variance, unbiased),
        )

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "statistics": self.statistics,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
            "rows": self.rows,
        }


def _replicas() -> int:
    """Replicas that take part in this call; 1 where a strategy only builds."""
    context = tf.distribute.get_replica_context()
    return context.num_replicas_in_sync if context else 1
