//! Reliable Datagram Sockets in user space, wire-compatible with the Linux kernel's RDS over IB.
