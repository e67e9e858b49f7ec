"""Makes the page of all settings of operator and data node.

Names and defaults are those of the code, meanings those of docs/settings.yaml.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from rezone.controller.work.settings import CoordinatorSettings
from rezone.datanode.settings import NodeSettings, variable_of

MEANINGS = Path(__file__).parents[1] / "docs" / "settings.yaml"
HEAD = """# Settings

Every setting of the two processes, with its default. Each is an environment variable; the unit is
in the name. A value that cannot be is refused at the start.
"""
OPERATOR = """
## Operator

With Helm set the limits and times as `settings` (`settings.reshardingGraceSeconds` is
`REZONE_RESHARDING_GRACE_SECONDS`); images, accounts, namespaces and TLS have values of their own in
`charts/rezone/values.yaml`. A variable that the operator does not know is ignored, but the chart
refuses an unknown value.
"""
NODE = """
## Data node

Set them in the zone, as environment of the container `data-node` in `spec.dataNodes.podTemplate`. A
changed template replaces the zone's pods, [one at a time](moves/rolling-update.md). An unknown
`REZONE_NODE_` variable is refused. What is most likely to be wanted: [sizing](sizing.md).

```yaml
dataNodes:
  podTemplate:
    spec:
      containers:
        - name: data-node
          env:
            - {name: REZONE_NODE_LEASE_MS, value: "3000"}
```
"""
ROWS = "\n| variable | default | meaning |\n| --- | --- | --- |\n"
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def page() -> str:
    """Return the page; SystemExit names a setting without a meaning, or the other way round."""
    meanings = yaml.safe_load(MEANINGS.read_text())
    operator = {f.name: f.default for f in dataclasses.fields(CoordinatorSettings)}
    node = {f.name: f.default for f in msgspec.structs.fields(NodeSettings)}
    operator_names = {name: f"REZONE_{name.upper()}" for name in operator}
    node_names = {name: variable_of(name) for name in node}
    return (
        HEAD
        + (OPERATOR + rows(operator, meanings["operator"], operator_names))
        + (NODE + rows(node, meanings["data node"], node_names))
    )


def rows(
    defaults: Mapping[str, object], meanings: Mapping[str, str], variables: Mapping[str, str]
) -> str:
    """Return the table of a process's settings; SystemExit names those that do not fit."""
    if odd := sorted(defaults.keys() ^ meanings.keys()):
        raise SystemExit(f"docs/settings.yaml and the code differ: {', '.join(odd)}")
    return ROWS + "".join(
        f"| `{variables[name]}` | {_shown(name, default)} | {meanings[name]} |\n"
        for name, default in defaults.items()
    )


def _shown(name: str, value: object) -> str:
    if value in {"", ()}:
        return ""
    if isinstance(value, int) and "_bytes" in name:
        for size, unit in _UNITS:
            if value and value % size == 0:
                return f"{value} ({value // size} {unit})"
    return str(value)
