# SPDX-License-Identifier: MIT
"""A stage of NeMo Curator (1.4) that adds files of clips and images to a cache of vision tokens.

    pipeline = Pipeline(name="tokens", stages=[
        FilePartitioningStage("/data/clips", files_per_partition=64, file_extensions=[".mp4"]),
        VisionTokens("Qwen3-VL-4B-Instruct", "/shared/tokens", options={"fps": 2})])
    pipeline.run(RayDataExecutor())

Curator runs each task at least once. Files whose tokens are in the cache are not encoded again, and
once a task has returned, its tokens are on the disk. A file that failed has a record in the cache;
the task's metadata has the counts.
"""

from dataclasses import dataclass, field

from nemo_curator.stages.base import ProcessingStage
from nemo_curator.stages.resources import Resources
from nemo_curator.tasks import FileGroupTask

import qwenvit


@dataclass
class VisionTokens(ProcessingStage[FileGroupTask, FileGroupTask]):
    """Passes groups of files on unchanged.

    model: a checkpoint's folder.
    out: the cache's folder, which all nodes must see.
    options: options of qwenvit.CacheWriter.
    load: options of qwenvit.load.
    """

    model: str
    out: str
    options: dict = field(default_factory=dict)
    load: dict = field(default_factory=dict)
    name: str = "vision_tokens"
    resources: Resources = field(default_factory=lambda: Resources(cpus=8, gpus=1))

    def inputs(self):
        return ["data"], []

    def outputs(self):
        return ["data"], []

    def setup(self, worker_metadata=None):
        threads = max(1, int(self.resources.cpus))
        model = qwenvit.load(self.model, **{"threads": threads, **self.load})
        self._cache = qwenvit.CacheWriter(model, self.out, **{"decoders": threads, **self.options})

    def process(self, task):
        task._metadata["vision_tokens"] = self._cache.add(task.data)
        return task

    def teardown(self):
        self._cache.close()
