"""python -m tf_goyal.doctor: checks a run without training.

It takes the flags of train and refuses what train refuses, with the same sentence.
Then it shows the recipe as it will run, every deviation from the paper, the layout
of the virtual workers over the devices, steps and learning rates, memory and
messages, the cluster, the data and the storage. With --data it proves that an epoch is
the data set; with --full it also reads and decodes every record.

Exit codes: 0 all right (deviations are no failure), 2 refused.
"""

import json
import os
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from tf_goyal import cluster, flags, memory_cache, preflight, resume, start, storage
from tf_goyal.cluster import Cluster
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset

_NAMED = 3  # broken records in the sentence that refuses them


def define(values: absl_flags.FlagValues) -> None:
    """The flags of doctor."""
    absl_flags.DEFINE_bool(
        "json", False, "Print one JSON object and nothing else.", flag_values=values
    )
    absl_flags.DEFINE_bool(
        "data",
        False,
        "Prove that one epoch over the virtual workers gives every record exactly "
        "once.",
        flag_values=values,
    )
    absl_flags.DEFINE_bool(
        "full",
        False,
        "What --data does; and read and decode every record of both splits, and tell "
        "what is in them and which are broken.",
        flag_values=values,
    )
    absl_flags.DEFINE_bool(
        "list_variables",
        False,
        "Print the name of every variable that weight decay acts on.",
        flag_values=values,
    )
    absl_flags.DEFINE_integer(
        "processes",
        None,
        "Number of processes to lay the run out for, each with --devices devices, "
        "whatever is here; default: those of the cluster described here, else 1.",
        lower_bound=1,
        flag_values=values,
    )


def main(_: list[str]) -> int:
    """Gathers the facts and prints them. Returns the exit code.

    Raises:
        ValueError: train would refuse the input, or the storage or the data will not
            do.
    """
    settings = flags.config_from_flags()
    members = cluster.from_environment(
        os.environ,
        worker_hosts=settings.worker_hosts,
        task_index=settings.task_index,
        expected_workers=settings.expected_workers,
    )
    processes = flags.FLAGS.processes or members.processes
    # Nothing is read twice here: a cache would only fill the memory.
    data = memory_cache.uncached(preflight.check(settings, processes))
    _, manifest = resume.last_checkpoint(settings, data)
    tried = None
    if members.is_chief:
        tried = storage.trial_write(settings.model_dir)

    # From here on TensorFlow runs.
    start.tensorflow()
    from tf_goyal import build, data_report, doctor_tables, order_proof

    build.prepare_tensorflow(settings)
    devices = settings.devices
    # Another number of processes may mean other machines: nothing is looked for here.
    if not (flags.FLAGS.processes and devices):
        here = cluster.local_devices(
            members, allreduce=settings.allreduce, devices=devices
        )
        devices = len(here)
    assigned = cluster.assign(settings.virtual_workers, processes * devices)
    reading = None
    if flags.FLAGS.full:
        reading = data_report.read(
            data,
            label_offset=settings.label_offset,
            dct=settings.dct,
            threads=build.threads(settings).count,
        )
    facts = gather(
        settings,
        members,
        data,
        processes=processes,
        assigned=assigned,
        tried=tried,
        start_step=manifest["step"],
        reading=reading,
    )
    if flags.FLAGS.data or flags.FLAGS.full:
        facts["proof"] = order_proof.prove(
            assigned,
            build.order(settings, data.train.part_sizes),
            global_batch=settings.global_batch,
            worker_batch=settings.worker_batch,
        )

    if flags.FLAGS.json:
        print(json.dumps(facts))
    else:
        doctor_tables.show(facts, list_variables=flags.FLAGS.list_variables)
    refuse_failures(facts)
    return 0


def gather(
    settings: Config,
    members: Cluster,
    data: Dataset,
    *,
    processes: int,
    assigned: list[range],
    tried: Path | None,
    start_step: int,
    reading: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """All facts but the proof, as JSON values.

    Args:
        settings: of the run.
        members: the cluster that this process belongs to.
        data: the run's.
        processes: to lay the run out for.
        assigned: the virtual workers of each device.
        tried: where the trial write was done; None where it was not tried.
        start_step: steps done in the checkpoint that train would go on from.
        reading: `data_report.read`'s, if all records were read.
    """
    from tf_goyal import doctor_facts, input_memory

    network, optimizer = doctor_facts.on_cpu(settings, data)
    most_pixels = max((s["most_pixels"] for s in (reading or {}).values()), default=0)
    facts = {
        "recipe": doctor_facts.recipe(settings, data),
        "deviations": doctor_facts.deviations(settings, data),
        "layout": doctor_facts.layout(processes, assigned),
        "learning_rate": doctor_facts.learning_rate(settings, len(data.train)),
        "model": doctor_facts.model(network, optimizer),
        "memory": doctor_facts.memory(
            settings, network, optimizer, processes, len(assigned)
        ),
        "input_memory": input_memory.estimate(settings, data, processes, most_pixels),
        "messages": doctor_facts.messages(settings, network),
        "cluster": doctor_facts.cluster(members),
        "data": doctor_facts.data(data),
        "storage": doctor_facts.storage(
            settings, len(data.train), network, optimizer, tried, start_step
        ),
    }
    if reading:
        facts["reading"] = reading
        facts["max_bad_records"] = settings.max_bad_records
    return facts


def refuse_failures(facts: dict[str, Any]) -> None:
    """What the facts, once shown, say about the storage, the order and the data.

    Raises:
        ValueError: something will not do.
    """
    if "proof" in facts and not facts["proof"]["holds"]:
        raise ValueError(
            "every record must come exactly once an epoch, but this order's counts "
            f"are {facts['proof']['epochs']}: this is a bug, report it with the flags"
        )
    if "reading" in facts:
        _refuse_data(facts["reading"], facts["max_bad_records"])
    found = facts["storage"]
    free = found["free_bytes"]
    if free is not None and free < found["needed_bytes"]:
        raise ValueError(
            f"the disk of {found['model_dir']} must have {found['needed_bytes']:,} "
            f"bytes free for the checkpoints, but has {free:,}: free "
            "some or lower --keep_checkpoints"
        )


def _refuse_data(reading: dict[str, Any], most: int) -> None:
    for split in reading.values():
        if first := split["labels_out_of_range"]["first"]:
            raise ValueError(
                f"{first}: repair this record or labels.txt, or set --label_offset if "
                "all are off"
            )
    for name, split in reading.items():
        if split["broken"] and len(split["broken"]) == split["records"]:
            first = split["broken"][0]
            raise ValueError(
                f"the {name} split must have good records, but none of its "
                f"{split['records']:,} is, the first one being {first['place']} "
                f"({first['reason']}): copy or prepare the data again"
            )
    broken = [each for split in reading.values() for each in split["broken"]]
    if len(broken) > most:
        named = [f"{each['place']} ({each['reason']})" for each in broken[:_NAMED]]
        if more := len(broken) - len(named):
            named.append(f"{more:,} more")
        raise ValueError(
            f"at most --max_bad_records={most} records may be broken, but "
            f"{len(broken):,} are: {'; '.join(named)}: copy or prepare the data again, "
            "or allow more"
        )


if __name__ == "__main__":
    flags.run(main, define=define)
