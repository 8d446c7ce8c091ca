"""What every command checks before TensorFlow starts."""

from tf_goyal import config, datasets, memory_cache
from tf_goyal.config import Config
from tf_goyal.datasets import Dataset


def check(settings: Config, processes: int) -> Dataset:
    """Finds the data and holds the settings against it.

    Args:
      settings: of the run.
      processes: that train together.

    Returns:
      The data set of the run.

    Raises:
      ValueError: data or settings are refused, in one sentence.
    """
    data = datasets.load(
        settings.dataset,
        settings.data_dir,
        verify=settings.verify_records,
        label_offset=settings.label_offset,
    )
    config.validate(
        settings,
        train_images=len(data.train),
        eval_images=len(data.validation),
        classes=data.num_classes,
        processes=processes,
    )
    return memory_cache.in_memory(data) if settings.cache == "memory" else data
