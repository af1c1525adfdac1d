"""Parts for authors of backends: what backends over a driver with streams have in common.

A driver of the CUDA family (streams, events, device and pinned memory, addresses) needs one
class, a `dlbridge.kit.driver.StreamDriver` that names the driver's functions. The other parts
make complete backends from it. Each part is a module of its own and can be used alone:

==================  ==============================================================
`status`            status codes and the exceptions that they become
`fork`              a child of ``fork()`` is refused before the driver is touched
`driver`            what the parts ask of a driver
`capture`           what graph capture forbids, asked before anything is queued
`events`            events that are used again
`streams`           what ``stream=`` may be; the order between two streams
`consumers`         the streams that may still use memory when it is freed
`memory`            allocation, and frees that wait for their turn
`pool`              device memory from a pool, in stream order
`pinned`            page-locked memory, and host memory locked in place
`pointers`          where an address lives
`regions`           strided copies as the fewest calls
`staging`           pageable memory through a ring of pinned chunks
`tuning`            the fastest way to stage, measured once
`host_copies`       copies between host and device: direct or staged
`backend`           the members that all these backends share
`device_backend`    a complete backend for device memory
`host_backend`      a complete backend for pinned memory
==================  ==============================================================

The parts import `dlbridge.errors` and `dlbridge.protocol` and nothing else of dlbridge.
``backends/cuda`` and ``backends/rocm`` are built on them.
"""
