"""A Trainer class with a snapshot, as PyTorch's tutorials on DDP build it up: started again it goes on from there."""

import shown  # isort: skip
import argparse
import os

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class MyTrainDataset(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.data = [(torch.rand(20, generator=generator), torch.rand(1, generator=generator)) for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path, breaks_in):
        self.rank, self.train_data, self.save_every = int(os.environ["LOCAL_RANK"]), train_data, save_every
        self.model, self.optimizer = model, optimizer
        self.epochs_run, self.snapshot_path, self.breaks_in = 0, snapshot_path, breaks_in
        if os.path.exists(snapshot_path):
            print("Loading snapshot")
            self._load_snapshot(snapshot_path)
        self.model = DDP(self.model)

    def _load_snapshot(self, snapshot_path):
        snapshot = torch.load(snapshot_path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch):
        if epoch == self.breaks_in and self.rank == 1:
            raise ValueError("as asked")
        print(f"[{self.rank}] Epoch {epoch} | Steps: {len(self.train_data)}")
        self.train_data.sampler.set_epoch(epoch)
        losses = [self._run_batch(source, targets) for source, targets in self.train_data]
        return losses[-1]

    def _save_snapshot(self, epoch):
        torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}, self.snapshot_path)
        print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}")

    def train(self, max_epochs):
        first = self.epochs_run
        for epoch in range(first, max_epochs):
            loss = self._run_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                self._save_snapshot(epoch)
            torch.distributed.barrier()
        shown.keep(self.model.module, first=first, loss=loss)


def main(save_every, total_epochs, batch_size, breaks_in, snapshot_path="snapshot.pt"):
    init_process_group(backend="gloo")
    train_set, model = MyTrainDataset(128), torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    loader = DataLoader(train_set, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(train_set))
    Trainer(model, loader, optimizer, save_every, snapshot_path, breaks_in).train(total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int, help="Total epochs to train the model")
    parser.add_argument("save_every", type=int, help="How often to save a snapshot")
    parser.add_argument("--batch_size", default=32, type=int, help="Input batch size on each device (default: 32)")
    parser.add_argument("--breaks_in", type=int, help="The epoch in which rank 1 raises an error")
    args = parser.parse_args()
    torch.manual_seed(0)
    main(args.save_every, args.total_epochs, args.batch_size, args.breaks_in)
