"""The cluster of the paper (§4.3), as tools/scaling.py simulates it."""

from tf_goyal.cost_model import Network

# The paper's cluster (§4.3). It states the link, and that a server has 8 P100. The
# rest is what such machines do, in round numbers, and the same wherever it is used:
NETWORK = Network(
    latency=10e-6,  # two network cards and two or three switches
    bandwidth=50e9 / 8,
    message_seconds=20e-6,  # system calls, an interrupt and a thread that wakes up
    copy_seconds=1 / 6e9,  # one core that adds: two reads and a write of memory
    members=8,
    inside_bandwidth=10e9,  # PCIe 3.0 x16, the narrowest way from devices to host
)
# §4.3: backward 120 ms. Forward multiplies half as much. The rest completes §5.5's
# 0.232 s of one server.
SECONDS = {"forward": 0.060, "backward": 0.120, "rest": 0.052}
# Caffe2's data_parallel_model in 2017: max_concurrent_distributed_ops.
IN_FLIGHT = 4
# What the 90 % of §5.5 leave over when all communication is accounted for: besides the
# 0.232 s, the one number here that a result of the paper was used for.
STRAGGLING = 0.05
# Servers and efficiency that the paper measured (§5.5): for the plot.
MEASURED = {32: 0.90, 44: 0.232 / 0.26}
