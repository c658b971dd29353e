#!/bin/sh
#SBATCH --array=0-15 --gres=gpu:1 --cpus-per-task=16 --time=04:00:00 --requeue --signal=TERM@120
# Fills a cache of vision tokens with a Slurm array:
#     sbatch slurm.sh --model MODEL --list LIST -o OUT [OPTION...]
# Each task encodes its share of the list. A task that was stopped or requeued continues where it stopped.
# The array must begin at 0.
exec srun qwenvit cache fill --shard "${SLURM_ARRAY_TASK_ID:?}/${SLURM_ARRAY_TASK_COUNT:?}" "$@"
