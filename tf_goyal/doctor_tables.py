"""The facts of doctor as tables for people."""

from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as RichTable

from tf_goyal.config import Config
from tf_goyal.deviations import written

_LISTED_DEVICES = 16  # of more, only the numbers are shown
_LISTED_BROKEN = 20
_LISTED_CLASSES = 20


class Table(NamedTuple):
    """Rows of texts; without heads the first column names the second."""

    title: str
    rows: list[tuple[str, ...]]
    heads: tuple[str, ...] = ("", "")


def show(facts: dict[str, Any], *, list_variables: bool = False) -> None:
    """Prints all tables; lines are wrapped on a terminal only."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000  # characters
    for title, rows, heads in tables(facts, list_variables):
        table = RichTable(*heads, show_header=any(heads), box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        console.print(title, style="bold")
        console.print(table)
        console.print()


def tables(facts: dict[str, Any], list_variables: bool = False) -> list[Table]:
    """All that doctor shows, from what its --json prints."""
    return [
        _recipe(facts["recipe"]["flags"]),
        _deviations(facts["deviations"]),
        _sizes(facts["recipe"]),
        _layout(facts["layout"]),
        _learning_rate(facts["learning_rate"]),
        _model(facts["model"], list_variables),
        _memory(facts["memory"], facts["messages"]),
        _input_memory(facts["input_memory"]),
        _cluster(facts["cluster"]),
        _data(facts["data"], facts.get("proof")),
        *_reading(facts.get("reading", {})),
        _storage(facts["storage"]),
    ]


def _recipe(flags: dict[str, Any]) -> Table:
    rows = []
    for name, value in flags.items():
        default = getattr(Config, name)
        changed = written(name, default) if value != default else ""
        rows.append((written(name, value), changed))
    return Table("Recipe as it will run", rows, ("flag", "default"))


def _deviations(found: list[dict[str, Any]]) -> Table:
    return Table(
        f"Deviations from the paper: {len(found) or 'none'}",
        [
            (d["name"], d["section"], d["paper"], d["run"], d["price"] or "-")
            for d in found
        ],
        ("what", "section", "paper", "this run", "known price"),
    )


def _sizes(recipe: dict[str, Any]) -> Table:
    rows = [
        ("n, images per virtual worker", f"{recipe['worker_batch']:,}"),
        ("k, virtual workers", f"{recipe['virtual_workers']:,}"),
        ("kn, images per step", f"{recipe['global_batch']:,}"),
        ("η̂, rate after warmup", f"{recipe['scaled_lr']:.6g}"),
        ("steps per epoch", f"{recipe['steps_per_epoch']:.2f}"),
        ("steps", f"{recipe['total_steps']:,}"),
    ]
    if error := recipe["paper_top1_error"]:
        text = f"{error['mean']:.2f} ± {error['std']:.2f} % without deviations"
        rows.append(("the paper's top-1 error", text))
    return Table("Sizes", rows)


def _layout(layout: dict[str, Any]) -> Table:
    each = layout["devices_per_process"]
    shares = ", ".join(
        f"{group['workers']} on each of {_count(group['devices'], 'device')}"
        for group in layout["devices_by_workers"]
    )
    rows = [
        ("processes", f"{layout['processes']:,}"),
        ("devices per process", f"{each:,}"),
        ("virtual workers", shares),
    ]
    if layout["devices"] <= _LISTED_DEVICES:
        for device, (first, stop) in enumerate(layout["workers"]):
            place = f"process {device // each}, device {device % each}"
            rows.append((place, f"workers {first} to {stop - 1}"))
    return Table("Layout", rows)


def _learning_rate(points: list[dict[str, Any]]) -> Table:
    rows = [
        (
            point["at"],
            f"{point['step']:,}",
            f"{point['epoch']:.3f}",
            "not reached" if point["rate"] is None else f"{point['rate']:.6g}",
        )
        for point in points
    ]
    return Table("Learning rate", rows, ("at", "step", "epoch", "rate"))


def _model(model: dict[str, Any], list_variables: bool) -> Table:
    names = model["decayed_variables"]
    rows = [
        ("parameters", f"{model['parameters']:,}"),
        ("BatchNorm running statistics", f"{model['running_statistics']:,}"),
        (
            "weight decay acts on",
            f"{len(names)} of {model['trainable_variables']} variables, "
            f"{model['decayed_parameters']:,} parameters",
        ),
    ]
    if list_variables:
        rows += [("decayed", name) for name in names]
    return Table("Model", rows)


def _memory(memory: dict[str, int], messages: dict[str, Any]) -> Table:
    sent = messages["buckets"]
    travels = (
        f"{_mb(messages['bytes'])} of {messages['dtype']} in "
        f"{_count(len(sent), 'bucket')}, the largest of {_mb(max(sent))}"
    )
    rows = [
        ("weights, per device", _mb(memory["weights"])),
        ("optimizer state, per device", _mb(memory["optimizer_state"])),
        ("gradients, per device", _mb(memory["gradients"])),
        ("buckets, per device", _mb(memory["buckets"])),
        (
            "all-reduce per step",
            travels if memory["buckets"] else "none: there is one device",
        ),
        ("images of one step, per process", _mb(memory["input_per_step"])),
    ]
    return Table("Memory and messages", rows)


def _input_memory(parts: dict[str, Any]) -> Table:
    ahead, threads = parts["steps_ahead"], parts["threads"]
    rows = [
        (f"images: {ahead} steps ahead, one in use, one copied", "images"),
        (
            f"decoding: {_count(threads, 'thread')}, images of {parts['pixels']:,} "
            "pixels",
            "decoding",
        ),
        ("encoded images being read", "encoded"),
        ("evaluation", "evaluation"),
        ("order of the images", "order"),
        ("index of the records", "index"),
        ("--cache=memory", "cache"),
        ("all", "total"),
    ]
    return Table(
        "Memory of the input, per process at most; TensorFlow's pool may take twice it",
        [(text, _mb(parts[name])) for text, name in rows if parts[name]],
    )


def _cluster(members: dict[str, Any]) -> Table:
    rows = [
        (f"rank {rank}", address + " (this process)" * (rank == members["rank"]))
        for rank, address in enumerate(members["addresses"])
    ]
    rows = rows or [("not described", "this process trains alone")]
    return Table("Cluster", rows + [("note", note) for note in members["notes"]])


def _data(data: dict[str, Any], proof: dict[str, Any] | None) -> Table:
    rows = [("data set", f"{data['name']}, {data['classes']:,} classes")]
    for name, split in data["splits"].items():
        text = (
            f"{split['images']:,} images, {_mb(split['bytes'])} in "
            f"{_count(split['files'], 'file')} of {split['folder']}"
        )
        rows.append((name, text))
        rows.append((f"{name}, images a file", _spread(split["images_per_file"])))
        if split["record_bytes"]:
            sizes = _spread(split["record_bytes"])
            rows.append((f"{name}, bytes of a record", sizes))
    for epoch in proof["epochs"] if proof else ():
        fewest, most = epoch["per_device"]
        text = (
            f"union {epoch['union']:,} of {proof['records']:,} records, overlap "
            f"{epoch['overlap']}; {fewest:,} to {most:,} a device"
        )
        rows.append((f"order of epoch {epoch['epoch']}", text))
    return Table("Data", rows)


def _reading(reading: dict[str, Any]) -> list[Table]:
    """A table for each split that was read whole, and one of what is broken."""
    tables = [
        Table(f"Every record of {name}", _read_split(split))
        for name, split in reading.items()
    ]
    broken = [
        (each["place"], each["reason"])
        for split in reading.values()
        for each in split["broken"]
    ]
    if broken:
        rows = broken[:_LISTED_BROKEN]
        if more := len(broken) - len(rows):
            rows.append((f"and {more:,} more", "all of them: --json"))
        tables.append(
            Table(f"Broken records: {len(broken):,}", rows, ("place", "reason"))
        )
    return tables


def _read_split(split: dict[str, Any]) -> list[tuple[str, ...]]:
    labels = split["labels_out_of_range"]
    good = split["records"] - len(split["broken"]) - labels["records"]
    without = split["classes_without_images"]
    names = ", ".join(without[:_LISTED_CLASSES])
    if (more := len(without) - _LISTED_CLASSES) > 0:
        names += f" and {more:,} more"
    formats = (f"{images:,} {name}" for name, images in split["formats"].items())
    turned = (
        f"{images:,} of orientation {name}"
        for name, images in split["orientations"].items()
    )
    return [
        ("good", f"{good:,} of {split['records']:,} records"),
        (
            "read and decoded",
            f"{split['images_per_second']:,.0f} images/s, "
            f"{_mb(split['bytes_per_second'])}/s, {split['seconds']:,.1f} s",
        ),
        ("images a class", _spread(split["images_of_a_class"])),
        ("classes without images", names or "none"),
        ("labels out of range", f"{labels['records']:,}"),
        ("height, pixels", _spread(split["height"])),
        ("width, pixels", _spread(split["width"])),
        ("formats", "; ".join(formats) or "none"),
        (
            "turned by EXIF",
            f"{'; '.join(turned)}: ignored in training and evaluation"
            if split["orientations"]
            else "none",
        ),
    ]


def _storage(storage: dict[str, Any]) -> Table:
    created = " (will be created)" if storage["will_be_created"] else ""
    free = storage["free_bytes"]
    tried = storage["trial_write"]
    steps = ", ".join(f"step {step}" for step in storage["checkpoints"]) or "none"
    if storage["already_done"]:
        begin = f"nothing to do: step {storage['start_step']} is the last"
    elif storage["resumes"]:
        begin = f"goes on from step {storage['start_step']}"
    else:
        begin = "starts at step 0"
    rows = [
        ("folder", storage["model_dir"] + created),
        ("trial write", f"done in {tried}" if tried else "left to rank 0"),
        ("free", _mb(free) if free is not None else "unknown: a store"),
        ("one checkpoint", _mb(storage["checkpoint_bytes"])),
        ("needed for checkpoints", _mb(storage["needed_bytes"])),
        ("checkpoints there", steps),
        (f"--resume={storage['resume']}", begin),
    ]
    return Table("Storage", rows)


def _mb(count: int) -> str:
    return f"{count / 2**20:,.1f} MB"


def _spread(values: dict[str, float] | None) -> str:
    if not values:
        return "none"
    return (
        f"{values['smallest']:,} to {values['largest']:,}, median "
        f"{values['median']:,.12g}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
