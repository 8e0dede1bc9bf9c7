"""Published models by name: the `config.json` of a directory, the hub's cache, the shipped catalogue, or the hub.

Only configs are read: never weights, and never the code of a repository.
"""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sysbench import package
from sysbench.errors import Refusal, nearest
from sysbench.extras import TRANSFORMERS, install_command

CONFIG = "config.json"

_ON_THE_HUB = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")


class PublishedModel(NamedTuple):
    """A model of the catalogue: a config without what changes neither memory nor time, such as token ids."""

    slug: str
    file: Path
    config: dict[str, Any]
    """Fields of the config; those that begin with `_` say which repositories have it, and where it is from."""

    @property
    def repositories(self) -> tuple[str, ...]:
        """Return the repositories of the hub with a model of these dimensions, the one that was read first."""
        return tuple(self.config["_repos"])

    @property
    def parameters(self) -> int:
        """Return the number of parameters, tied ones once."""
        return int(self.config["_parameters"])

    @property
    def source(self) -> str:
        """Return where the dimensions were read, with the revision of a file."""
        revision = self.config.get("_revision")
        return f"{self.config['_source']} @{revision[:8]}" if revision else str(self.config["_source"])


@cache
def names() -> tuple[str, ...]:
    """Return the names of the catalogue, without reading it."""
    return tuple(sorted(file.stem for file in package.profiles("models").glob("*.json")))


@cache
def catalogue() -> tuple[PublishedModel, ...]:
    """Return the models of `profiles/models`, by name."""
    files = {name: package.profiles("models") / f"{name}.json" for name in names()}
    return tuple(
        PublishedModel(name, file, json.loads(file.read_text(encoding="utf-8"))) for name, file in files.items()
    )


@cache
def _by_name() -> dict[str, PublishedModel]:
    return {name.lower(): model for model in catalogue() for name in (model.slug, *model.repositories)}


def catalogued(name: str) -> PublishedModel | None:
    """Return the model of the catalogue with this name, or this repository of the hub; None if there is none."""
    return _by_name().get(name.lower())


def nearest_name(name: str) -> str | None:
    """Return the name in the catalogue that is closest to a name that nothing has."""
    slugs = {each.rpartition("/")[2]: model.slug for each, model in _by_name().items()}
    found = nearest(name.rpartition("/")[2], slugs, least_likeness=0.7)
    return None if found is None else slugs[found]


def config_file(name: str, directory: str) -> Path:
    """Return the config that a name stands for, without asking the network; the path need not exist.

    A path (relative to `directory`) comes before what an earlier download left in the hub's cache, and this before the
    catalogue, which knows no revisions.
    """
    path = Path(directory) / name
    path = path / CONFIG if path.is_dir() else path
    if path.exists():
        return path
    if (cached := _in_cache(name)) is not None:
        return cached
    model = catalogued(name)
    return path if model is None else model.file


def problem(name: str, directory: str) -> Refusal | None:
    """Return why there is no config of this name; None if there is one, downloaded if it has to be."""
    if config_file(name, directory).is_file():
        return None
    found = _ON_THE_HUB.fullmatch(name)
    given = f"--model hf:{name}:"
    if found is None:
        remedy = "name the model as on the hub, or a directory with its config.json"
        return Refusal(f"there is no file {Path(directory) / name}", remedy, given)
    reason = _download(found["repo"], found["revision"])
    return None if reason is None else Refusal(f"is none of sysbench models, and no file; {reason}", option=given)


def _in_cache(name: str) -> Path | None:
    found = _ON_THE_HUB.fullmatch(name)
    if found is None or importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(found["repo"], CONFIG, revision=found["revision"])
    return Path(cached) if isinstance(cached, str) else None  # otherwise None, or known not to exist


@cache  # every cell of a grid asks
def _download(repository: str, revision: str | None) -> str | None:
    """Get the config of a repository into the hub's cache; return why this is impossible."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return f"models of the hub need the package huggingface_hub: {install_command(TRANSFORMERS[1])}"
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    named = nearest_name(repository)
    near = f". Nearest of sysbench models: {named}" if named else ""
    if constants.HF_HUB_OFFLINE:
        return f"the hub's cache does not have it either, and HF_HUB_OFFLINE is set{near}"
    try:
        get_hf_file_metadata(hf_hub_url(repository, CONFIG, revision=revision))  # fails at once, a download tries again
        hf_hub_download(repository, CONFIG, revision=revision)
    except errors.GatedRepoError:
        return f"{repository} is gated: ask for access on its page, then set HF_TOKEN or run hf auth login"
    except errors.RepositoryNotFoundError:
        return f"the hub has no public model {repository}; for a private one set HF_TOKEN or run hf auth login{near}"
    except errors.RevisionNotFoundError:
        return f"{repository} has no revision {revision}"
    except errors.EntryNotFoundError:
        return f"{repository} has no {CONFIG}"
    except Exception as error:  # noqa: BLE001  whatever the HTTP library of the hub's client raises without a connection
        return f"the hub cannot be asked: {str(error).strip().partition(chr(10))[0] or type(error).__name__}{near}"
    return None
