"""Starting TensorFlow without its greetings.

TensorFlow tells every process on stderr which CPU kernels it uses and that it found no
GPU, before its log level counts. With eight processes nobody finds the one line that
matters. They are held back, and shown when the start fails. What Python writes to
stderr meanwhile is not: another thread may say why it ends the process.
"""

import os
import sys
import tempfile


def tensorflow() -> None:
    """Imports TensorFlow and lets it look for devices.

    Raises:
      Exception: whatever the import raises, behind what it wrote.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    # It stays open: another thread may write to it later than this one is done.
    stderr = os.dup(2)
    ours = sys.stderr
    sys.stderr = open(
        stderr, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            sys.stderr = ours
            os.dup2(stderr, 2)
