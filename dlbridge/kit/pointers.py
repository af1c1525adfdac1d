"""Where an address lives: asked from the driver, never taken from a label."""

from __future__ import annotations

from dlbridge.errors import ExchangeError

from .driver import Location, StreamDriver

__all__ = ["checked"]


def checked(
    driver: StreamDriver, address: int, device_id: int, label: str, kinds: tuple[str, ...]
) -> Location:
    """Look up an address that another library exported.

    Plain host memory is refused as device memory also where the GPU can read it (HMM, XNACK,
    ATS): its label is wrong, and so is that of freed memory, which looks the same to the driver.

    Parameters
    ----------
    driver : StreamDriver
        Whom to ask.
    address : int
        The exported address.
    device_id : int
        The device that it was exported for.
    label : str
        The name of the memory that it was exported as.
    kinds : tuple[str, ...]
        The kinds (`Location.kind`) that are right for the label.

    Returns
    -------
    Location
        What the driver says.

    Raises
    ------
    dlbridge.errors.ExchangeError
        If the label is wrong, or the memory cannot be reached from this process.
    """
    found = driver.locate(address, device_id)
    if found.kind not in kinds:
        hint = (
            "; host memory that the GPU can read must be exported as CPU memory"
            if found.kind == "pageable"
            else ""
        )
        raise ExchangeError(
            f"the tensor says that {address:#x} is {label} memory, {driver.memory_api} says it is "
            f"{found.kind} memory; its exporter mislabels it or has freed it{hint}"
        )
    if found.refusal:
        raise ExchangeError(f"{address:#x} {found.refusal}")
    return found
