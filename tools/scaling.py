"""What would my cluster do: step time and efficiency from one server to many.

python tools/scaling.py [--devices=256 --devices_per_server=8 --gbits=50 --latency_us=10
    --allreduce=auto --bucket_mb=auto --gradient_dtype=float32 --output=scaling.png]

Simulates a training step of the model's real layers (see step_simulation.py) on 1, 2,
4 ... servers up to --devices, and tries other settings on the largest. The defaults are
the paper's cluster (§4.3). For your own, give --forward_ms and --backward_ms of one
device or let --measure time them here, and the network: --latency_us and --gbits, and
the software's costs by flags or fitted to --measured, a file of bench_allreduce.py.

With --output it draws a PNG and writes all numbers beside it as JSON.
"""

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
import network_results
import paper_cluster
import scaling_plot
import scaling_study
from absl import flags as absl_flags
from step_simulation import Cluster, Work

from tf_goyal import cost_model, flags, gradient_order, start
from tf_goyal.cost_model import Network

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ALGORITHMS = ("ring", "halving_doubling", "doubling", "auto")
_LISTED_SETTINGS = 8
_MOST = 1e9  # of any flag's unit, and its inverse the least: no step gets infinite
# Long helps of flags.
_INSIDE = "10^9 bytes/s in which a server's devices are added up, or get the sum."
_STRAGGLING = (
    "Standard deviation of a server's work, as a share of it; all wait for the "
    "slowest. 0: none."
)
_SHARED_CORES = "Of hosts emulated on one machine: its cores. 0: real hosts."


def define(values: absl_flags.FlagValues) -> None:
    """The flags of this tool."""
    for name, default, text in (
        ("devices", 256, "Devices of the largest cluster."),
        ("devices_per_server", 8, "Devices of a server."),
        ("in_flight", paper_cluster.IN_FLIGHT, "Buckets under way at once, at most."),
        ("worker_batch", 32, "Images per device and step."),
        ("image_size", 224, "Height and width of the images, pixels."),
        ("classes", 1000, "Classes of the model."),
    ):
        absl_flags.DEFINE_integer(
            name, default, text, lower_bound=1, flag_values=values
        )
    network, seconds = paper_cluster.NETWORK, paper_cluster.SECONDS
    for name, default, text in (
        ("latency_us", 1e6 * network.latency, "One way between servers, microseconds."),
        ("gbits", 8e-9 * network.bandwidth, "A server's link, Gbit/s; 0: no limit."),
        (
            "message_us",
            1e6 * network.message_seconds,
            "Software, µs per message.",
        ),
        ("copy_ns", 1e9 * network.copy_seconds, "Copying and adding, ns per byte."),
        ("inside_gbytes", 1e-9 * network.inside_bandwidth, _INSIDE),
        ("forward_ms", 1e3 * seconds["forward"], "Forward, milliseconds."),
        ("backward_ms", 1e3 * seconds["backward"], "Backward, milliseconds."),
        ("rest_ms", 1e3 * seconds["rest"], "Input, update ..., milliseconds."),
        ("straggling", paper_cluster.STRAGGLING, _STRAGGLING),
        ("shared_cores", 0.0, _SHARED_CORES),
    ):
        absl_flags.DEFINE_float(name, default, text, lower_bound=0, flag_values=values)
    for name, default, choices, text in (
        ("allreduce", "auto", _ALGORITHMS, "Between servers; auto: the better one."),
        ("gradient_dtype", "float32", tuple(ELEMENT_BYTES), "Gradients on their way."),
    ):
        absl_flags.DEFINE_enum(name, default, choices, text, flag_values=values)
    for name, default, text in (
        ("model", "resnet50", "As of tf_goyal.train."),
        ("bucket_mb", "auto", "MB of 2^20 bytes; 0: each gradient alone; or auto."),
        ("measured", "", "JSON of bench_allreduce.py to fit the software's costs to."),
        ("measured_network", "", "Which of its networks."),
        ("output", "", "PNG to draw; the numbers go beside it."),
    ):
        absl_flags.DEFINE_string(name, default, text, flag_values=values)
    for name, text in (
        ("json", "Print JSON instead of tables."),
        ("measure", "Time forward and backward on this machine's device."),
        ("compute_on_host", "Devices are the hosts' processors, which copy as well."),
    ):
        absl_flags.DEFINE_boolean(name, False, text, flag_values=values)


def measurements(path: Path, network: str) -> list[dict[str, Any]]:
    """The all-reduces that bench_allreduce.py measured on a network.

    Args:
      path: its JSON.
      network: the name that it was given there.

    Returns:
      What `cost_model.fit` takes.

    Raises:
      ValueError: it is no such file, or has no such network.
    """
    try:
        runs = [run for run in network_results.load(path) if run.get("sizes")]
    except ValueError as error:
        raise ValueError(f"--measured: {error}") from error
    found = [
        {
            "algorithm": algorithm,
            "p": run["processes"],
            "bytes": 4 * size["elements"],
            "seconds": seconds,
        }
        for run in runs
        if run["network"] == network
        for size in run["sizes"]
        for algorithm, seconds in size["seconds"].items()
    ]
    if not found:
        names = ", ".join(sorted({repr(run["network"]) for run in runs})) or "none"
        raise ValueError(
            f"--measured_network must be a network of {path}: {names}. Received: "
            f"{network!r}"
        )
    return found


def show(result: dict[str, Any]) -> None:
    """Prints the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000  # characters

    def table(title, heads, rows):
        shown = Table(box=None, pad_edge=False)
        for head in heads.split(","):
            shown.add_column(head, justify="right")
        for row in rows:
            shown.add_row(*row)
        console.print(title, style="bold")
        console.print(shown)
        console.print()

    table(
        "From one server to many",
        "devices,servers,step,slowest,exposed,efficiency,images/s,buckets,last bucket,"
        "between servers",
        [
            (
                f"{row['devices']:,}",
                f"{row['servers']:,}",
                _ms(row["step_seconds"]),
                _ms(row["slowest_seconds"]),
                _ms(row["exposed_seconds"]),
                f"{100 * row['efficiency']:.1f} %",
                f"{row['images_per_second']:,.0f}",
                f"{row['buckets']}",
                f"{row['last_bucket_bytes'] / scaling_study.MB:.2f} MB",
                ", ".join(row["algorithms"]),
            )
            for row in result["scaling"]
        ],
    )
    table(
        f"Settings for {result['scaling'][-1]['devices']:,} devices, the quickest of "
        f"{len(result['settings'])}",
        "allreduce,bucket_mb,in flight,gradients,step,exposed,efficiency,buckets",
        [
            (
                row["allreduce"],
                f"{row['bucket_mb']}",
                f"{row['in_flight']}",
                f"{row['bytes_per_gradient']} bytes",
                _ms(row["step_seconds"]),
                _ms(row["exposed_seconds"]),
                f"{100 * row['efficiency']:.1f} %",
                f"{row['buckets']}",
            )
            for row in result["settings"][:_LISTED_SETTINGS]
        ],
    )


def measure(model: Any, batch: int, image_size: int) -> tuple[float, float]:
    """Seconds of the model's forward and backward here: medians of 5."""
    import tensorflow as tf

    images = tf.zeros([batch, image_size, image_size, 3], tf.uint8)

    @tf.function
    def forward():
        return tf.reduce_sum(model(images, training=True))

    @tf.function
    def both():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images, training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        return tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])

    seconds = _median_seconds(forward), _median_seconds(both)
    return seconds[0], max(0.0, seconds[1] - seconds[0])


def _median_seconds(work: Callable[[], Any]) -> float:
    turns = []
    for _ in range(6):
        before = time.perf_counter()
        work().numpy()
        turns.append(time.perf_counter() - before)
    return statistics.median(turns[1:])


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Without what is infinite, which JSON cannot say."""
    return {
        key: _plain(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if value != float("inf")
    }


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


def _model(name: str, classes: int, image_size: int) -> Any:
    from tf_goyal import resnet

    return resnet.build(name, classes=classes, image_size=image_size)


def _bucket_bytes(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < 2**40:
        raise ValueError(
            f"--bucket_mb must be a number of MB from 0 on, or auto. Received: {text!r}"
        )
    return int(size * scaling_study.MB)


def validate(values: Any) -> None:
    """Refuses what no step can be simulated with or written to.

    Raises:
      ValueError: a number is nan, infinite or out of all bounds, or --output cannot be
        written.
    """
    for name in values:
        value = values[name].value
        if isinstance(value, float) and value and not 1 / _MOST <= value <= _MOST:
            raise ValueError(
                f"--{name} must be 0 or a number from {1 / _MOST:g} to {_MOST:g} of "
                f"its unit, see --help. Received: {value}"
            )
    if not values.output:
        return
    output = Path(values.output)
    if output.suffix.lower() != ".png":
        raise ValueError(
            f"--output must be a file that ends in .png. Received: {values.output!r}; "
            "the numbers go beside it"
        )
    numbers = output.with_suffix(".json")
    if values.measured and numbers.resolve() == Path(values.measured).resolve():
        raise ValueError(
            f"--output must not write its numbers over --measured. Received: {output}; "
            "give it another name"
        )
    for path in (output, numbers):
        is_new = not os.path.lexists(path)
        try:
            path.open("ab").close()
        except OSError as error:
            raise ValueError(
                "--output must be a file that can be written, as its numbers beside "
                f"it. Received: {output}, and {path} fails: {error.strerror}"
            ) from error
        if is_new:
            path.unlink()


def cluster_of(values: Any) -> Cluster:
    """The cluster that the flags describe.

    Raises:
      ValueError: they contradict each other.
    """
    if values.devices % values.devices_per_server:
        raise ValueError(
            f"--devices={values.devices} must be a multiple of "
            f"--devices_per_server={values.devices_per_server}"
        )
    if not values.inside_gbytes and values.devices_per_server > 1:
        raise ValueError("--inside_gbytes must be more than 0 for several devices")
    network = Network(
        latency=1e-6 * values.latency_us,
        bandwidth=1e9 / 8 * values.gbits or float("inf"),
        message_seconds=1e-6 * values.message_us,
        copy_seconds=1e-9 * values.copy_ns,
        members=values.devices_per_server,
        inside_bandwidth=1e9 * values.inside_gbytes or float("inf"),
        cores=values.shared_cores or float("inf"),
    )
    if values.measured:
        found = measurements(Path(values.measured), values.measured_network)
        network = fitted(found, network)
    return Cluster(
        servers=values.devices // values.devices_per_server,
        network=network,
        algorithm=values.allreduce,
        bucket_bytes=_bucket_bytes(values.bucket_mb),
        in_flight=values.in_flight,
        element_bytes=ELEMENT_BYTES[values.gradient_dtype],
        straggling=values.straggling,
        compute_on_host=values.compute_on_host,
    )


def fitted(found: Sequence[dict[str, Any]], network: Network) -> Network:
    """`network` with the software's costs of measurements of one process a host.

    Without those of a call: a bucket is none.
    """
    alone = cost_model.fit(found, dataclasses.replace(network, members=1))
    return dataclasses.replace(alone, members=network.members, start_seconds=0.0)


def main(_: list[str]) -> int:
    """Simulates, prints and draws. Returns the exit code."""
    values = flags.FLAGS
    validate(values)
    cluster = cluster_of(values)
    start.tensorflow()
    model = _model(values.model, values.classes, values.image_size)
    seconds = 1e-3 * values.forward_ms, 1e-3 * values.backward_ms
    if values.measure:
        seconds = measure(model, values.worker_batch, values.image_size)
    work = Work(*seconds, 1e-3 * values.rest_ms, gradient_order.gradients(model))
    result = {
        "model": values.model,
        "gradients": len(work.gradients),
        "forward_seconds": work.forward,
        "backward_seconds": work.backward,
        "rest_seconds": work.rest,
        "cluster": _plain(dataclasses.asdict(cluster)),
        "scaling": scaling_study.scale(work, cluster, values.worker_batch),
        "settings": scaling_study.settings(work, cluster),
    }
    if values.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)
    if values.output:
        output = Path(values.output)
        result["curves"] = scaling_study.curves(work, cluster)
        scaling_plot.draw(result["curves"], cluster, output)
        described = {"machine": machine.describe(), **result}
        text = json.dumps(described, indent=1)
        output.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    flags.run(main, define=define, with_config=False)
