"""`sysbench models`: the published models of the catalogue, or the config of one."""

from __future__ import annotations

from sysbench.commands import showing
from sysbench.commands.models.spec import ModelsSpec
from sysbench.errors import UsageError
from sysbench.spec import published
from sysbench.spec.command_options import Given, command_options, validated


@command_options(ModelsSpec)
def models(given: Given) -> None:
    """List the published models that --model takes by name, with their dimensions, and where these are from.

    Any other model of the Hugging Face hub is --model hf:ORGANISATION/NAME.
    """
    spec = validated(ModelsSpec, given)
    from sysbench.commands.models import tables

    if spec.name is None:
        sheet = tables.model_list(published.catalogue())
    elif (model := published.catalogued(spec.name)) is not None:
        sheet = tables.model(model)
    else:
        near = published.nearest_name(spec.name)
        hint = f" Did you mean {near}?" if near else ""
        raise UsageError(f"{spec.name} is not in the catalogue.{hint} Without a name, sysbench models lists all")
    showing.show_sheet(sheet, spec, spec.columns)
