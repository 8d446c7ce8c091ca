"""The commands of rendered pods, started here as Kubernetes would start them."""

import contextlib
import os
import subprocess
import sys

import test_k8s
import training
import yaml

from tf_goyal.launch import free_ports


def test_the_pods_of_an_indexed_job_train_and_are_evaluated(tmp_path, capsys):
    """S5: two workers and the evaluator, all with the files that their volumes hold."""
    given = ["--name=goyal", "--image=tf_goyal", "--workers=2", "--evaluator"]
    train = ["--recipe=digits", "--steps=2"]
    assert test_k8s.run(*given, "--checkpoint_claim=runs", "--", *train) == 0
    secret, _, service, job, evaluator = yaml.safe_load_all(capsys.readouterr().out)
    (tmp_path / "token").write_text(secret["stringData"]["token"])
    (tmp_path / "checkpoints").mkdir()
    name = service["metadata"]["name"]
    here = {
        f"{name}-[0-1].{name}:2222": ",".join(f"127.0.0.1:{p}" for p in free_ports(2)),
        "/var/run/tf-goyal": str(tmp_path),
        "/checkpoints": str(tmp_path / "checkpoints"),
    }
    pods = [({"JOB_COMPLETION_INDEX": str(index)}, job) for index in range(2)]
    pods.append(({}, evaluator))
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(_started(each["spec"]["template"], here, environment))
            for environment, each in pods
        ]
        outputs = [p.communicate(timeout=training.DEADLINE)[0] for p in started]
    assert [p.returncode for p in started] == [0, 0, 0], "\n".join(outputs)
    assert training.final_hash(outputs[0]) == training.final_hash(outputs[1])
    assert "step 2 " in outputs[2] and "has ended" in outputs[2]


@contextlib.contextmanager
def _started(template, here, environment):
    """A pod's container; killed when the test is done with it."""
    container = test_k8s.container(template)
    arguments = container["args"]
    for there, instead in here.items():
        arguments = [argument.replace(there, instead) for argument in arguments]
    inherited = {**os.environ, "PYTHONPATH": str(training.ROOT)}
    for name in ("TF_CONFIG", "TF_GOYAL_RUN_TOKEN"):
        inherited.pop(name, None)
    own = {each["name"]: each["value"] for each in container["env"]}
    command = container["command"]
    assert command[0] == "python"
    process = subprocess.Popen(
        [sys.executable, *command[1:], *arguments],
        env={**inherited, **own, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
