"""A kernel that takes its time, so that slow work needs no framework; the driver compiles it."""

SPIN = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .u64 %limit, %start, %now;
    .reg .pred %early;
    ld.param.u64 %limit, [cycles];
    mov.u64 %start, %clock64;
AGAIN:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %limit;
    @%early bra AGAIN;
    ret;
}
\0"""
