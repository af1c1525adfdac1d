"""The inside of dlbridge: one room for each thing that happens to a tensor.

`values` and `dlpack` say what a tensor is in C, `plugins` where it may be; `tensor`
is the tensor itself. It comes in and goes out (`libraries`,
`interfaces`) and moves (`moves`); `api` puts that together. Anything in here may
change; what is public stands one level up.
"""

from .implementation_details.interpreters import refuse_subinterpreters

refuse_subinterpreters()  # before any module of this package uses cffi
