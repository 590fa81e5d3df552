"""Training on several ranks that goes on after it was killed, on any number of ranks: DDP on handwritten digits.

    torchrun --standalone --nproc-per-node 2 examples/03_distributed.py [FOLDER]

Writes the data and ``checkpoint.pt`` to FOLDER (``demo_output`` without it). Stop it at any moment, by Ctrl-C or by
``kill -9`` of any rank (of torchrun itself it would leave the ranks running), and start it again with another
``--nproc-per-node``: 1, 2, 3 or 4. It goes on from the last checkpoint, and the losses are those of a run that nobody
stopped, since what all ranks together read in a step is the same. Needs scikit-learn, for its digits.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_tfrecord as tfr

EPOCHS = int(os.environ.get("EPOCHS", "20"))
GLOBAL_BATCH = 48  # records of a step, of all ranks together
SAVE_EVERY = 5  # steps
FEATURES = {
    "pixels": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.uint8, (64,))),
    "label": tfr.FixedLenFeature((), torch.int64),
}


def write_shards(folder: Path, num_shards: int) -> None:
    """Write ``digits-00000-of-00003.tfrecord`` and the other shards."""
    pixels, labels = load_digits(return_X_y=True)
    for shard in range(num_shards):
        with tfr.TFRecordWriter(folder / f"digits-{shard:05d}-of-{num_shards:05d}.tfrecord") as writer:
            for image, label in zip(pixels[shard::num_shards], labels[shard::num_shards], strict=True):
                writer.write_example({"pixels": image.astype(np.uint8).tobytes(), "label": label})


def save(checkpoint: Path, **state: Any) -> None:
    """Write a checkpoint in one step, so that a kill leaves the old one or the new one."""
    partial = checkpoint.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, checkpoint)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo_output")
    checkpoint = folder / "checkpoint.pt"
    gpus = torch.cuda.device_count()
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    torch.set_num_threads(1)  # the network is tiny
    torch.manual_seed(0)

    if rank == 0 and not (folder / "digits-00002-of-00003.tfrecord").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_shards(folder, 3)
    dist.barrier()

    dataset = tfr.TFRecordDataset(f"{folder}/digits@3.tfrecord", FEATURES)
    # Rank and world_size come from the process group. drop_last: every step has all its records.
    loader = tfr.TFRecordLoader(
        dataset, GLOBAL_BATCH // world_size, shuffle=True, seed=1, drop_last=True, device=device if gpus else None
    )
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(network, device_ids=[device] if gpus else None)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    if rank == 0:
        print(loader.explain() if step == 0 else f"going on at step {step} on {world_size} ranks", flush=True)

    for epoch in range(loader.epoch, EPOCHS):
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["pixels"].float().div(16)), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            mean = loss.detach()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"epoch {epoch} step {step}: loss {mean.item() / world_size:.5f}", flush=True)
                if step % SAVE_EVERY == 0:
                    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                    save(checkpoint, loader=loader.state_dict(), step=step, **state)
    dist.barrier()  # gloo's threads let go of the last loss before Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
