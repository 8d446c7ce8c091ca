"""What a result was measured on: for the JSON files in tools/results/."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from tf_goyal import provenance

RESULTS = Path(__file__).resolve().parent / "results"


def describe() -> dict[str, Any]:
    """The command line, the processor, its cores and the versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    arguments = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return {
        "command": " ".join(["python", f"tools/{arguments[0]}", *arguments[1:]]),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "versions": provenance.versions(),
        "git_commit": provenance.git_commit(),
    }


def write(name: str, result: dict[str, Any]) -> Path:
    """Writes `result` with the machine it comes from to tools/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    text = json.dumps({"machine": describe(), **result}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    return path
