//! Safe RDMA connection management: the whole of librdmacm, typed by phase.
