"""Lightning's Trainer: a module, its log, its checkpoint, and a second fit from there."""

import shown  # isort: skip
import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from small import Model, Samples
from torch.utils.data import DataLoader


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, index):
        loss = self.model(**batch)["loss"]
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.model(**batch)["loss"], sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(epochs, checkpoint=None):
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", max_epochs=epochs,
        logger=CSVLogger("logs"), log_every_n_steps=1, callbacks=[ModelCheckpoint("checkpoints", save_last=True)],
    )  # fmt: skip
    module = Module()
    trainer.fit(module, DataLoader(Samples(), 8, shuffle=True), DataLoader(Samples(), 8), ckpt_path=checkpoint)
    return trainer, module


L.seed_everything(0)
fit(1)
trainer, module = fit(2, "checkpoints/last.ckpt")
numbers = {name: value.item() for name, value in trainer.callback_metrics.items()}
shown.keep(module, step=trainer.global_step, processes=trainer.world_size, **numbers)
