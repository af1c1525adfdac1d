"""Parts for authors of backends: what several backends have in common.

For any driver, and for a library in Python over one. Begin with `resources` if you call a C API;
the objects of a library in Python own themselves (`dlbridge.protocol.PlainAllocation`):

==================  ==============================================================
`limits`            settings of the environment: the limit of freed memory that is kept; switches
`status`            status codes and the exceptions that they become
`resources`         one owner for each thing that a driver gives, whatever is raised; forks; locks
`gate`              the end of the process: a library that no thread enters then, work to wait for
`streams`           what ``stream=`` may be; who keeps a stream that another library has made
`devices`           devices by number and by name; host views where the host can use the address;
                    copies between two devices, where the library has none
==================  ==============================================================

A driver of the CUDA family (streams, events, device and pinned memory, addresses) needs one
class, a `dlbridge.kit.driver.StreamDriver` with a table of the driver's names. The other parts
make complete backends from it. Each part is a module of its own and can be used alone:

==================  ==============================================================
`driver`            one class for these drivers, over a table of names
`order`             events that are used again; what graph capture forbids; the streams that may
                    still use memory when it is freed
`memory`            allocation, and frees that wait for their turn: device memory from a pool, in
                    stream order; page-locked memory, and host memory locked in place
`regions`           strided copies as the fewest calls
`staging`           copies of large pageable memory, by several threads
`backend`           complete backends for device memory and for pinned memory
==================  ==============================================================

``backends/cuda`` and ``backends/rocm`` are built on both tables, ``backends/webgpu``,
``backends/oneapi`` and ``backends/torch`` on the first. A part that one backend only would use is
in that backend.
"""

# May import: `errors`, `protocol`.
