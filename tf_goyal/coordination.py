"""TensorFlow's own watch over the processes of a run, made as patient as ours.

MultiWorkerMirroredStrategy starts a coordination service, which kills every process
when one is silent for some 10 s: one that is stopped for a moment, or pages. It keeps
the settings that it finds.
"""


def configure(processes: int, *, start_timeout: float, peer_timeout: float) -> None:
    """Sets how long TensorFlow waits; before the strategy is made.

    Args:
      processes: of the run; with one there is nothing to set.
      start_timeout: seconds for all to start TensorFlow.
      peer_timeout: seconds of silence after which a process counts as lost; our own
        heartbeats find it, and name it, before TensorFlow does.
    """
    if processes < 2:
        return
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=processes)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=int(1000 * start_timeout),
        heartbeat_timeout_in_ms=int(1000 * 4 * peer_timeout),
        shutdown_barrier_timeout_in_ms=1000,
        coordinated_jobs=[job],
    )
