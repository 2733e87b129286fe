"""Where what tasks report is sent, too: the nouns of ``sinks`` in a recipe."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import Key, Noun, Path, Problems, noun, pattern, text

_SECRET: Final = pattern(r"[A-Za-z_][A-Za-z0-9_]*", "write the name of a secret such as MLFLOW_TOKEN")
_URL: Final = pattern(r"https?://[^\s@]+", "write a URL such as https://mlflow.example.org, without a login")


class MlflowSink(Noun):
    """An MLflow server.

    Attributes:
        url: of the server.
        experiment: its name there; empty for that of the recipe.
        token: name of the secret with a token.
        login: name of the secret with ``USER:PASSWORD``.
    """

    #: Keys that name secrets.
    secret_keys: ClassVar[tuple[str, ...]] = ("token", "login")
    url: Annotated[str, Key("url", _URL, required="write the URL of the MLflow server")]
    experiment: Annotated[str, Key("experiment", text("write the name of an experiment"))] = ""
    token: Annotated[str, Key("token", _SECRET)] = ""
    login: Annotated[str, Key("login", _SECRET)] = ""

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Refuse two ways to log in."""
        if values.get("token") and values.get("login"):
            problems.add(node, path, "token and login; write one of them")


class WandbSink(Noun):
    """Weights & Biases.

    Attributes:
        project: its name there; empty for that of the recipe.
        entity: whose it is; empty for what is usual for the key.
        key: name of the secret with the key; empty: offline runs are written, and nothing is sent.
        url: of a server of one's own.
    """

    #: See `MlflowSink`.
    secret_keys: ClassVar[tuple[str, ...]] = ("key",)
    project: Annotated[str, Key("project", text("write the name of a project"))] = ""
    entity: Annotated[str, Key("entity", text("write the name of a user or team of W&B"))] = ""
    key: Annotated[str, Key("key", _SECRET)] = ""
    url: Annotated[str, Key("url", _URL)] = "https://api.wandb.ai"


Sink = MlflowSink | WandbSink


class Sinks(Noun):
    """Those of a recipe.

    Attributes:
        mlflow: an MLflow server.
        wandb: Weights & Biases.
    """

    mlflow: Annotated[MlflowSink | None, Key("mlflow", noun(MlflowSink))] = None
    wandb: Annotated[WandbSink | None, Key("wandb", noun(WandbSink))] = None

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """Refuse what is no mapping, with an example of one."""
        if node.kind is not Kind.MAPPING:
            example = "{mlflow: {url: URL}} or {wandb: {project: NAME}}"
            raise problems.refuse(node, path, f"{node.describe()}; write {example}")
        return node

    @property
    def by_kind(self) -> dict[str, Sink]:
        """Those that there are."""
        return {kind: sink for kind in type(self).model_fields if (sink := getattr(self, kind)) is not None}

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets that they need."""
        named = (getattr(sink, key) for sink in self.by_kind.values() for key in sink.secret_keys)
        return tuple(filter(None, named))
