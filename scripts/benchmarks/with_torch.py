"""Trains the same network on the same data in a plain PyTorch loop, with other initial weights and another order.

Run by scripts/benchmark.py.
"""

import common
import torch

arguments = common.parser(__doc__).parse_args()
BATCH_SIZE = 64

torch.manual_seed(0)
training, validation = (
    (torch.from_numpy(images.copy()), torch.from_numpy(labels.copy()).long())
    for images, labels in common.load(arguments.folder, arguments.examples)
)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 3),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(32, 64, 3),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(1600, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
)
optimizer = torch.optim.Adam(model.parameters(), eps=1e-7)
loss_object = torch.nn.CrossEntropyLoss()


def over(images, labels, order, step):
    """Returns the mean loss and accuracy over an epoch."""
    total_loss = correct = torch.zeros(())
    for indices in order.split(BATCH_SIZE):
        x, y = images[indices, None].float() / 255.0, labels[indices]
        loss, predictions = step(x, y)
        total_loss = total_loss + loss * len(y)
        correct = correct + (predictions.argmax(1) == y).sum()
    return float(total_loss) / len(labels), float(correct) / len(labels)


def train_step(x, y):
    optimizer.zero_grad()
    predictions = model(x)
    loss = loss_object(predictions, y)
    loss.backward()
    optimizer.step()
    return loss.detach(), predictions.detach()


@torch.no_grad()
def test_step(x, y):
    predictions = model(x)
    return loss_object(predictions, y), predictions


for epoch in range(1, arguments.epochs + 1):
    loss, accuracy = over(*training, torch.randperm(len(training[1])), train_step)
    val_loss, val_accuracy = over(*validation, torch.arange(len(validation[1])), test_step)
    logs = {"loss": loss, "accuracy": accuracy, "val_loss": val_loss, "val_accuracy": val_accuracy}
    common.report(epoch, arguments.epochs, logs)
