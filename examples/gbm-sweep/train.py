"""Gradient boosting on real data (scikit-learn's breast cancer set), a few trees at a time."""

import argparse
import json
import os
import pickle
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split

ROUNDS = 8
TREES_PER_ROUND = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--leaves", type=int, default=31)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--l2", type=float, default=0.0)
    arguments = parser.parse_args()
    data = load_breast_cancer(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        *data, test_size=0.3, random_state=0, stratify=data[1]
    )
    model = HistGradientBoostingClassifier(
        learning_rate=arguments.lr,
        max_leaf_nodes=arguments.leaves,
        max_depth=arguments.depth,
        l2_regularization=arguments.l2,
        early_stopping=False,
        warm_start=True,
        random_state=0,
    )
    metrics = Path(os.environ.get("TRAINMASTER_METRICS", os.devnull))
    for step in range(1, ROUNDS + 1):
        model.set_params(max_iter=step * TREES_PER_ROUND).fit(train_x, train_y)
        loss = float(log_loss(test_y, model.predict_proba(test_x)))
        accuracy = float(accuracy_score(test_y, model.predict(test_x)))
        with metrics.open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "accuracy": accuracy}) + "\n")
    print(f"loss {loss:.4f} accuracy {accuracy:.4f}")
    output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
    output.mkdir(parents=True, exist_ok=True)
    (output / "model.pkl").write_bytes(pickle.dumps(model))


if __name__ == "__main__":
    main()
