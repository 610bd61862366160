"""What a run was before it was resumed: its workers, its settings, where it ran."""

from collections.abc import Mapping, Sequence
from typing import Any

from parsgd.environment import link, machine
from parsgd.placement.devices import Placement

EARLIER = ("earlier_workers", "earlier_settings", "earlier_placements")


def earlier(
    meta: Mapping[str, Any] | None,
    workers: int,
    changed: Mapping[str, Sequence[Any]],
    place: Mapping[str, Any],
) -> dict[str, list[Any]]:
    """Other numbers of workers, settings and places that a run had, and until when.

    Args:
        meta: What is stored with the checkpoint that the run goes on from, if any.
        workers: How many workers go on.
        changed: Settings that have changed, with the values before and after.
        place: Where it goes on, see `place_of`. Seconds measured in two places cannot
            be compared.

    Returns:
        For each key of `EARLIER` pairs of what was and the step until which it was.

    Example:
        >>> was = {"workers": 8, "step": 20, "place": {"kind": "vmap", "devices": 1}}
        >>> now = {"kind": "shard_map", "devices": 1}
        >>> for key, known in earlier(was, 8, {"seed": (0, 1)}, now).items():
        ...     print(key, known)
        earlier_workers []
        earlier_settings [[{'seed': 0}, 20]]
        earlier_placements [[{'kind': 'vmap'}, 20]]
    """
    counts, settings, places = ([*(meta or {}).get(key, ())] for key in EARLIER)
    if meta and meta["workers"] != workers:
        counts.append([meta["workers"], meta["step"]])
    before = {key: old for key, (old, _) in changed.items() if key != "workers"}
    if meta and before:
        settings.append([before, meta["step"]])
    # Older checkpoints do not know their place.
    known = (meta or {}).get("place", {})
    moved = {key: old for key, old in known.items() if place.get(key) != old}
    if meta and moved:
        places.append([moved, meta["step"]])
    return dict(zip(EARLIER, (counts, settings, places), strict=True))


def place_of(placement: Placement) -> dict[str, Any]:
    """What seconds depend on besides the run: the placement and its hardware."""
    device = placement.own_device
    place: dict[str, Any] = {"link": link()} if link() else {}
    place |= {
        "kind": placement.kind,
        "devices": len(placement.devices),
        "processes": placement.processes,
        "device": device.device_kind,
    }
    if device.platform == "cpu":
        here = machine()
        place |= {key: here[key] for key in ("cpu", "cores")}
    return place
