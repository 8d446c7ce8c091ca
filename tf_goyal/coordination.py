"""TensorFlow's own dealings between the processes of a run, made not to harm it.

MultiWorkerMirroredStrategy starts a coordination service, which kills every process
when one is silent for some 10 s: one that is stopped for a moment, or pages. It keeps
the settings that it finds. gRPC goes through a proxy of the environment, which is there
for other things. And while its server starts and waits for the others, TensorFlow holds
the lock that every Python thread needs: nobody would hear that a peer is lost, or that
the process should stop.
"""

import ctypes
from collections.abc import MutableMapping, Sequence
from typing import Any

_HEARTBEAT_SECONDS = 7 * 24 * 3600.0  # longer than a whole job is suspended


def avoid_proxies(hosts: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Keeps gRPC from a proxy on its way to the other processes; before it starts.

    Only gRPC reads what is set here: a proxy stays in use for stores, such as gs://.

    Args:
      hosts: of all processes.
      environ: the environment variables, one of which is changed.
    """
    if len(hosts) < 2:
        return
    # gRPC reads the first of these that is there.
    known = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    environ["no_grpc_proxy"] = ",".join([*filter(None, [known]), *dict.fromkeys(hosts)])


def configure(processes: int, *, start_timeout: float, peer_timeout: float) -> None:
    """Sets how long TensorFlow waits, and how; before the strategy is made.

    Args:
      processes: of the run; with one there is nothing to set.
      start_timeout: seconds for all to start TensorFlow.
      peer_timeout: seconds of silence after which a process counts as lost: our own
        heartbeats find it, and TensorFlow's shall not. They do not know when they
        were stopped themselves, and would end a job that was suspended and goes on.
    """
    if processes < 2:
        return
    _wait_without_lock()
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=processes)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=int(1000 * start_timeout),
        heartbeat_timeout_in_ms=int(1000 * max(_HEARTBEAT_SECONDS, 4 * peer_timeout)),
        shutdown_barrier_timeout_in_ms=1000,
        coordinated_jobs=[job],
    )


def _wait_without_lock() -> None:
    """Has TensorFlow start its server as ctypes calls: without the interpreter's lock.

    A TensorFlow in which the function is not found keeps its own way.
    """
    from tensorflow.python import _pywrap_tensorflow_internal as internal
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.framework import errors_impl

    library = ctypes.CDLL(internal.__file__)
    try:
        enable = library.TFE_EnableCollectiveOps
        new, delete = library.TF_NewStatus, library.TF_DeleteStatus
        code_of, message_of = library.TF_GetCode, library.TF_Message
    except AttributeError:
        return
    new.restype = message_of.restype = ctypes.c_void_p
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    enable.argtypes, enable.restype = [pointer, ctypes.c_char_p, size, pointer], None
    delete.argtypes, delete.restype = [pointer], None
    code_of.argtypes, message_of.argtypes = [pointer], [pointer]

    def start(context: Any, server: bytes) -> None:
        status = new()
        try:
            enable(_inside(context), server, len(server), status)
            if code := code_of(status):
                message = ctypes.string_at(message_of(status)).decode(errors="replace")
                kind = errors_impl.exception_type_from_error_code(code)
                raise kind(None, None, message)
        finally:
            delete(status)

    pywrap_tfe.TFE_EnableCollectiveOps = start


def _inside(capsule: Any) -> int:
    """The pointer in a PyCapsule."""
    name, pointer = (
        ctypes.pythonapi.PyCapsule_GetName,
        ctypes.pythonapi.PyCapsule_GetPointer,
    )
    name.argtypes, name.restype = [ctypes.py_object], ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_void_p]
    pointer.restype = ctypes.c_void_p
    return pointer(capsule, name(capsule))


def peer_lost(error: Any) -> bool:
    """Whether an error of TensorFlow means that another process is not there."""
    import tensorflow as tf

    lost = (tf.errors.UnavailableError, tf.errors.AbortedError)
    return isinstance(error, lost) or "Collective ops is aborted" in error.message
