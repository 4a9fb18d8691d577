//! The rsockets protocol: sockets over RDMA, wire-compatible with librdmacm's.
