"""Train the sample detector on rendered pictures, on the CPU.

``python samples/train.py --work DIR`` renders the three sets (see dataset.py), trains the network
of ``vidserve-sample.yaml`` from nothing with Ultralytics, measures it on the test set and writes
``vidserve-sample.pt`` (half precision, no optimizer, no paths) and ``metrics.json`` beside this
file. All else goes to ``--work`` (a folder under the system's temporary one by default).

The training stops by ``--hours``; Ultralytics fits the number of epochs to them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path, PurePath
from typing import Any

HERE = Path(__file__).resolve().parent
NETWORK = HERE / "vidserve-sample.yaml"
WEIGHTS = HERE / "vidserve-sample.pt"
METRICS = HERE / "metrics.json"


def set_environment(work: Path) -> None:
    """Keep Ultralytics offline and its settings in ``work``; call before it is imported."""
    os.environ["YOLO_OFFLINE"] = "true"
    os.environ["YOLO_AUTOINSTALL"] = "false"
    os.environ["YOLO_CONFIG_DIR"] = str(work)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def recipe(options: argparse.Namespace, data: Path) -> dict[str, Any]:
    """Arguments of the training."""
    return {
        "data": str(data),
        "imgsz": options.image_size,
        "epochs": options.epochs,
        "time": options.hours,
        "batch": 16,
        "nbs": 16,
        "device": "cpu",
        "workers": 1,
        "cache": "ram",
        "amp": False,
        "plots": False,
        "channels_last": True,
        "pretrained": False,
        "optimizer": "AdamW",
        "lr0": 0.002,
        "lrf": 0.02,
        "cos_lr": True,
        "warmup_epochs": 1.0,
        "weight_decay": 0.0005,
        "patience": 0,
        "close_mosaic": 4,
        "mosaic": 1.0,
        "scale": 0.35,
        "translate": 0.1,
        "hsv_h": 0.02,
        "hsv_s": 0.5,
        "hsv_v": 0.4,
        "seed": 7,
        "project": str(options.work / "runs"),
        "name": "sample",
        "exist_ok": True,
    }


def bare(value: Any) -> Any:
    """The value with every absolute path in it cut down to its file name."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(bare(item) for item in value)
    if isinstance(value, PurePath) or (isinstance(value, str) and os.path.isabs(value)):
        return PurePath(value).name
    return value


def write_weights(trained: Path, target: Path) -> int:
    """Write the trained network without paths and optimizer; returns its number of weights."""
    import torch

    checkpoint = torch.load(trained, map_location="cpu", weights_only=False)
    model = (checkpoint.get("ema") or checkpoint["model"]).half()
    model.args = bare(dict(model.args))
    model.yaml = bare(model.yaml)
    if hasattr(model, "pt_path"):
        model.pt_path = target.name
    model.criterion = None
    for weight in model.parameters():
        weight.requires_grad = False
    arguments = bare(checkpoint["train_args"])
    for key in ("data", "project", "name", "save_dir", "model", "cfg"):
        arguments[key] = None
        model.args.pop(key, None)
    arguments["model"] = NETWORK.name
    kept = {key: bare(checkpoint.get(key)) for key in ("date", "version", "license", "docs")}
    torch.save(
        {
            **kept,
            "epoch": -1,
            "best_fitness": None,
            "ema": None,
            "updates": None,
            "optimizer": None,
            "scaler": None,
            "model": model,
            "train_args": arguments,
        },
        target,
    )
    return sum(weight.numel() for weight in model.parameters())


def measure(data: Path, image_size: int, work: Path) -> dict[str, Any]:
    """Accuracy of the written weights on the test set, which chose nothing."""
    from ultralytics import YOLO

    found = YOLO(WEIGHTS).val(
        data=str(data),
        split="test",
        imgsz=image_size,
        batch=16,
        device="cpu",
        plots=False,
        workers=1,
        project=str(work / "runs"),
        name="final",
        exist_ok=True,
        verbose=False,
    )
    each = {
        found.names[int(index)]: {
            "mAP50": round(float(found.box.ap50[k]), 4),
            "mAP50-95": round(float(found.box.ap[k]), 4),
        }
        for k, index in enumerate(found.box.ap_class_index)
    }
    return {
        "mAP50": round(float(found.box.map50), 4),
        "mAP50-95": round(float(found.box.map), 4),
        "precision": round(float(found.box.mp), 4),
        "recall": round(float(found.box.mr), 4),
        "classes": each,
    }


def versions() -> dict[str, str]:
    """Versions of the libraries that matter."""
    from importlib.metadata import version

    names = ("torch", "ultralytics", "numpy", "opencv-python", "av")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def count_pictures(data: Path, split: str) -> int:
    """Number of rendered pictures of a set."""
    return len(list((data.parent / "images" / split).glob("*.jpg")))


def epochs_done(run: Path) -> int:
    """Epochs that the training has finished, from its results table."""
    return max(0, len((run / "results.csv").read_text(encoding="utf-8").splitlines()) - 1)


def finish(options: argparse.Namespace, data: Path, minutes: float) -> None:
    """Write the weights and the figures of a training that has run."""
    run = options.work / "runs" / "sample"
    best = run / "weights" / "best.pt"
    weights = write_weights(best, WEIGHTS)
    figures = {
        **measure(data, options.image_size, options.work),
        "weights": weights,
        "file_bytes": WEIGHTS.stat().st_size,
        "image_size": options.image_size,
        "train_images": count_pictures(data, "train"),
        "val_images": count_pictures(data, "val"),
        "test_images": count_pictures(data, "test"),
        "epochs": epochs_done(run),
        "train_minutes": round(minutes, 1),
        "versions": versions(),
    }
    METRICS.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description="Render pictures and train the sample detector.")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "vidserve-train",
        help="folder for pictures and runs (default: in the temporary folder)",
    )
    parser.add_argument("--images", type=int, default=2600, help="training pictures")
    parser.add_argument(
        "--held-out", type=int, default=300, help="validation pictures, and as many test pictures"
    )
    parser.add_argument("--image-size", type=int, default=320, help="long side in pixels")
    parser.add_argument("--epochs", type=int, default=24, help="epochs, where --hours is 0")
    parser.add_argument("--hours", type=float, default=0.75, help="longest training; 0: no limit")
    parser.add_argument("--processes", type=int, default=2, help="processes that render")
    parser.add_argument("--reuse", action="store_true", help="do not render again")
    parser.add_argument(
        "--finish",
        type=float,
        metavar="MINUTES",
        help="only write the result of a training of so many minutes",
    )
    options = parser.parse_args()
    options.hours = options.hours or None
    return options


def main() -> None:
    """Render, train, measure."""
    options = arguments()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    set_environment(options.work)
    data = options.work / "data" / "data.yaml"
    if not options.reuse and options.finish is None:
        from dataset import render_sets

        data = render_sets(
            options.work / "data",
            options.images,
            options.held_out,
            options.image_size,
            options.processes,
        )
    if options.finish is not None:
        finish(options, data, options.finish)
        return
    from ultralytics import YOLO
    from ultralytics.utils import SETTINGS

    SETTINGS.update({"sync": False})
    start = time.monotonic()
    YOLO(NETWORK, task="detect").train(**recipe(options, data))
    finish(options, data, (time.monotonic() - start) / 60)


if __name__ == "__main__":
    main()
