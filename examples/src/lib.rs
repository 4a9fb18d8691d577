//! Ports of the RDMA examples and tools people know.
